"""A program with typed arguments, as its user meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Literal

import pytest

from fdl import FdlArgs, arg, option
from fdl.schema.contract import ContractError, parse
from fdl.secrets import REDACTED
from tests import fork_server

PROGRAM = """
    from pathlib import Path
    from typing import ClassVar

    from fdl import FdlArgs, arg, option


    class Args(FdlArgs):
        '''Train a
        digit classifier.

        Needs no GPU.
        '''

        version: ClassVar[str] = "3.1"

        data: Path = arg(help="Folder with the digits")
        epochs: int = option(default=10, short="n", help="Passes over the data")
        model: str = option(default="cnn", choices=["cnn", "mlp"])
        lr: float = option(default=0.1, env="LR")
        api_token: str = option(default="hunter2-default")
        tags: list[str] = option()
        dry: bool = option(help="Only look")


    print(Args.parse_or_schema().epochs)
"""

PAGE = """\
    Usage: main.py [OPTIONS] <data>

    Train a digit classifier.

    Needs no GPU.

    Arguments:
      <data>  Folder with the digits

    Options:
      -n, --epochs INT      Passes over the data [default: 10]
          --model TEXT      [default: cnn] [possible: cnn, mlp]
          --lr FLOAT        [default: 0.1] [env: LR]
          --api-token TEXT  [default: <secret>]
          --tags TEXT       [repeatable, or separated by commas]
          --dry             Only look
      -h, --help            Show this page
      -V, --version         Show the version
"""


@pytest.fixture
def program(tmp_path):
    """Type ``python main.py WORDS``."""
    script = tmp_path / "main.py"
    script.write_text(dedent(PROGRAM))

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        hidden = ("FDL_PLAN", "LR", "FORCE_COLOR", "NO_COLOR", "FLODL_COLOR")
        base = {name: value for name, value in os.environ.items() if name not in hidden}
        return fork_server.python(str(script), *words, env={**base, "COLUMNS": "80", **env})

    return run


def test_help_is_asked_for_on_stdout(program):
    for words in (["--help"], ["-h"], ["x", "--dry", "--help", "--nonsense"]):
        asked = program(*words)
        assert (asked.returncode, asked.stderr) == (0, "")
        assert asked.stdout == dedent(PAGE)


@pytest.mark.case("cli", 45)
def test_lists_add_up_typos_are_guessed_and_help_is_forced_on_stderr(program):
    from tests.fdl.args.test_parse import parse as parsed

    assert parsed("data", "--tags", "a,b", "-t", "c").tags == ["a", "b", "c"]
    typo = program("x", "--modl", "cnn")
    assert typo.returncode == 2
    assert "unknown flag `--modl`, did you mean `--model`?" in typo.stderr
    missing = program()
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == f"error: missing required argument <data>\n\n{dedent(PAGE)}"


def test_help_behind_a_double_dash_is_an_argument(program):
    done = program("--", "--help")
    assert (done.returncode, done.stdout) == (0, "10\n")


def test_pages_are_coloured_like_those_of_fdl(program):
    assert "\x1b[" not in program("--help").stdout
    assert "\x1b[1mUsage:\x1b[0m" in program("--help", FORCE_COLOR="1").stdout
    assert "\x1b[" not in program("--help", FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "\x1b[" in program("--help", NO_COLOR="1", FLODL_COLOR="always").stdout
    assert "\x1b[1;31merror\x1b[0m: " in program(FORCE_COLOR="1").stderr


def test_a_page_fits_its_terminal(program):
    for columns in (40, 60, 100):
        lines = program("--help", COLUMNS=str(columns)).stdout.splitlines()
        assert max(map(len, lines)) <= columns


def test_version_is_answered_when_the_class_has_one(program, tmp_path):
    for flag in ("--version", "-V"):
        done = program(flag)
        assert (done.returncode, done.stdout) == (0, "main.py 3.1\n")
    script = tmp_path / "main.py"
    script.write_text(script.read_text().replace('    version: ClassVar[str] = "3.1"\n', ""))
    assert "unknown flag `--version`" in program("x", "--version").stderr
    assert "--version" not in program("--help").stdout


@pytest.mark.case("cli", 47)
def test_the_schema_is_printed_as_json_that_validates(program):
    done = program("--fdl-schema")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document == {
        "description": "Train a digit classifier. Needs no GPU.",
        "args": [
            {
                "name": "data",
                "type": "path",
                "description": "Folder with the digits",
                "required": True,
            }
        ],
        "options": {
            "epochs": {
                "type": "int",
                "description": "Passes over the data",
                "default": 10,
                "short": "n",
            },
            "model": {"type": "string", "default": "cnn", "choices": ["cnn", "mlp"]},
            "lr": {"type": "float", "default": 0.1, "env": "LR"},
            "api-token": {"type": "string"},
            "tags": {"type": "list[string]"},
            "dry": {"type": "bool", "description": "Only look"},
        },
        "strict": True,
        "origins": True,
    }
    schema = parse(document)
    assert [one.name for one in schema.parameters] == ["data", *document["options"]]
    document["options"]["help"] = {"type": "bool"}
    with pytest.raises(ContractError, match="fdl itself answers to `--help`"):
        parse(document)


class Everything(FdlArgs):
    data: Path = arg()
    note: str = arg(default="x")
    files: list[int] = arg(variadic=True)
    flag: bool = option(short="f")
    plain: Literal[1, 2] = option(default=1)
    bare: Path | None = option(default="r.html", env="BARE")
    absent: float | None = option()
    several: list[int] = option(default=[1], completer="seq 9")


def test_fdl_reads_back_what_a_program_says():
    said = Everything._parameters
    for one, read in zip(said, parse(Everything.schema()).parameters, strict=True):
        for fact in ("name", "kind", "type", "shape", "short", "choices", "env", "commas"):
            assert getattr(read, fact) == getattr(one, fact), (one.name, fact)
        for fact in ("variadic", "required", "completer", "help"):
            assert getattr(read, fact) == getattr(one, fact), (one.name, fact)
        assert str(read.default) == str(one.default)


def test_a_schema_behind_a_double_dash_is_an_argument(program):
    assert program("--", "--fdl-schema").stdout == "10\n"


def test_a_secret_default_is_nowhere(program):
    for words in (["--help"], ["--fdl-schema"], ["--nonsense"], ["x", "--api-token"]):
        done = program(*words)
        assert "hunter2" not in done.stdout + done.stderr
    assert REDACTED in program("--help").stdout


def test_a_program_started_by_fdl_calls_itself_what_was_typed(program):
    plan = json.dumps({"command": ["train", "quick"], "argv": ["python"]})
    assert program("--help", FDL_PLAN=plan).stdout.startswith("Usage: fdl train quick [OPTIONS]")


def test_asking_for_the_schema_loads_little(tmp_path):
    code = "import sys, fdl.args, fdl.args.parser; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    script = Path(tmp_path / "exposed.py")
    script.write_text(
        "import argparse, sys\nfrom fdl.args import expose\n"
        "expose(argparse.ArgumentParser(), [])\n"
        "print(sorted({'pydantic', 'click', 'typer'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
