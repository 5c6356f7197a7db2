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
from fdl.base.secrets import REDACTED
from fdl.programs.parameters.contract import ContractError, parse
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

USAGE = "python main.py [OPTIONS] <data>"
PAGE = """\
    Usage: python main.py [OPTIONS] <data>

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
        return fork_server.python(
            *("main.py", *words), cwd=tmp_path, env={**base, "COLUMNS": "80", **env}, abrupt=True
        )

    return run


def test_help_is_asked_for_on_stdout(program):
    for words in (["--help"], ["-h"], ["x", "--dry", "--help", "--nonsense"]):
        asked = program(*words)
        assert (asked.returncode, asked.stderr) == (0, "")
        assert asked.stdout == dedent(PAGE)


@pytest.mark.case("cli", 45)
def test_lists_add_up_typos_are_guessed_and_an_error_says_where_help_is(program):
    from tests.fdl.args.test_parse import parse as parsed

    assert parsed("data", "--tags", "a,b", "-t", "c").tags == ["a", "b", "c"]
    typo = program("x", "--modl", "cnn")
    assert typo.returncode == 2
    assert typo.stderr == (
        "error: unknown option `--modl`, did you mean `--model`?\n"
        f"Usage: {USAGE}\n"
        "see python main.py --help\n"
    )
    missing = program()
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == (
        f"error: missing required argument <data>\nUsage: {USAGE}\nsee python main.py --help\n"
    )


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (["x", "--epochs", "many"], {}, "invalid value `many` for `--epochs` -- not an integer"),
        (["x"], {"LR": "fast"}, "invalid value `fast` for `--lr` -- not a number (env LR)"),
        (["x", "--model=vgg"], {}, "invalid value `vgg` for `--model` -- allowed: cnn, mlp"),
        (["x", "--dry=1"], {}, "`--dry` takes no value"),
        (["x", "y"], {}, "unexpected argument `y`"),
    ],
)
def test_an_error_is_short_and_names_what_it_is_about(program, words, environment, said):
    done = program(*words, **environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {said}\nUsage: {USAGE}\nsee python main.py --help\n"


@pytest.mark.usefixtures("program")
def test_an_error_loads_neither_rich_nor_typer(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        "import atexit, sys\n"
        "atexit.register(lambda: print(sorted({'rich', 'typer', 'click'} & set(sys.modules))))\n"
        + script.read_text()
    )
    for words in (["--nonsense"], ["--help"], ["x"]):
        command = [sys.executable, "main.py", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stdout.endswith("[]\n")


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
    assert "unknown option `--version`" in program("x", "--version").stderr
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
    several: list[int] = option(default=[1], completer="seq 9", group="Some more")


def test_fdl_reads_back_what_a_program_says():
    said = Everything._parameters
    for one, read in zip(said, parse(Everything.schema()).parameters, strict=True):
        for fact in ("name", "kind", "type", "shape", "short", "choices", "env", "commas"):
            assert getattr(read, fact) == getattr(one, fact), (one.name, fact)
        for fact in ("variadic", "required", "completer", "help", "group"):
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
    plan = {"command": ["train", "quick"], "argv": ["python"], "preset": "quick"}
    started = {"FDL_PLAN": json.dumps(plan)}
    assert program("--help", **started).stdout.startswith("Usage: fdl train quick [OPTIONS]")
    # The page of the preset does not list the options of the program.
    assert program(**started).stderr.endswith(
        "Usage: fdl train quick [OPTIONS] <data>\nsee fdl train --help\n"
    )


def test_a_program_in_a_script_of_the_manifest_calls_itself_by_its_own_name(program):
    plan = json.dumps({"kind": "run", "command": ["test"], "argv": ["sh", "-c", "…"]})
    assert program(FDL_PLAN=plan).stderr.endswith("see python main.py --help\n")


def test_a_program_calls_itself_as_it_can_be_started_again(tmp_path):
    (tmp_path / "pack").mkdir()
    for name in ("tool", "my main.py", "pack/__main__.py", "pack/other.py"):
        (tmp_path / name).write_text(dedent(PROGRAM))
    for words, usage in (
        (["-m", "pack"], "python -m pack"),
        (["-m", "pack.other"], "python -m pack.other"),
        ([str(tmp_path / "tool")], "tool"),
        ([str(tmp_path / "pack/other.py")], "python pack/other.py"),
        (["my main.py"], "python 'my main.py'"),
    ):
        done = fork_server.python(*words, "--help", cwd=tmp_path, abrupt=True)
        assert done.stdout.startswith(f"Usage: {usage} [OPTIONS] <data>\n"), done.stderr


def test_a_command_of_a_program_is_part_of_its_name(program, tmp_path):
    script = tmp_path / "main.py"
    script.write_text(script.read_text().replace("or_schema()", "or_schema(sys.argv[2:])"))
    script.write_text(f"import sys\n{script.read_text()}")
    assert program("show", "-h").stdout.startswith("Usage: python main.py show [OPTIONS] <data>")
    assert program("show", "x", "--nope").stderr.endswith("see python main.py show --help\n")
    assert program("show").stderr.endswith("see python main.py --help\n")


GROUPED = """
    from fdl import FdlArgs, option


    class Base(FdlArgs):
        collapsed = {"Data loading": "reading files"}

        workers: int = option(default=0, group="Data loading", help="Processes that read")


    class Args(Base):
        '''Train.'''

        epochs: int = option(default=10)
        cache: bool = option(group="data  loading")
        level: str = option(default="info", choices=["info", "debug"], group="logging")


    print(Args.parse_or_schema().epochs)
"""


@pytest.fixture
def grouped(program, tmp_path):
    (tmp_path / "main.py").write_text(dedent(GROUPED))
    return program


def test_groups_have_headings_and_a_collapsed_one_is_a_line(grouped):
    assert grouped("--help").stdout == dedent("""\
        Usage: python main.py [OPTIONS]

        Train.

        Options:
              --epochs INT  [default: 10]
          -h, --help        Show this page; `--help all` shows every option

        Logging:
              --level TEXT  [default: info] [possible: info, debug]

        More options:
          --help data-loading  2 options for reading files
        """)


def test_a_group_is_shown_by_its_name(grouped):
    group = dedent("""\
        Data loading (reading files):
              --workers INT  Processes that read [default: 0]
              --cache
        """)
    page = grouped("--help", "data-loading")
    assert (page.returncode, page.stderr) == (0, "")
    assert page.stdout == f"Usage: python main.py [OPTIONS]\n\n{group}"
    assert grouped("-h", "Data loading").stdout == page.stdout
    everything = grouped("--help", "all").stdout
    assert group in everything
    assert "--epochs INT" in everything
    assert "Logging:" in everything
    assert "More options" not in everything
    assert grouped("--help", "--epochs", "3").stdout == grouped("--help").stdout


def test_an_unknown_group_is_refused_with_the_groups(grouped):
    done = grouped("--help", "loging")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: no group of options is called `loging`; groups: logging, data-loading, all\n"
        "hint: did you mean `--help logging`?\n"
        "Usage: python main.py [OPTIONS]\n"
        "see python main.py --help\n"
    )


def test_the_schema_says_the_groups(grouped):
    document = json.loads(grouped("--fdl-schema").stdout)
    groups = {name: one.get("group") for name, one in document["options"].items()}
    assert groups == {
        "workers": "Data loading",
        "epochs": None,
        "cache": "data loading",
        "level": "logging",
    }
    assert document["collapsed"] == {"Data loading": "reading files"}


def test_only_a_group_with_options_can_be_collapsed():
    with pytest.raises(TypeError, match=r"Bad\.collapsed: no option has the group `nope`"):

        class Bad(FdlArgs):
            collapsed = {"nope": "nothing"}  # noqa: RUF012


def test_the_parser_loads_little():
    code = "import sys, fdl.programs.args; from fdl.programs.parameters import parser; "
    code += "print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
