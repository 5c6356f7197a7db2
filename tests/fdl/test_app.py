"""The built-in commands as a Typer application, and the table that is generated from it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fdl.app import app
from fdl.base import output
from fdl.cli import builtins
from fdl.cli.builtin_table import TABLE
from fdl.cli.commands.verb import Group, Verb
from fdl.cli.complete.sources import SOURCES
from fdl.libtorch.catalog import default_version
from fdl.manifest.builtins import BUILTINS, PANELS, PROGRAMS
from fdl.programs.parameters.contract import parse
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
DOCUMENTS = [name for name in TABLE if name not in PROGRAMS]


def call(*words):
    return CliRunner().invoke(app, list(words))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # fdl hands its flags down in these; other tests must not see them.
    for name in ("FLODL_COLOR", "FLODL_VERBOSITY", "FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.setenv(name, "")
    yield tmp_path
    output.configure(None, quiet=False)


def test_a_command_answers_to_typers_own_test_runner():
    done = call("runs", "list")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "there are no runs in runs" in done.stderr
    listed = call("runs", "list", "--json")
    assert json.loads(listed.stdout) == {
        "schema_version": 1, "runs": [], "damaged": [], "queued": []
    }  # fmt: skip


def test_the_application_takes_global_flags_and_reports_errors():
    assert call("--json", "runs", "list").stdout == call("runs", "list", "--json").stdout
    refused = call("--dry-run", "init", "not/a/name")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("error: ")
    assert call("--version").stdout.startswith("flodl-cli ")


def test_the_application_runs_the_commands_of_a_project(folder):
    (folder / "fdl.yml").write_text("commands: {t: {run: exit 3}}")
    assert call("t").exit_code == 3
    assert json.loads(call("list", "--json").stdout)["commands"][0]["command"] == ["t"]


@each_row(
    ("typed", "code", "lines"),
    [
        (
            ["config", "shwo"],
            1,
            [
                "error: unknown command: config shwo",
                "hint: did you mean `fdl config show`?",
                "Usage: fdl config <command>",
                "see fdl config --help",
            ],
        ),
        (
            ["runs", "list", "--jsno"],
            2,
            [
                "error: unknown option `--jsno`, did you mean `--json`?",
                "Usage: fdl runs list [OPTIONS] [<path>...]",
                "see fdl runs list --help",
            ],
        ),
        (
            ["runs", "tail", "--lines", "x"],
            2,
            [
                "error: invalid value `x` for `--lines` -- not an integer",
                "Usage: fdl runs tail [OPTIONS] [<run>]",
                "see fdl runs tail --help",
            ],
        ),
        (
            ["completions", "tcsh"],
            2,
            [
                "error: invalid value `tcsh` for `<shell>` -- allowed: bash, zsh, fish",
                "Usage: fdl self completions [<shell>]",
                "see fdl self completions --help",
            ],
        ),
        (
            ["init"],
            2,
            [
                "error: missing required argument <name>",
                "Usage: fdl init [OPTIONS] <name>",
                "see fdl init --help",
            ],
        ),
        (
            ["add"],
            2,
            [
                "error: missing required argument <target> -- allowed: flodl-hf, hf",
                "Usage: fdl add [OPTIONS] <target>",
                "see fdl add --help",
            ],
        ),
        (
            ["why"],
            2,
            [
                "error: missing required argument <field>",
                "Usage: fdl why [OPTIONS] [<field>] [<command>...]",
                "see fdl why --help",
            ],
        ),
        (
            ["config", "show", "--jsno"],
            2,
            [
                "error: unknown option `--jsno`, did you mean `--json`?",
                "Usage: fdl config show [OPTIONS] [<command>...]",
                "see fdl config show --help",
            ],
        ),
        (
            ["plan", "train", "--simulate", "fast"],
            2,
            [
                "error: invalid value for `--simulate`: expected numbers separated by commas, "
                "such as 40,100",
                "Usage: fdl plan [OPTIONS] [<command>...]",
                "see fdl plan --help",
            ],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_an_error_is_short_and_the_last_thing_printed(typed, code, lines):
    done = call(*typed)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.splitlines() == lines
    assert len(lines) <= 6


def test_requested_help_goes_to_stdout():
    for words in (["runs"], ["runs", "--help"], ["-h", "runs"], ["runs", "nonsense", "--help"]):
        page = call(*words)
        assert (page.exit_code, page.stderr) == (0, "")
        assert page.stdout == call("runs", "--help").stdout
    page = call("runs", "list", "--nonsense", "-h")
    assert (page.exit_code, page.stderr) == (0, "")
    assert "Usage: fdl runs list [OPTIONS] [<path>...]" in page.stdout


def test_help_has_no_colour_for_a_pipe_and_is_as_wide_as_asked(monkeypatch):
    assert "\x1b" not in call("runs", "list", "--help").stdout
    assert "\x1b[" in call("--ansi", "runs", "list", "--help").stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in call("runs", "list", "--help").stdout
    assert "\x1b" not in call("--no-ansi", "runs", "list", "--help").stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in call("runs", "list", "--help").stdout
    for columns in (60, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = call("runs", "list", "--help").stdout.splitlines()
        assert columns - 15 <= max(map(len, lines)) <= columns


def test_rare_options_stand_under_a_heading_of_their_own():
    plan = get_command(app).get_command(None, "plan")
    panels = {one.opts[-1]: one.rich_help_panel for one in plan.params}
    simulation = [name for name, panel in panels.items() if panel == "Simulation"]
    assert simulation == ["--simulate", "--sync-ms", "--batches", "--epochs"]


def described(name):
    """What the table says about a command; of a group with its commands."""
    inner = {one: one.removeprefix(f"{name} ") for one in TABLE if one.startswith(f"{name} ")}
    below = {word: described(one) for one, word in inner.items() if " " not in word}
    return {**TABLE[name], "commands": below} if below else TABLE[name]


@each_row("name", DOCUMENTS)
def test_every_command_and_group_describes_its_arguments(name):
    done = call(*name.split(), "--fdl-schema")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == described(name)
    assert parse(described(name), closed=True).description


def test_what_a_command_describes_is_what_it_takes():
    install = TABLE["libtorch install"]
    assert install["args"] == [
        {
            "name": "variant",
            "type": "string",
            "description": "auto (fits your GPUs), cpu, or a CUDA build such as cu128",
            "default": "auto",
            "completer": "libtorch-names",
            "required": False,
        }
    ]
    assert list(install["options"]) == ["torch", "source", "from", "locked", "global", "dry-run"]
    assert install["options"]["dry-run"]["short"] == "n"
    assert TABLE["libtorch build"]["options"]["jobs"]["default"] == 6
    assert TABLE["add"]["args"][0]["choices"] == ["flodl-hf", "hf"]


def test_the_table_is_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/commands.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_command_stands_in_one_panel():
    assert sorted(BUILTINS) == sorted(name for name in TABLE if " " not in name)
    assert len(set(BUILTINS)) == len(BUILTINS) == sum(map(len, PANELS.values()))


def test_every_command_and_argument_has_a_short_help():
    for name, document in TABLE.items():
        assert 10 < len(builtins.summary(*name.split())) <= 80, name
        if builtins.children(name.split()):
            continue
        for row in (*document.get("args", ()), *document.get("options", {}).values()):
            assert 5 < len(row["description"]) <= 120, (name, row)


def test_completers_are_sources():
    rows = [
        row
        for one in TABLE.values()
        for row in (*one.get("args", ()), *one.get("options", {}).values())
    ]
    named = {row["completer"] for row in rows if "completer" in row}
    assert named == SOURCES.keys() - {"environments"}


def test_the_default_version_in_the_help_is_that_of_the_catalog():
    assert (
        f"(default: {default_version()})"
        in TABLE["libtorch install"]["options"]["torch"]["description"]
    )


@pytest.mark.parametrize(
    ("command", "modules"),
    [
        ("self schema manifest", {"self", "schema"}),
        ("runs list", {"runs", "runs_list"}),
        ("runs tail --help", set()),
    ],
)
def test_only_the_modules_of_the_typed_command_are_imported(
    command: str, modules: set[str], folder: Path
) -> None:
    program = (
        f"import sys\nfrom fdl.cli.entry import main\ncode = main({command.split()})\n"
        "below = 'fdl.cli.commands.'\n"
        "names = {one.split('.')[3] for one in sys.modules if one.startswith(below)}\n"
        "print(*names, file=open('modules', 'w'))\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, check=True)
    assert set(Path("modules").read_text().split()) - {"application", "verb"} == modules


def test_a_group_has_every_command_of_its_modules() -> None:
    from fdl.cli.commands import runs
    from fdl.cli.commands.runs import verbs

    named = verbs.names()
    folder = Path(runs.__file__).parent
    written = [
        name
        for file in folder.glob("runs_*.py")
        for name in re.findall(r'@verbs.command\("([a-z]+)"', file.read_text())
    ]
    assert sorted(named) == sorted(written)
    assert [verbs.built(name).name for name in named] == named


def test_a_command_is_built_when_it_is_named_and_no_other() -> None:
    built = []

    class Noted(Verb):
        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, **more)
            built.append(self.name)

    verbs = Group("tools", "Tools.")
    verbs.command("one", cls=Noted)(lambda: None)
    verbs.command("two", cls=Noted)(lambda: None)
    group = verbs.as_command()
    assert (list(group.commands), built) == (["one", "two"], [])
    assert group.get_command(None, "two").name == "two"
    assert group.get_command(None, "three") is None
    assert built == ["two"]
