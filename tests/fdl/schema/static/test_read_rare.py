"""Spellings that few scripts use: each is read, or makes the schema open."""

from __future__ import annotations

import pytest

from fdl.programs.parameters.parameter import UNSET

TYPER = """
import typer
from click import command
from elsewhere import registry

app = typer.Typer()
table = dict()

@app.callback()
def main(ctx: typer.Context, verbose: int = typer.Option(0, "--verbose", "-v", count=True)): ...

@app.command(name="fit")
def run(
    path: str = typer.Argument(..., help="Folder"),
    rate: float = typer.Option(0.1, "--rate", help="Speed"),
    amp: bool = typer.Option(False, "--amp/--no-amp"),
    seed=3,
): ...

@registry.command()
def foreign(name: str): ...

@table.command()
def stored(name: str): ...

@app.command()
@command()
def last_one(name: str): ...

app()
"""


def test_typer_options_as_defaults_are_read(schema):
    found = schema(TYPER)
    assert found.options["verbose"].counted
    assert list(found.options) == ["verbose"]
    assert list(found.commands) == ["fit", "last-one"]
    fit = found.commands["fit"]
    (path,) = fit.arguments
    assert (path.name, path.required, path.help) == ("path", True, "Folder")
    assert (fit.options["rate"].default, fit.options["rate"].help) == (0.1, "Speed")
    assert fit.options["amp"].negatives == ("--no-amp",)
    assert fit.options["seed"].default == "3"


LONG = """
import argparse
from elsewhere import bounds

parser = argparse.ArgumentParser()
table = [0] * 1_000_000_000
text = 99_999_999_999 * "x"
number = 3
for _ in range(20):
    number = number * number
for depth in range(*bounds):
    parser.add_argument(f"--depth-{depth}")
for width in range(2, *bounds):
    parser.add_argument(f"--width-{width}")
for nothing in range(0, 9, 0):
    pass
parser.add_argument("--lr", type=float, default=0.1 * 2, help="Rate of %s" % ("SGD",))
parser.add_argument("--name", default="%s-%d" % ("run", 3), help="of %s" % (bounds,))
for layer in range(2):
    parser.add_argument(f"--layer-{layer:02d}", default=f"{0.0001:.0e}", help=f"as {'x'!r}")
parser.add_argument("--size", default=sorted(["a", "b"], reverse=True)[0])
parser.parse_args()
"""


def test_what_is_long_or_not_known_is_not_computed(schema):
    found = schema(LONG)
    assert list(found.options) == ["lr", "name", "layer-00", "layer-01", "size"]
    assert not found.strict
    lr, name, layer, _, size = found.options.values()
    assert (layer.default, layer.help) == ("1e-04", "")
    assert (lr.default, lr.help) == (0.2, "Rate of SGD")
    assert (name.default, name.help, name.computed) == ("run-3", "", ())
    assert (size.default, size.computed) == (UNSET, ("default",))


CLICK = """
import click
from click import command, option

NAMES = load()

@command
@option("--rate", default=0.5)
@option("--depth", type=click.IntRange(1, 9))
@option("--debug", is_flag=True)
@click.argument("files", nargs=-1)
{more}
def main(rate, depth, debug, files): ...

main()
"""


@pytest.mark.parametrize(
    ("more", "strict"),
    [("", True), ("@click.option(NAMES)", False), ("@click.argument()", True), ("@own", False)],
)
def test_a_decorator_that_may_add_options_makes_a_click_command_open(schema, more, strict):
    found = schema(CLICK.format(more=more))
    assert found.strict is strict
    assert (found.options["rate"].type, found.options["depth"].type) == ("float", "int")
    assert found.options["debug"].shape == "flag"
    assert [one.name for one in found.arguments] == ["files"]


FIELDS = """
from abc import ABC
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, List, Literal, Optional, Union
import {module}
from transformers import HfArgumentParser

class Plain:
    pass

@dataclass
class Base(ABC):
    seed: int = 1

@dataclass
class Settings(Base):
    known: ClassVar[int] = 3
    hidden: int = field(default=4, init=False)
    seed: int = field(default=7, metadata={{"help": "Start"}})
    folder: "Path" = field(default=Path("."))
    broken: "int[" = 0
    either: Union[int, str] = 1
    none: Union[None] = None
    maybe: int | None = None
    note: Annotated[float, "rate"] = 0.5
    names: List[str] = field(default_factory=list)
    level: Literal[1, 2] = 1
    mixed: Literal["a", 1, None] = "a"
    table: dict[str, int] = None
    plain: Plain = None
    use_amp: bool = False
    fast: bool = field(default=True, help="Go fast")
    def method(self): ...

{parse}
"""


@pytest.mark.parametrize(
    ("module", "parse", "negatives"),
    [
        ("tyro", "tyro.cli(Settings)", ("--no-use-amp",)),
        ("os", "HfArgumentParser(dataclass_types=Settings).parse_args_into_dataclasses()", ()),
    ],
)
def test_annotations_of_dataclass_fields_are_read(schema, module, parse, negatives):
    found = schema(FIELDS.format(module=module, parse=parse))
    options = {name.replace("-", "_"): one for name, one in found.options.items()}
    assert "known" not in options
    assert "hidden" not in options
    assert (options["seed"].default, options["seed"].help) == (7, "Start")
    assert options["folder"].type == "path"
    assert (options["maybe"].type, options["maybe"].required) == ("int", False)
    assert (options["note"].type, options["note"].default) == ("float", 0.5)
    assert (options["names"].shape, options["names"].default) == ("list", UNSET)
    assert (options["level"].type, options["level"].choices) == ("int", (1, 2))
    assert options["mixed"].type == "string"
    assert options["use_amp"].negatives == negatives
    assert options["fast"].help == "Go fast"
    for name in ("broken", "either", "none", "table", "plain"):
        assert "type" in options[name].computed, name


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("class Config(Unknown):\n    rate: float = 0.1", ["rate"]),
        ("class Config(Config):\n    rate: float = 0.1", ["rate"]),
        ("def Config(rate: float = 0.1): ...", ["rate"]),
    ],
)
def test_what_follows_from_an_unusual_class_is_read(schema, text, options):
    found = schema(f"import tyro\n{text}\ntyro.cli(Config)\n")
    assert list(found.options) == options
    assert found.options["rate"].default == 0.1
    assert found.strict is text.startswith("def")


def test_a_function_given_to_hf_or_an_unknown_class_makes_the_schema_open(schema):
    text = "from transformers import HfArgumentParser\nparser = HfArgumentParser({})\n"
    more = "parser.add_argument('--own')\nparser.parse_args_into_dataclasses()\n"
    for given in ("Unknown", "(run,)"):
        found = schema(f"def run(): ...\n{text.format(given)}{more}")
        assert (list(found.options), found.strict) == (["own"], False)


HYDRA = "import hydra\n\n@other\n@print()\n@hydra.main({})\ndef main(config): ...\n\nmain()\n"
CONFIG = """
defaults:
  - base
  - _self_
  - missing
  - override hydra/launcher: local
  - optimizer: [adam]
  - data/kind: none
hydra: {run: {dir: out}}
rate: ${base}
sizes: [1, two]
"""


def test_a_configuration_of_hydra_with_other_files_is_read(schema):
    found = schema(
        HYDRA.format("'conf', 'config.yaml'"),
        conf__config_yaml=CONFIG,
        conf__base_yaml="defaults: [config]\nbase: 1\n",
        conf__optimizer__adam_yaml="a: [1",
        conf__optimizer__README_txt="",
    )
    options = found.options
    assert list(options) == ["base", "optimizer", "data.kind", "rate", "sizes"]
    assert (options["base"].default, options["optimizer"].choices) == (1, ("adam",))
    assert options["data.kind"].choices == ()
    assert options["rate"].computed == ("type", "default")
    assert options["sizes"].shape == "list"


@pytest.mark.parametrize("where", ["", "config_name=NAME", "config_path=F(), config_name='c'"])
def test_a_configuration_of_hydra_that_is_computed_is_open(schema, where):
    found = schema(HYDRA.format(where))
    assert (found.style, found.strict, dict(found.options)) == ("hydra", False, {})


def test_a_configuration_of_hydra_that_is_broken_has_no_settings(schema):
    found = schema(HYDRA.format("config_path='conf', config_name='c'"), conf__c_yaml="a: [1")
    assert (found.style, dict(found.options)) == ("hydra", {})


@pytest.mark.parametrize(
    ("line", "options", "strict"),
    [
        ("parser.add_argument(dest='file')", ["a"], True),
        ("parser.add_argument('--version', action='version')", ["a"], True),
        ("parser.add_argument('--b', help=argparse.SUPPRESS)", ["a", "b"], True),
        ("parser.add_argument('-')", ["a"], False),
        ("parser.add_argument('--b', help='100 %% of %(nothing)s')", ["a", "b"], True),
        ("parser.add_subparsers().add_parser(name())", ["a"], False),
        ("argparse.ArgumentParser(parents=[other(), parser]).parse_args()", ["a"], False),
    ],
)
def test_unusual_arguments_of_argparse(schema, line, options, strict):
    found = schema(
        f"import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--a')\n{line}\n"
    )
    assert list(found.options) == options
    assert found.strict is strict


def test_defaults_that_are_set_later_and_aliases_of_subcommands(schema):
    found = schema(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--seed', type=int, default=1)\n"
        "parser.add_argument('--when')\n"
        "parser.set_defaults(seed=now(), when=None, other=3)\n"
        "parser.add_subparsers().add_parser('fit', aliases=['train', 'f'])\n"
        "parser.parse_args()\n"
    )
    assert (found.options["seed"].default, found.options["seed"].computed) == (UNSET, ("default",))
    assert found.options["when"].default is UNSET
    assert list(found.commands) == ["fit", "train", "f"]


@pytest.mark.parametrize(
    ("text", "style", "commands"),
    [
        ("cli.LightningCLI(Model)", None, ["fit", "validate", "test", "predict"]),
        ("from omegaconf import OmegaConf\nOmegaConf.from_cli()", "keyvalue", []),
    ],
)
def test_other_libraries_are_known(schema, text, style, commands):
    found = schema(f"from lightning.pytorch import cli\n{text}\n")
    assert list(found.commands) == commands
    assert found.strict is False
    assert style is None or found.style == style


@pytest.mark.parametrize(
    "text",
    [
        "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model, run=False)",
        "import fire\nclass Model: ...\nfire.Fire(Model)",
        "import fire\nfire.Fire()",
        "import typer\nclass Model: ...\ntyper.run(Model)",
        "from absl import flags\nflags.DEFINE_string(NAME, '', '')",
    ],
)
def test_a_call_that_declares_nothing_leaves_no_schema(schema, text):
    assert schema(text) is None


def test_positional_arguments_that_a_schema_cannot_order_end_the_list(schema):
    found = schema(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('first', nargs='*')\nparser.add_argument('second')\n"
        "parser.add_argument('third')\nparser.parse_args()\n"
    )
    assert [one.name for one in found.arguments] == ["first"]


def test_a_later_default_that_does_not_fit_leaves_the_rest_of_the_schema(schema):
    found = schema(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--epochs', type=int, default=1)\n"
        "parser.add_argument('--sizes', type=int, nargs='+')\n"
        "parser.add_argument('--seed', type=int, default=now())\n"
        "parser.set_defaults(epochs=2.5, sizes=[1, 2], seed=3)\nparser.parse_args()\n"
    )
    assert (found.options["epochs"].default, found.options["epochs"].computed) == (
        UNSET, ("default",)
    )  # fmt: skip
    assert (found.options["sizes"].default, found.options["seed"].default) == ([1, 2], 3)
    assert found.options["seed"].computed == ()


def test_a_group_of_hydra_in_a_folder_is_not_a_value(schema):
    found = schema(
        "import hydra\n@hydra.main(version_base=None, config_path='conf', config_name='config')\n"
        "def main(config): ...\nmain()\n",
        conf__config_yaml="defaults: [{model/encoder: vit}, {db@first: one}, db: two, sub/base]\n",
        conf__model__encoder__vit_yaml="depth: 3\n",
        conf__db__one_yaml="port: 1\n",
        conf__db__two_yaml="host: a\n",
        conf__db__three_yaml="all: a\n",
        conf__sub__base_yaml="a: 1\ndefaults: [{/db@_global_: three}]\n",
    )
    names = ["all", "db", "db.host", "first.port", "model.encoder", "model.encoder.depth", "sub.a"]
    assert sorted(found.options) == names
    assert found.options["model.encoder"].flags == ("model/encoder",)
