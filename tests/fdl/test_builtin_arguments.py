"""What the built-in commands refuse, by the table of what they take."""

from typer.testing import CliRunner

from fdl.app import app
from fdl.cli.builtin_table import TABLE
from fdl.cli.builtins import children
from tests.rows import each_row

REFUSED = {"int": "many", "float": "much"}


def lone_commands():
    """The built-in commands that are not groups, with what they take."""
    return {name: row for name, row in TABLE.items() if not children(name.split())}


def refused_values():
    """Every option and argument of a built-in that has a type or choices, with a wrong value."""
    for name, row in lone_commands().items():
        needed = [one.get("choices", ["x"])[0] for one in row.get("args", ()) if one["required"]]
        for option, taken in row.get("options", {}).items():
            wrong = "nonsense" if taken.get("choices") else REFUSED.get(taken["type"])
            if wrong:
                yield f"--{option}", [*name.split(), *needed, f"--{option}", wrong]
        for place, taken in enumerate(row.get("args", ())):
            if taken.get("choices"):
                yield f"<{taken['name']}>", [*name.split(), *needed[:place], "nonsense"]


def options_with_a_value():
    for name, row in lone_commands().items():
        for option, taken in row.get("options", {}).items():
            if taken["type"] != "bool":
                yield [*name.split(), f"--{option}"]


def refuses(words, option):
    done = CliRunner().invoke(app, words)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert len(errors) == 1
    assert option in errors[0]


@each_row(("option", "words"), list(refused_values()), ids=str)
def test_a_value_of_another_kind_exits_with_2(option, words):
    refuses(words, option)


@each_row("words", list(options_with_a_value()), ids=" ".join)
@each_row("following", ["--dry-run", "--help-me", "--", "-n"])
def test_no_option_takes_another_option_for_its_value(words, following):
    refuses([*words, following], words[-1])


# What fdl itself reads in a text or compares with the project.
@each_row(
    "words",
    [
        "runs list --limit 0",
        "runs list --where lr~~1",
        "runs list --state sleeping",
        "runs list --best :max",
        "runs list --csv --json",
        "runs show nothing",
        "runs prune --keep -1",
        "runs prune --older-than soon",
        "runs prune --keep-best 2",
        "runs prune --checkpoints none-such --keep 1",
        "runs tail --lines -1",
        "runs rm",
        "runs tag",
        "runs import",
        "sweep show nothing",
        "sweep run nothing",
        "plan",
        "plan train --sync-ms 3",
        "plan --try",
        "plan --try train --simulate 40",
        "why",
        "why --run",
        "config set lr",
        "config show --jsn",
        "libtorch install cu1",
        "libtorch install --torch 0.1",
        "libtorch download --cuda x",
        "libtorch download --cpu --cuda 12.8",
        "libtorch build --archs x",
        "libtorch build --archs 8.0 --jobs 0",
        "libtorch exec",
        "skill install --tool none-such",
        "skill install --skill none-such",
        "api-ref --path nowhere",
        "install --check --dev",
        "--dry-run list",
        "--json self schema clear",
        "--json skill list",
    ],
)
def test_what_a_built_in_cannot_use_exits_with_2(monkeypatch, tmp_path, words):
    (tmp_path / "fdl.yml").write_text("commands: {train: {run: x}}")
    run = tmp_path / "runs" / "2026-01-31T10-00-00"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"state": "complete", "started": "2026-01-31T10:00:00Z"}')
    (run / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")


def test_what_fdl_refuses_of_a_command_of_the_project_exits_with_1(fdl, project):
    project({"fdl.yml": "commands: {train: {run: x, args: {lr: 0.1}}}"})
    assert fdl("train", "--lr", "x").exit == 1
    assert fdl("train", "--epochs", "3").exit == 1
