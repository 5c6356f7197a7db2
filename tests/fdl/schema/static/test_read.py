"""What a program declares is read from its source; the program never runs."""

from __future__ import annotations

import json

import pytest

ARGPARSE = """
import argparse
from argparse import BooleanOptionalAction
from pathlib import Path
from options import add_optimizer

SIZES = ["small", "big"]
RATE = 1e-3

def positive(text):
    return int(text)

def get_parser(description="Train it"):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("config", type=Path, nargs="?")
    data = parser.add_argument_group("Data")
    data.add_argument("--data_dir", "-d", type=Path, required=True, help="Folder, %(default)s")
    data.add_argument("--size", choices=SIZES, default=SIZES and "small")
    parser.add_argument("-lr", type=float, default=RATE * 2)
    parser.add_argument("--num_epochs", type=int, default=2 + 1)
    parser.add_argument("--shuffle", action=BooleanOptionalAction, default=True)
    parser.add_argument("--verbose", "-v", action="count", default=0)
    parser.add_argument("--tags", nargs="+", default=["a"])
    parser.add_argument("--crop", nargs=2, type=int)
    parser.add_argument("--extra", action="append")
    parser.add_argument("--workers", type=positive, default=len(SIZES))
    parser.add_argument("--fast", action="store_true")
    for name in ("alpha", "beta"):
        parser.add_argument(f"--{name}", type=float)
    add_optimizer(parser)
    parser.set_defaults(num_epochs=7)
    return parser

if __name__ == "__main__":
    args = get_parser().parse_args()
"""
OPTIONS = """
def add_optimizer(parser):
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--momentum", type=float, default=0.9)
"""


def test_an_argparse_script_is_read(schema):
    found = schema(ARGPARSE, options_py=OPTIONS)
    assert (found.source, found.strict, found.description) == ("source", True, "Train it")
    (config,) = found.arguments
    assert (config.name, config.type, config.required) == ("config", "path", False)
    options = found.options
    assert list(options) == [
        *("data_dir", "size", "lr", "num_epochs", "shuffle", "verbose", "tags", "crop", "extra"),
        *("workers", "fast", "alpha", "beta", "momentum"),
    ]
    data = options["data_dir"]
    assert (data.flags, data.required, data.group) == (("--data_dir", "-d"), True, "Data")
    assert data.place == "t/train.py:16"
    assert (options["size"].choices, options["size"].computed) == (("small", "big"), ("default",))
    assert (options["lr"].flag, options["lr"].default) == ("-lr", 0.002)
    assert (options["num_epochs"].type, options["num_epochs"].default) == ("int", 7)
    assert options["shuffle"].negatives == ("--no-shuffle",)
    assert options["verbose"].counted
    assert (options["tags"].nargs, options["crop"].nargs, options["crop"].type) == ("+", 2, "int")
    assert (options["extra"].shape, options["extra"].nargs) == ("list", None)
    assert options["workers"].computed == ("type", "default")
    assert options["fast"].shape == "flag"
    assert (options["momentum"].default, options["momentum"].place) == (0.9, "t/options.py:3")


SUBPARSERS = """
import argparse
common = argparse.ArgumentParser(add_help=False)
common.add_argument("--seed", type=int, default=0)
parser = argparse.ArgumentParser()
parser.add_argument("--log")
commands = parser.add_subparsers(dest="command")
fit = commands.add_parser("fit", parents=[common], help="Train")
fit.add_argument("--max_epochs", type=int)
commands.add_parser("test")
args = parser.parse_args()
"""


def test_subparsers_and_parents_are_read(schema):
    found = schema(SUBPARSERS)
    assert (list(found.options), list(found.commands)) == (["log"], ["fit", "test"])
    assert list(found.commands["fit"].options) == ["seed", "max_epochs"]
    assert found.commands["fit"].description == "Train"


@pytest.mark.parametrize(
    "line",
    [
        "parser.add_argument(names())",
        "parser.parse_known_args()",
        "parser.add_argument(*flags, **settings)",
    ],
)
def test_what_is_computed_makes_the_schema_open(schema, line):
    text = (
        f"import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--a')\n{line}\n"
    )
    assert not schema(text).strict


HUGGING_FACE = """
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Optional
from transformers import HfArgumentParser
from shared import Base

class Kind(Enum):
    A = "a"
    B = "b"

@dataclass
class ModelArguments(Base):
    model_name_or_path: str = field(metadata={"help": "Path or name"})
    kind: Kind = Kind.A
    precision: Literal["fp16", "bf16"] = "fp16"
    use_fast: bool = True
    layers: list[int] = field(default_factory=lambda: [1, 2])
    cache_dir: Optional[str] = None

parser = HfArgumentParser((ModelArguments,))
args = parser.parse_args_into_dataclasses()
"""
SHARED = """
from dataclasses import dataclass

@dataclass
class Base:
    seed: int = 42
"""


def test_dataclasses_of_hugging_face_are_read(schema):
    found = schema(HUGGING_FACE, shared_py=SHARED)
    options = found.options
    assert list(options) == [
        *("seed", "model_name_or_path", "kind", "precision", "use_fast", "layers", "cache_dir")
    ]
    name = options["model_name_or_path"]
    assert (name.flag, name.required, name.help) == ("--model_name_or_path", True, "Path or name")
    assert options["kind"].choices == ("a", "b")
    assert options["precision"].choices == ("fp16", "bf16")
    assert options["use_fast"].negatives == ("--no_use_fast", "--no-use-fast")
    assert (options["layers"].nargs, options["layers"].default) == ("+", [1, 2])
    assert (options["seed"].default, options["seed"].place) == (42, "t/shared.py:5")


CLICK = """
import click

@click.group()
@click.option("--debug/--no-debug", default=False)
def cli(debug): ...

@cli.command()
@click.argument("source", type=click.Path())
@click.option("--num-epochs", "-n", type=int, default=3, help="Passes")
@click.option("--mode", type=click.Choice(["a", "b"]))
def train(source, num_epochs, mode): ...

if __name__ == "__main__":
    cli()
"""
TYPER = """
from typing import Annotated
import typer

app = typer.Typer()

@app.command()
def fit(data: str, max_epochs: int = 3, fast: bool = False,
        lr: Annotated[float, typer.Option("--lr", "-l", help="Rate")] = 0.1): ...

@app.command("check")
def evaluate(path: str): ...

app()
"""


def test_click_and_typer_commands_are_read(schema):
    found = schema(CLICK)
    train = found.commands["train"] if found.commands else found
    assert [one.name for one in train.arguments] == ["source"]
    assert (train.options["num-epochs"].default, train.options["num-epochs"].help) == (3, "Passes")
    assert train.options["mode"].choices == ("a", "b")
    app = schema(TYPER)
    assert list(app.commands) == ["fit", "check"]
    fit = app.commands["fit"]
    assert [one.name for one in fit.arguments] == ["data"]
    assert fit.options["fast"].negatives == ("--no-fast",)
    assert (fit.options["lr"].flags, fit.options["lr"].default) == (("--lr", "-l"), 0.1)


def test_a_configuration_of_hydra_is_read(schema):
    text = """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config): ...

main()
"""
    found = schema(
        text,
        conf__config_yaml="defaults: [_self_, {optimizer: adam}]\nseed: 1\ndata:\n  path: ???\n",
        conf__optimizer__adam_yaml="lr: 0.1\n",
        conf__optimizer__sgd_yaml="lr: 0.2\n",
    )
    assert (found.style, found.strict) == ("hydra", False)
    assert found.options["optimizer"].choices == ("adam", "sgd")
    assert (found.options["optimizer.lr"].default, found.options["seed"].type) == (0.1, "int")
    assert found.options["data.path"].required


def test_flags_of_absl_and_functions_of_fire_are_read(schema):
    absl = schema(
        "from absl import flags\nflags.DEFINE_integer('steps', 10, 'How many')\n"
        "flags.DEFINE_bool('fast', False, 'Go')\nflags.DEFINE_enum('m', 'a', ['a', 'b'], '')\n"
    )
    assert (absl.options["steps"].default, absl.options["steps"].help) == (10, "How many")
    assert absl.options["fast"].negatives == ("--nofast",)
    assert absl.options["m"].choices == ("a", "b")
    fire = schema("import fire\ndef train(data, lr=0.1, fast=False): ...\nfire.Fire(train)\n")
    assert list(fire.options) == ["data", "lr", "fast"]
    assert fire.options["data"].required


def test_a_class_of_tyro_is_read_with_nested_names(schema):
    found = schema(
        "from dataclasses import dataclass, field\nimport tyro\n"
        "@dataclass\nclass Optimizer:\n    learning_rate: float = 0.1\n"
        "@dataclass\nclass Config:\n    optimizer: Optimizer\n    use_amp: bool = False\n"
        "config = tyro.cli(Config)\n"
    )
    assert found.options["optimizer.learning-rate"].flag == "--optimizer.learning-rate"
    assert found.options["use-amp"].negatives == ("--no-use-amp",)


@pytest.mark.parametrize(
    "text",
    ["print 'python 2'", "", "\0", "import argparse\n" + "(" * 5000, "x = " + "-" * 5000 + "1"],
)
def test_a_script_that_cannot_be_read_has_no_schema(schema, text):
    assert schema(text) is None


def test_an_unmodified_script_gets_help_checks_completion_and_why(project, fdl):
    folder = project(
        {
            "fdl.yml": "commands: {t: }\n",
            "t/fdl.yml": "entry: python train.py\ntraining: {num_epochs: {}}\n"
            "commands: {p: {options: {num_epochs: 3}}}\n".replace(
                "training: {num_epochs: {}}\n", ""
            ),
            "t/train.py": ARGPARSE + "\nopen('ran', 'w').close()\n",
            "t/options.py": OPTIONS,
        }
    )
    page = fdl("t", "--help", "all").out
    assert "-lr FLOAT" in page
    assert "[default: 7]" in page
    typo = fdl("t", "p", "--num_epohcs", "4")
    assert (typo.exit, "did you mean `--num_epochs`? (t/train.py:19)" in typo.err) == (1, True)
    assert "--num_epochs" in fdl("__complete", "bash", "--", "t", "p", "--num").out
    assert "t/fdl.yml:2" in fdl("why", "num_epochs", "t", "p").out
    argv = json.loads(fdl("--dry-run", "--json", "t", "p").out)["argv"]
    assert argv[1:] == ["train.py", "--num_epochs", "3"]
    assert not (folder / "t/ran").exists()
    assert not (folder / "t/.fdl/schema-cache").exists()
