"""tyro: fields of a dataclass, parameters of a function, and unions as subcommands."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "tyro"

_TOP = """
import datetime, enum, pathlib
from dataclasses import dataclass, field
from typing import Annotated, Literal, Optional, Union
import tyro

class Act(enum.Enum):
    RELU = "relu"
    GELU = "gelu"

@dataclass
class Adam:
    lr: float = 1e-3

@dataclass
class SGD:
    lr: float = 0.1
    momentum: float = 0.0
"""
_FIELDS = (
    _TOP
    + """
@dataclass
class Config:
    steps: int = 10
    x: {}

print(tyro.cli(Config))
"""
)
_FUNCTION = (
    _TOP
    + """
def main({}):
    print(locals())

tyro.cli(main)
"""
)


def _field(declared: str) -> str:
    return _FIELDS.replace("{}", declared)


def _function(declared: str) -> str:
    return _FUNCTION.replace("{}", declared)


CELLS = [
    Cell("flag", _field("bool = False"), "--x", {"x": True}, "true"),
    Cell("negatable flag", _field("bool = True"), "--no-x", {"x": False}, "false"),
    Cell(
        "flag with a value",
        _field("tyro.conf.FlagConversionOff[bool] = False"),
        "--x True",
        {"x": True},
        "true",
    ),
    Cell(
        "bool without a default",
        _FIELDS.replace("steps: int = 10\n    x: {}", "x: bool"),
        "--x True",
        {"x": True},
        "true",
    ),
    Cell("bool or None", _field("Optional[bool] = None"), "--x False", {"x": False}, "false"),
    Cell("number or None", _field("Optional[int] = 3"), "--x None", {"x": None}),
    Cell("number or None, a number", _field("Optional[int] = 3"), "--x 5", {"x": 5}, "5"),
    Cell("count", _field("tyro.conf.UseCounterAction[int] = 0"), "--x --x", {"x": 2}),
    Cell("choice of text", _field('Literal["a", "b"] = "a"'), "--x b", {"x": "b"}, "b"),
    Cell("choice of numbers and text", _field('Literal[1, 2, "b"] = 1'), "--x 2", {"x": 2}, "2"),
    Cell("choice or None", _field('Optional[Literal["a", "b"]] = "a"'), "--x None", {"x": None}),
    Cell("choice with None inside", _field('Literal["a", None] = "a"'), "--x None", {"x": None}),
    Cell("enum by name", _field("Act = Act.RELU"), "--x GELU", {"x": "GELU"}, "GELU"),
    Cell(
        "enum by value",
        _field("tyro.conf.EnumChoicesFromValues[Act] = Act.RELU"),
        "--x gelu",
        {"x": "gelu"},
        "gelu",
    ),
    Cell("enum or None", _field("Act | None = Act.RELU"), "--x GELU", {"x": "GELU"}, "GELU"),
    Cell(
        "list",
        _field("list[int] = field(default_factory=list)"),
        "--x 1 2",
        {"x": [1, 2]},
    ),
    Cell("empty list", _field("list[int] = field(default_factory=lambda: [1])"), "--x", {"x": []}),
    Cell(
        "list of text with commas",
        _field("list[str] = field(default_factory=list)"),
        "--x a,b c",
        {"x": ["a,b", "c"]},
    ),
    Cell(
        "list of bools",
        _field("list[bool] = field(default_factory=list)"),
        "--x True False",
        {"x": [True, False]},
    ),
    Cell(
        "list of enums",
        _field("list[Act] = field(default_factory=list)"),
        "--x GELU RELU",
        {"x": ["GELU", "RELU"]},
    ),
    Cell(
        "list of choices",
        _field('list[Literal["a", "b"]] = field(default_factory=list)'),
        "--x b a",
        {"x": ["b", "a"]},
    ),
    Cell(
        "list or None",
        _field("Optional[list[int]] = None"),
        "--x 1 2",
        {"x": [1, 2]},
    ),
    Cell(
        "list, set to None",
        _field("Optional[list[int]] = field(default_factory=lambda: [1])"),
        "--x None",
        {"x": None},
    ),
    Cell(
        "list by repetition",
        _field("tyro.conf.UseAppendAction[list[int]] = field(default_factory=list)"),
        "--x 1 --x 2",
        {"x": [1, 2]},
    ),
    Cell(
        "tuple of any length",
        _field("tuple[int, ...] = ()"),
        "--x 1 2",
        {"x": [1, 2]},
    ),
    Cell("tuple", _field("tuple[int, int] = (0, 0)"), "--x 1 2", {"x": [1, 2]}),
    Cell("tuple of kinds", _field('tuple[int, str] = (0, "")'), "--x 1 a", {"x": [1, "a"]}),
    Cell(
        "tuple of bools",
        _field("tuple[bool, bool] = (True, True)"),
        "--x True False",
        {"x": [True, False]},
    ),
    Cell("tuple or None", _field("tuple[int, int] | None = None"), "--x 1 2", {"x": [1, 2]}),
    Cell(
        "set",
        _field("set[int] = field(default_factory=set)"),
        "--x 1 2",
        {"x": [1, 2]},
    ),
    Cell(
        "list of tuples",
        _field("list[tuple[int, str]] = field(default_factory=list)"),
        "--x 1 a 2 b",
        {"x": [[1, "a"], [2, "b"]]},
    ),
    Cell(
        "dict",
        _field("dict[str, int] = field(default_factory=dict)"),
        "--x a 1 b 2",
        {"x": {"a": 1, "b": 2}},
    ),
    Cell(
        "dict with default keys",
        _field('dict[str, int] = field(default_factory=lambda: {"a": 1, "b": 2})'),
        "--x.a 5",
        {"x": {"a": 5}},
    ),
    Cell("union", _field("int | str = 1"), "--x a", {"x": "a"}, "a"),
    Cell("union, the number", _field("int | str = 1"), "--x 7", {"x": 7}, "7"),
    Cell(
        "union with a choice",
        _field('float | Literal["auto"] = 0.1'),
        "--x auto",
        {"x": "auto"},
        "auto",
    ),
    Cell(
        "date",
        _field("datetime.date = datetime.date(2020, 1, 1)"),
        "--x 2026-01-02",
        {"x": "2026-01-02"},
        "2026-01-02",
    ),
    Cell("path", _field('pathlib.Path = pathlib.Path("a")'), "--x a/b", {"x": "a/b"}, "a/b"),
    Cell("negative number", _field("float = 0.1"), "--x -1.5", {"x": -1.5}, "-1.5"),
    Cell("text like a flag", _field('str = ""'), "--x=-a", {"x": "-a"}),
    Cell(
        "another name",
        _field('Annotated[int, tyro.conf.arg(name="renamed", aliases=["-r"])] = 0'),
        "--renamed 3",
        {"renamed": 3},
        "3",
    ),
    Cell(
        "nested dataclass",
        _field("Adam = field(default_factory=Adam)"),
        "--x.lr 0.5",
        {"x": {"lr": 0.5}},
    ),
    Cell(
        "nested, written with a dot",
        _field("Adam = field(default_factory=Adam)"),
        "--x.lr 0.5",
        {"x.lr": 0.5},
        "0.5",
    ),
    Cell(
        "nested without prefix",
        _field("tyro.conf.OmitArgPrefixes[Adam] = field(default_factory=Adam)"),
        "--lr 0.5",
        {"lr": 0.5},
        "0.5",
    ),
    Cell(
        "positional",
        _FIELDS.replace(
            "steps: int = 10\n    x: {}", "x: tyro.conf.Positional[int]\n    y: int = 1"
        ),
        "3 --y 2",
        {"x": 3, "y": 2},
    ),
    Cell(
        "positional behind a list",
        _FIELDS.replace(
            "steps: int = 10\n    x: {}",
            "y: tyro.conf.Positional[str]\n    x: list[int] = field(default_factory=list)\n"
            "    z: int = 1",
        ),
        "a --x 1 2 --z 3",
        {"x": [1, 2], "y": "a", "z": 3},
    ),
    Cell(
        "subcommand",
        _field("Adam | SGD = field(default_factory=Adam)"),
        "x:sgd --x.momentum 0.9",
        {"x.momentum": 0.9},
        "0.9",
        'subcommand: "x:sgd"',
    ),
    Cell(
        "subcommand, option before it",
        _field("Adam | SGD = field(default_factory=Adam)"),
        "--steps 3 x:sgd --x.momentum 0.9",
        {"x": {"momentum": 0.9}, "steps": 3},
        None,
        'subcommand: "x:sgd"',
    ),
    Cell(
        "subcommand by its own name",
        _field(
            'Annotated[Adam, tyro.conf.subcommand("a")] | '
            'Annotated[SGD, tyro.conf.subcommand("s")] = field(default_factory=Adam)'
        ),
        "x:s --x.momentum 0.9",
        {"x.momentum": 0.9},
        "0.9",
        'subcommand: "x:s"',
    ),
    Cell(
        "subcommands alone",
        _TOP + "print(tyro.cli(Adam | SGD))\n",
        "sgd --momentum 0.9",
        {"momentum": 0.9},
        "0.9",
        "subcommand: sgd",
    ),
    Cell(
        "subcommands of functions",
        _TOP
        + """
def train(lr: float = 0.1, files: tuple[str, ...] = ()):
    print("train", lr, files)
def test(fast: bool = False):
    print("test", fast)
tyro.extras.subcommand_cli_from_dict({"train": train, "test": test})
""",
        "train --lr 0.5 --files a b",
        {"lr": 0.5, "files": ["a", "b"]},
        None,
        "subcommand: train",
    ),
    Cell("function", _function("x: int, y: str = 'a'"), "--x 3 --y b", {"x": 3, "y": "b"}, "3"),
    Cell(
        "function with a flag",
        _function("fast_mode: bool = False"),
        "--fast-mode",
        {"fast_mode": True},
        "true",
    ),
    Cell(
        "function with an enum", _function("x: Act = Act.RELU"), "--x GELU", {"x": "GELU"}, "GELU"
    ),
    Cell(
        "function with a list",
        _function("x: list[int], y: int = 1"),
        "--x 1 2",
        {"x": [1, 2]},
    ),
    Cell(
        "function with a positional",
        _function("x: int, /, y: int = 1"),
        "3 --y 2",
        {"x": 3, "y": 2},
    ),
    Cell(
        "function with a dataclass",
        _function("opt: Adam, y: int = 1"),
        "--opt.lr 0.5",
        {"opt": {"lr": 0.5}},
    ),
    Cell(
        "function with a union",
        _function("opt: Adam | SGD, y: int = 1"),
        "--y 2 opt:sgd --opt.momentum 0.9",
        {"opt.momentum": 0.9, "y": 2},
        None,
        'subcommand: "opt:sgd"',
    ),
    Cell(
        "default instance",
        _FIELDS.replace("x: {}", "x: int = 1").replace(
            "tyro.cli(Config)", "tyro.cli(Config, default=Config(x=5))"
        ),
        "--steps 3",
        {"steps": 3},
        "3",
    ),
    Cell(
        "base configurations",
        _FIELDS.replace("x: {}", "x: int = 1").replace(
            "tyro.cli(Config)",
            "tyro.extras.overridable_config_cli("
            '{"small": ("s", Config()), "big": ("b", Config(x=9))})',
        ),
        "big --steps 3",
        {"steps": 3},
        "3",
        "subcommand: big",
    ),
]
