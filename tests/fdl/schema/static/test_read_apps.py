"""Apps of typer and groups of click that consist of several parts, also in several files."""

from __future__ import annotations

import sys

import pytest

PARTS = """
import typer
app = typer.Typer()
sub = typer.Typer({named})
{add}
@app.command()
def fit(rate: float = 0.1): ...
@sub.command()
def init(path: str, force: bool = False): print("init", path, force)
@sub.command()
def drop(): ...
@sub.command()
def check(): ...
app()
"""


@pytest.mark.parametrize(
    ("named", "add"),
    [
        ("", 'app.add_typer(sub, name="db")'),
        ("name='db'", "app.add_typer(sub)"),
        ("", "app.add_typer(typer_instance=sub, name='db')"),
    ],
)
def test_a_typer_below_another_is_a_command(schema, named, add):
    found = schema(PARTS.format(named=named, add=add))
    assert (sorted(found.commands), dict(found.options)) == (["db", "fit"], {})
    db = found.commands["db"]
    assert list(db.commands) == ["init", "drop", "check"]
    assert [one.name for one in db.commands["init"].arguments] == ["path"]


def test_commands_of_a_typer_without_a_name_are_those_of_the_one_above(schema):
    text = PARTS.format(named="", add="").replace("\napp()", "\napp.add_typer(sub)\napp()")
    assert list(schema(text).commands) == ["fit", "init", "drop", "check"]


def test_a_command_below_another_typer_runs(project, fdl):
    project(
        {
            "fdl.yml": "commands: {t: }\n",
            "t/fdl.yml": f"entry: {sys.executable} train.py\n",
            "t/train.py": PARTS.format(named="", add='app.add_typer(sub, name="db")'),
        }
    )
    assert fdl("t", "db", "init", "x", "--force").out == "init x True\n"
    told = fdl("t", "--help").out
    assert "Usage: fdl t [<command>]" in told
    assert "Commands of the program:\n  db\n  fit\n" in told
    assert "--rate" not in told
    told = fdl("t", "db", "--help").out
    assert "Usage: fdl t db [<command>]" in told
    assert "  init\n  drop\n  check\n" in told
    told = fdl("t", "db", "init", "--help").out
    assert "Usage: fdl t db init [OPTIONS] <path>" in told
    assert "--force / --no-force" in told


ONE = "import typer\napp = typer.Typer()\n{}\n@app.command()\ndef fit(rate: float = 0.1): ...\n"


@pytest.mark.parametrize(
    ("before", "after", "commands"),
    [
        ("", "", []),
        ("@app.callback()\ndef main(): ...", "", ["fit"]),
        ("", "app.command()(other)", ["fit"]),
        ("", "app.add_typer(foreign, name='x')", ["fit"]),
    ],
)
def test_one_command_alone_is_the_program_if_nothing_else_is_there(schema, before, after, commands):
    found = schema(ONE.format(before) + after + "\napp()\n")
    assert list(found.commands) == commands
    assert list(found.options) == ([] if commands else ["rate"])
    assert found.strict is not bool(commands)


@pytest.mark.parametrize(
    "line",
    [
        "app.command()(other)",
        "app.add_typer(foreign)",
        "app.add_typer(typer.Typer(), name=NAME())",
        "app.add_typer(typer.Typer())",
    ],
)
def test_an_app_whose_commands_are_not_known_passes_every_word_on(project, fdl, line):
    options = "@app.callback()\ndef main(fast: bool = False): ...\n"
    project(
        {
            "fdl.yml": "commands: {t: }\n",
            "t/fdl.yml": "entry: python train.py\n",
            "t/train.py": f"import typer\napp = typer.Typer()\n{options}{line}\napp()\n",
        }
    )
    done = fdl("--dry-run", "t", "--fast", "fit", "--rate", "2")
    assert done.exit == 0, done.err
    assert "python train.py --fast fit --rate 2" in done.out


CLICK = """
import click

@click.group()
def cli(): ...
@click.group()
def db(): ...
@db.command()
def init(): ...
@db.command()
def drop(): ...
@click.command()
@click.option("--rate", type=float)
def fit(rate): ...
cli.add_command(fit)
cli.add_command(db, "data")
{more}
cli()
"""


@pytest.mark.parametrize("more", ["", "cli.add_command(foreign)"])
def test_commands_that_are_added_to_a_click_group_are_read(schema, more):
    found = schema(CLICK.format(more=more))
    assert list(found.commands) == ["fit", "data"]
    assert list(found.commands["fit"].options) == ["rate"]
    assert list(found.commands["data"].commands) == ["init", "drop"]


def test_a_click_group_with_one_command_stays_a_group(schema):
    text = "import click\n@click.group()\ndef cli(): ...\n@cli.command()\ndef fit(): ...\ncli()\n"
    assert list(schema(text).commands) == ["fit"]


USERS = "import typer\n{}app = typer.Typer()\n@app.command()\ndef add(name: str): ...\n"
MAIN = "import typer\n{}\nmain = typer.Typer()\nmain.add_typer({}, name='users')\nmain()\n"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import users", "users.app"),
        ("from users import app", "app"),
        ("from users import app as one", "one"),
        ("from . import users", "users.app"),
        ("from .users import app", "app"),
        ("from parts import app", "app"),
        ("from inner import again", "again.app"),
    ],
)
def test_apps_in_other_files_are_read(schema, line, name):
    more = {
        "users_py": USERS.format(""),
        "parts_py": "from inner.again import app\n",
        "inner__again_py": USERS.format(""),
    }
    found = schema(MAIN.format(line, name), **more)
    assert list(found.commands) == ["users"]
    assert list(found.commands["users"].commands) == ["add"]


@pytest.mark.parametrize("line", ["from . import settings", "import settings"])
def test_a_class_of_a_module_beside_is_read(schema, line):
    text = f"import tyro\n{line}\ntyro.cli(settings.Config)\n"
    more = "from dataclasses import dataclass\n@dataclass\nclass Config:\n    rate: float = 0.1\n"
    assert list(schema(text, settings_py=more).options) == ["rate"]


def test_files_that_import_each_other_end_the_reading(schema):
    more = USERS.format("from train import main\n")
    found = schema(MAIN.format("import users", "users.app"), users_py=more)
    assert list(found.commands["users"].commands) == ["add"]


def test_a_click_command_in_another_file_is_read(schema):
    fit = "import click\n@click.command('run')\n@click.option('--rate')\ndef fit(rate): ...\n"
    text = "import click\nfrom part import fit\n@click.group()\ndef cli(): ...\n"
    found = schema(f"{text}cli.add_command(fit)\ncli()\n", part_py=fit)
    assert list(found.commands) == ["run"]
    assert list(found.commands["run"].options) == ["rate"]
