"""FdlArgs: typed arguments of any program, used the way a program uses them."""

import enum
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import ClassVar, Literal

import pytest
from pydantic import field_validator

from fdl import FdlArgs, FdlArgsError, arg, option


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Train(FdlArgs):
    """Train a   model."""

    version: ClassVar[str] = "3.1"

    data: Path = arg(help="Folder with the data")
    extra: list[str] = arg(variadic=True)
    epochs: int = option(default=10, short="n", help="Passes over the data")
    lr: float = option(default=1e-3, env="TRAIN_LR")
    size: Size = option(default=Size.SMALL)
    mode: Literal["fast", "exact"] = option(default="fast")
    report: str | None = option(default="report.html")
    note: str | None = option()
    """What to remember about this run."""
    tags: list[str] = option(short="t", env="TRAIN_TAGS")
    dry: bool = option(short="d")
    loud: bool = option(short="l")


def parse(*words: str) -> Train:
    return Train.try_parse_from(words)


def refused(*words: str) -> str:
    with pytest.raises(FdlArgsError) as caught:
        parse(*words)
    assert caught.value.exit_code == 2
    return caught.value.message


def test_absent_options_take_their_defaults():
    args = parse("data")
    assert args.data == Path("data")
    assert (args.epochs, args.lr, args.size, args.mode) == (10, 1e-3, Size.SMALL, "fast")
    assert (args.report, args.note, args.tags, args.extra) == (None, None, [], [])
    assert (args.dry, args.loud) == (False, False)


@pytest.mark.parametrize(
    "words",
    [
        ["--epochs", "3"],
        ["--epochs=3"],
        ["-n", "3"],
        ["-n=3"],
        ["-dln", "3"],
        ["-n", "9", "-n", "3"],
    ],
)
def test_every_spelling_of_a_value_is_understood(words):
    assert parse("data", *words).epochs == 3


def test_clusters_set_every_flag_and_only_the_last_takes_a_value():
    args = parse("data", "-dln", "3")
    assert (args.dry, args.loud, args.epochs) == (True, True, 3)
    assert "must come last" in refused("data", "-ndl", "3")


def test_the_last_scalar_wins_so_the_command_line_beats_generated_flags():
    assert parse("data", "--epochs", "3", "--epochs", "7").epochs == 7


def test_a_bare_option_takes_its_declared_default():
    assert parse("data", "--report").report == "report.html"
    assert parse("--report", "--epochs", "2", "data").report == "report.html"
    assert parse("data", "--report", "x.html").report == "x.html"
    assert refused("data", "--note") == "`--note` requires a value"


def test_lists_split_commas_repeat_and_drop_blanks():
    assert parse("data", "--tags", "a,b,,", "-t", "c").tags == ["a", "b", "c"]


def test_negative_numbers_are_values_of_numeric_options_only():
    assert parse("data", "--lr", "-1e-2").lr == -1e-2
    assert refused("data", "--note", "-1") == "`--note` requires a value"
    assert parse("data", "--note=-1").note == "-1"


def test_a_double_dash_ends_the_flags():
    args = parse("data", "--", "--epochs", "-")
    assert args.extra == ["--epochs", "-"]
    assert args.epochs == 10


def test_the_environment_stands_between_argv_and_default(monkeypatch):
    monkeypatch.setenv("TRAIN_LR", "0.5")
    monkeypatch.setenv("TRAIN_TAGS", "x,y")
    assert parse("data").lr == 0.5
    assert parse("data").tags == ["x", "y"]
    assert parse("data", "--lr=0.25").lr == 0.25
    monkeypatch.setenv("TRAIN_LR", "")
    assert parse("data").lr == 1e-3
    monkeypatch.setenv("TRAIN_LR", "fast")
    assert refused("data") == "invalid value `fast` for `--lr` -- expected float"


def test_choices_come_from_enums_and_literals():
    assert parse("data", "--size", "large").size is Size.LARGE
    assert parse("data", "--mode=exact").mode == "exact"
    assert (
        refused("data", "--mode", "x") == "invalid value `x` for `--mode` -- allowed: fast, exact"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing required argument <data>"),
        (["data", "--epoch", "3"], "unknown flag `--epoch`, did you mean `--epochs`?"),
        (["data", "--nothing-like-it"], "unknown flag `--nothing-like-it`"),
        (["data", "-x"], "unknown flag `-x`"),
        (["data", "--dry=1"], "`--dry` takes no value"),
        (["data", "--epochs", "many"], "invalid value `many` for `--epochs` -- expected int"),
        (["data", "--epochs", "1.5"], "invalid value `1.5` for `--epochs` -- expected int"),
        (["data", "--tags"], "`--tags` requires a value"),
    ],
)
def test_bad_arguments_are_refused_in_words(words, message):
    assert refused(*words) == message


def test_surplus_positionals_are_refused():
    class One(FdlArgs):
        data: str = arg()

    with pytest.raises(FdlArgsError, match="unexpected argument `b`"):
        One.try_parse_from(["a", "b"])


def test_validators_of_the_class_are_argument_errors():
    class Checked(FdlArgs):
        epochs: int = option(default=1)

        @field_validator("epochs")
        @classmethod
        def positive(cls, value: int) -> int:
            if value < 1:
                raise ValueError("must be at least 1")
            return value

    assert Checked.try_parse_from(["--epochs", "2"]).epochs == 2
    with pytest.raises(FdlArgsError, match=r"`--epochs`: must be at least 1"):
        Checked.try_parse_from(["--epochs", "0"])


def declare(**fields: object) -> type[FdlArgs]:
    annotations = {name: kind for name, (kind, _) in fields.items()}  # type: ignore[misc]
    values = {name: value for name, (_, value) in fields.items()}  # type: ignore[misc]
    return type(
        "Bad", (FdlArgs,), {"__annotations__": annotations, "__module__": __name__, **values}
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"help": (str, option(default=""))}, "Bad.help: the long name is reserved"),
        ({"x": (str, option(default="", short="q"))}, "Bad.x: the short name is reserved"),
        ({"x": (str, option(default="", short="ab"))}, "Bad.x: the short name must be one"),
        ({"x": (int, option())}, "Bad.x: an option of a plain type needs a default"),
        ({"x": (bool, option(env="X"))}, "Bad.x: a flag takes neither default nor env"),
        ({"x": (bool, arg())}, "Bad.x: a positional cannot be a bool"),
        ({"x": (list[str], arg())}, "Bad.x: a list positional must be variadic"),
        ({"x": (int, 3)}, r"Bad.x: declare the field with option"),
        ({"x": (dict, option(default={}))}, "Bad.x: type .* is none of"),
        ({"x": (int | str, option(default=1))}, "Bad.x: a union is only possible"),
        (
            {"a": (str, arg(default="")), "b": (str, arg())},
            "Bad.b: a required positional cannot follow `a`",
        ),
        (
            {"a": (list[str], arg(variadic=True)), "b": (str, arg(default=""))},
            "Bad.b: nothing may follow the variadic `a`",
        ),
        (
            {"a": (int, option(default=1, short="x")), "b": (int, option(default=1, short="x"))},
            "Bad.b: `-x` is taken by a",
        ),
    ],
)
def test_impossible_declarations_fail_when_the_class_is_made(fields, message):
    with pytest.raises(TypeError, match=message):
        declare(**fields)


@pytest.fixture
def program(tmp_path):
    """Run a small program that parses and prints its arguments."""
    script = tmp_path / "main.py"
    script.write_text(
        dedent("""
        import json
        from fdl import FdlArgs, option

        class Args(FdlArgs):
            '''Train a digit classifier.'''
            epochs: int = option(default=10, short="n", help="Passes over the data")
            lr: float = option(default=0.1, env="LR")
            output: str = option(default="runs")

        print(json.dumps(Args.parse_or_schema().resolved()))
        """)
    )

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        base = {k: v for k, v in os.environ.items() if k not in ("FDL_PLAN", "LR")}
        return subprocess.run(
            [sys.executable, str(script), *words],
            capture_output=True,
            text=True,
            env={**base, "COLUMNS": "80", **env},
        )

    return run


def test_help_is_asked_for_on_stdout_and_forced_on_stderr(program):
    asked = program("--help")
    assert asked.returncode == 0
    assert asked.stderr == ""
    assert asked.stdout == dedent("""\
        Train a digit classifier.

        Usage: main.py [OPTIONS]

        Options:
          -n, --epochs INT   Passes over the data [default: 10]
              --lr FLOAT     [default: 0.1] [env: LR]
              --output TEXT  [default: runs]
          -h, --help         Show this help
        """)
    forced = program("--epohcs", "3")
    assert forced.returncode == 2
    assert forced.stdout == ""
    assert forced.stderr.startswith(
        "error: unknown flag `--epohcs`, did you mean `--epochs`?\n\nTrain a digit classifier."
    )


def test_the_schema_is_printed_as_json(program):
    done = program("--fdl-schema")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "description": "Train a digit classifier.",
        "options": {
            "epochs": {
                "type": "int",
                "description": "Passes over the data",
                "default": 10,
                "short": "n",
            },
            "lr": {"type": "float", "default": 0.1, "env": "LR"},
            "output": {"type": "string", "default": "runs"},
        },
        "strict": True,
    }


def test_the_schema_names_arguments_and_choices():
    document = Train.schema()
    assert document["description"] == "Train a model."
    assert document["args"] == [
        {"name": "data", "type": "path", "description": "Folder with the data", "required": True},
        {"name": "extra", "type": "list[string]", "required": False, "variadic": True},
    ]
    assert document["options"]["size"]["choices"] == ["small", "large"]
    assert document["options"]["note"]["description"] == "What to remember about this run."


def test_every_value_knows_where_it_came_from(program):
    plan = {
        "command": ["train", "quick"],
        "argv": ["python", "main.py", "--epochs", "3", "--output", "runs/a", "--output=runs/b"],
        "flags": [
            {"index": 2, "count": 2, "origin": "train/fdl.yml:9:13"},
            {"index": 4, "count": 2, "origin": "train/fdl.yml:4:8"},
        ],
    }
    done = program(*plan["argv"][2:], FDL_PLAN=json.dumps(plan), LR="0.5")
    assert json.loads(done.stdout) == {
        "epochs": {"value": 3, "origin": "train/fdl.yml:9:13"},
        "lr": {"value": 0.5, "origin": "env LR"},
        "output": {"value": "runs/b", "origin": "command line"},
    }


def test_a_plan_for_other_arguments_is_not_believed(program):
    plan = {
        "command": ["train"],
        "argv": ["python", "main.py", "--epochs", "3"],
        "flags": [{"index": 2, "count": 2, "origin": "fdl.yml:1:1"}],
    }
    done = program("--epochs", "4", FDL_PLAN=json.dumps(plan))
    assert json.loads(done.stdout)["epochs"] == {"value": 4, "origin": "command line"}
    assert json.loads(program(FDL_PLAN="{broken").stdout)["lr"]["origin"] == "default"


def test_version_is_answered_when_the_class_has_one(capsys):
    with pytest.raises(SystemExit) as left:
        Train.parse_or_schema(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.endswith(" 3.1\n")
