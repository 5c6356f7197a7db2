"""Programs with parsers of their own answer ``--fdl-schema`` after one line."""

import json
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from fdl.base.secrets import REDACTED
from fdl.programs.args import expose
from fdl.programs.parameters.contract import parse
from tests import fork_server
from tests.rows import each_row

ARGPARSE = """
    import argparse
    import enum
    from pathlib import Path
    from fdl.programs.args import expose

    class Color(enum.Enum):
        RED = "red"
        BLUE = "blue"

    parser = argparse.ArgumentParser(prog="train", description="Train with %(prog)s.")
    parser.add_argument("data_dir", type=Path, help="Folder")
    parser.add_argument("stage", nargs="?", choices=["fit", "test"], default="fit")
    parser.add_argument("-n", "--epochs", type=int, default="10", help="Passes (of %(default)s)")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1, choices=[1, 0.5])
    parser.add_argument("--color", type=Color, choices=list(Color), default=Color.RED)
    parser.add_argument("--fast", action=argparse.BooleanOptionalAction, default=True, help="Go")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--no-cache", dest="cache", action="store_false")
    parser.add_argument("--tag", action="append", default=["a"])
    parser.add_argument("-v", "--verbose", action="count", default=0)
    parser.add_argument("--log", type=argparse.FileType("w"), default="-")
    parser.add_argument("--mode", type=str.lower, choices=["a", "b"])
    parser.add_argument("--api-key", default="hunter2", help="Key (default: %(default)s)")
    parser.add_argument("--hub-token", default="hunter2", help="Now %(default)s")
    parser.add_argument("--secret-plan", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version="1")
    parser.add_argument("--env", help="fdl answers to this")
    expose(parser)
    print("went on with", parser.parse_args().epochs)
"""

CLICK = """
    import click
    from fdl.programs.args import expose

    @click.command(context_settings={"help_option_names": ["-h", "--help"]})
    @click.argument("data", type=click.Path())
    @click.argument("files", nargs=-1)
    @click.option("-n", "--epochs", default=10, help="Passes over\\n  the data", envvar="EPOCHS")
    @click.option("--lr", type=click.FloatRange(0, 1), default=0.5)
    @click.option("--mode", type=click.Choice(["fast", "exact"]), default="fast")
    @click.option("--loose", type=click.Choice(["A", "B"], case_sensitive=False))
    @click.option("--shuffle/--keep-order", default=True)
    @click.option("--dry", is_flag=True)
    @click.option("--tag", multiple=True)
    @click.option("--answer", type=bool, default=False)
    @click.option("--now", default=lambda: "later")
    def main(**options):
        '''Train a model.'''
        print("went on with", options["epochs"])

    expose(main)
    main()
"""

TYPER = """
    from pathlib import Path
    from typing import Annotated, Literal, Optional
    import typer
    from fdl.programs.args import expose

    def main(
        data: Annotated[Path, typer.Argument(help="Folder")],
        epochs: Annotated[int, typer.Option("-n", "--epochs", envvar="EPOCHS")] = 10,
        mode: Literal["fast", "exact"] = "fast",
        tags: Annotated[Optional[list[str]], typer.Option("--tag")] = None,
        shuffle: bool = True,
    ) -> None:
        '''Train a model.'''
        print("went on with", epochs)

    EXPOSED
"""

DATACLASS = """
    from dataclasses import dataclass, field
    from pathlib import Path
    from typing import Literal, Optional
    from fdl.programs.args import expose

    @dataclass
    class Config:
        '''Train a model.'''

        data: Path
        batch_size: int = 32
        mode: Literal["fast", "exact"] = "fast"
        note: Optional[str] = None
        tags: list[str] = field(
            default_factory=lambda: ["a"], metadata={"help": "To find it", "group": "Run"}
        )
        sizes: Optional[list[int]] = None
        shuffle: bool = True
        anything: dict = field(default_factory=dict)
        computed: int = field(init=False, default=3)

    expose(Config)
    print("went on with", Config(Path("x")).batch_size)
"""


@pytest.fixture
def program(tmp_path):
    """Write a program and type ``python main.py WORDS``."""

    def run(text: str, *words: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "main.py"
        script.write_text(dedent(text))
        return fork_server.python(str(script), *words)

    return run


@pytest.fixture
def schema(program):
    def ask(text: str) -> dict[str, object]:
        done = program(text, "--fdl-schema")
        assert (done.returncode, done.stderr) == (0, "")
        document = json.loads(done.stdout)
        parse(document)
        return document

    return ask


def test_argparse_says_what_it_takes(schema):
    assert schema(ARGPARSE) == {
        "description": "Train with train.",
        "args": [
            {"name": "data-dir", "type": "path", "description": "Folder", "required": True},
            {
                "name": "stage",
                "type": "string",
                "default": "fit",
                "choices": ["fit", "test"],
                "required": False,
            },
        ],
        "options": {
            "epochs": {"type": "int", "description": "Passes (of 10)", "default": 10, "short": "n"},
            "batch_size": {"type": "int", "default": 32},
            "lr": {"type": "float", "default": 1, "choices": [1, 0.5]},
            "color": {"type": "string", "default": "red", "choices": ["red", "blue"]},
            "fast": {
                "type": "bool",
                "description": "Go",
                "default": True,
                "negatives": ["--no-fast"],
            },
            "dry": {"type": "bool"},
            "no-cache": {"type": "bool"},
            "tag": {"type": "list[string]", "default": ["a"], "commas": False},
            "verbose": {"type": "bool", "flags": ["-v", "--verbose"], "counted": True},
            "log": {"type": "path", "default": "-"},
            "mode": {"type": "string"},
            "api-key": {"type": "string", "description": "Key"},
            "hub-token": {"type": "string", "description": f"Now {REDACTED}"},
        },
        "strict": False,
    }


def groups(document):
    return {name: one["group"] for name, one in document["options"].items() if "group" in one}


def test_the_groups_of_argparse_are_kept(schema):
    document = schema("""
        import argparse
        from fdl.programs.args import expose

        parser = argparse.ArgumentParser()
        parser.add_argument("--plain")
        parser.add_argument_group("options").add_argument("--usual")
        data = parser.add_argument_group("Data  loading", "How samples are read")
        data.add_argument("--workers", type=int)
        data.add_mutually_exclusive_group().add_argument(
            "--cache", action=argparse.BooleanOptionalAction
        )
        parser.add_argument_group().add_argument("--untitled")
        expose(parser)
        """)
    assert list(document["options"]) == [
        "plain",
        "usual",
        "workers",
        "cache",
        "untitled",
    ]
    assert groups(document) == dict.fromkeys(("workers", "cache"), "Data loading")


def test_the_panels_of_typer_are_kept(schema):
    document = schema("""
        from typing import Annotated
        import typer
        from fdl.programs.args import expose

        def main(
            plain: int = 1,
            workers: Annotated[int, typer.Option(rich_help_panel="Data")] = 0,
            cache: Annotated[bool, typer.Option(rich_help_panel="Data")] = True,
        ) -> None: ...

        expose(main)
        """)
    assert groups(document) == dict.fromkeys(("workers", "cache"), "Data")


def test_argparse_says_what_each_subcommand_takes(schema):
    document = schema("""
        import argparse
        from fdl.programs.args import expose

        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument("--mode", choices=["a"])
        parser.add_argument("--own", choices=["a"])
        commands = parser.add_subparsers(dest="what_to_do", required=True)
        train = commands.add_parser("train", aliases=["t"])
        train.add_argument("--mode", choices=["b"])
        expose(parser)
        """)
    assert document == {
        "args": [
            {
                "name": "what-to-do",
                "type": "string",
                "choices": ["train", "t"],
                "required": True,
            }
        ],
        # What `--mode` may be depends on where it stands.
        "options": {"mode": {"type": "string"}, "own": {"type": "string", "choices": ["a"]}},
        "commands": {
            name: {"options": {"mode": {"type": "string", "choices": ["b"]}}, "strict": False}
            for name in ("train", "t")
        },
        "strict": False,
    }


@pytest.mark.parametrize(
    ("declaration", "strict"),
    [
        ('add_argument("-n", "--epochs")', True),
        ('add_argument("--epochs", "--passes")', True),
        ('add_argument("-n")', True),
        ('add_argument("-e", "--epochs")', True),
        ('add_argument("-epochs")', True),
        ('add_argument("--ep/ochs")', False),
        ('add_argument("--epochs", help=argparse.SUPPRESS)', False),
        ('add_argument("rest", nargs=argparse.REMAINDER)', False),
    ],
)
def test_argparse_is_strict_only_where_everything_is_said(schema, declaration, strict):
    document = schema(f"""
        import argparse
        from fdl.programs.args import expose

        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.{declaration}
        expose(parser)
        """)
    assert document["strict"] is strict


@pytest.mark.parametrize(
    ("declarations", "kept"),
    [
        (["'a'", "'b', nargs='?'", "'c', nargs='*'"], ["a", "b", "c"]),
        (["'a'", "'b', nargs='*'", "'c'"], ["a"]),
        (["'a', nargs='?'", "'b'"], []),
        (["'a'", "'b', nargs=2", "'c'"], ["a"]),
        (["'a'", "'b', help=argparse.SUPPRESS", "'c'"], ["a"]),
    ],
)
def test_positionals_that_only_argparse_can_tell_apart_are_left_out(schema, declarations, kept):
    calls = "".join(f"parser.add_argument({words});" for words in declarations)
    document = schema(f"""
        import argparse
        from fdl.programs.args import expose

        parser = argparse.ArgumentParser()
        {calls}
        expose(parser)
        """)
    assert [one["name"] for one in document.get("args", [])] == kept


def test_a_click_command_says_what_it_takes(schema):
    assert schema(CLICK) == {
        "description": "Train a model.",
        "args": [
            {"name": "data", "type": "path", "required": True},
            {"name": "files", "type": "list[string]", "required": False, "variadic": True},
        ],
        "options": {
            "epochs": {
                "type": "int",
                "description": "Passes over the data",
                "default": 10,
                "short": "n",
                "env": "EPOCHS",
            },
            "lr": {"type": "float", "default": 0.5},
            "mode": {"type": "string", "default": "fast", "choices": ["fast", "exact"]},
            "loose": {"type": "string", "choices": ["A", "B"], "ignore_case": True},
            "shuffle": {"type": "bool", "default": True, "negatives": ["--keep-order"]},
            "dry": {"type": "bool"},
            "tag": {"type": "list[string]", "commas": False},
            "answer": {"type": "string", "default": "False"},
            "now": {"type": "string"},
        },
        "strict": True,
    }


def test_a_click_group_says_what_its_commands_take(schema):
    document = schema("""
        import click
        from fdl.programs.args import expose

        @click.group()
        @click.option("--mode", type=click.Choice(["a"]))
        @click.option("--own", type=click.Choice(["a"]))
        def main(mode, own): pass

        @main.command()
        @click.option("--mode")
        def train(mode): pass

        expose(main)
        """)
    assert document == {
        "args": [{"name": "command", "type": "string", "choices": ["train"], "required": True}],
        "options": {"mode": {"type": "string"}, "own": {"type": "string", "choices": ["a"]}},
        "commands": {"train": {"options": {"mode": {"type": "string"}}, "strict": True}},
        "strict": False,
    }


def test_a_typer_app_says_what_its_commands_take(schema):
    document = schema("""
        import typer
        from fdl.programs.args import expose

        app = typer.Typer()

        @app.command()
        def fit(max_epochs: int = 3): pass

        @app.command()
        def test(verbose: int = typer.Option(0, "--verbose", "-w", count=True)): pass

        expose(app)
        """)
    fit, test = document["commands"]["fit"], document["commands"]["test"]
    assert fit["options"]["max-epochs"] == {"type": "int", "default": 3}
    assert test["options"]["verbose"] == {"type": "bool", "short": "w", "counted": True}


@pytest.mark.parametrize(
    "exposed",
    [
        "expose(main); typer.run(main)",
        "app = typer.Typer(add_completion=False); app.command()(main); expose(app); app()",
    ],
)
def test_typer_says_what_it_takes(schema, program, exposed):
    text = TYPER.replace("EXPOSED", exposed)
    assert schema(text) == {
        "description": "Train a model.",
        "args": [{"name": "data", "type": "path", "description": "Folder", "required": True}],
        "options": {
            "epochs": {"type": "int", "default": 10, "short": "n", "env": "EPOCHS"},
            "mode": {"type": "string", "default": "fast", "choices": ["fast", "exact"]},
            "tag": {"type": "list[string]", "commas": False},
            "shuffle": {"type": "bool", "default": True, "negatives": ["--no-shuffle"]},
        },
        "strict": True,
    }
    assert program(text, "x", "-n", "4").stdout == "went on with 4\n"


def test_a_mark_names_what_completes_an_argument_of_typer(schema):
    text = TYPER.replace("EXPOSED", "expose(main); typer.run(main)")
    text = text.replace('help="Folder")', 'help="Folder"), Complete("ls -d */")')
    mark = "from fdl.programs.args.annotations import Complete"
    text = text.replace("import expose", f"import expose\n    {mark}")
    document = schema(text)
    assert document["args"][0]["completer"] == "ls -d */"
    assert "completer" not in document["options"]["epochs"]


def test_a_dataclass_says_its_fields(schema, program):
    assert schema(DATACLASS) == {
        "description": "Train a model.",
        "options": {
            "data": {"type": "path"},
            "batch-size": {"type": "int", "default": 32},
            "mode": {"type": "string", "default": "fast", "choices": ["fast", "exact"]},
            "note": {"type": "string"},
            "tags": {
                "type": "list[string]",
                "description": "To find it",
                "default": ["a"],
                "commas": False,
                "group": "Run",
            },
            "sizes": {"type": "list[int]", "commas": False},
            "shuffle": {"type": "bool", "default": True},
        },
        "strict": False,
    }
    assert program(DATACLASS).stdout == "went on with 32\n"


@pytest.mark.parametrize("text", [ARGPARSE, CLICK], ids=["argparse", "click"])
def test_without_the_flag_a_program_goes_on_unchanged(program, text):
    done = program(text, "x", "-n", "4")
    assert (done.returncode, done.stdout) == (0, "went on with 4\n")
    assert program(text, "--", "--fdl-schema").stdout == "went on with 10\n"
    assert "hunter2" not in program(text, "--fdl-schema").stdout


@each_row("target", [None, "parser", int, object(), Path])
def test_what_declares_no_arguments_is_refused_at_once(target):
    with pytest.raises(TypeError, match=r"pass an argparse parser, a click command"):
        expose(target, [])


def test_fdl_uses_what_argparse_says(fdl, project):
    project(
        {
            "fdl.yml": "commands:\n  train:\n",
            "train/fdl.yml": "entry: python main.py\n",
            "train/main.py": dedent(ARGPARSE),
        }
    )
    page = fdl("train", "--help")
    assert "--epochs INT" in page.out
    assert "Passes (of 10)" in page.out
    assert "--tag TEXT" in page.out
    assert "commas" not in page.out
    refused = fdl("train", "x", "--color", "green")
    assert refused.exit == 1
    assert "invalid value `green` for `--color` -- allowed: red, blue" in refused.err
    assert fdl("train", "x", "-n4", "--epo", "5").out == "went on with 5\n"
