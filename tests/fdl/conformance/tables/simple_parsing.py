"""Options of simple-parsing."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "simple-parsing"
_HEAD = """
import datetime, enum, pathlib, simple_parsing
from dataclasses import dataclass, field
from typing import Dict, List, Literal, Optional, Tuple, Union
from simple_parsing import choice, flag, list_field, subgroups, subparsers
class Kind(enum.Enum):
    A = "alpha"
    B = "beta"
@dataclass
class Adam:
    lr: float = 0.1
@dataclass
class SGD:
    momentum: float = 0.0
@dataclass
class Config:
    x: {declared}
print(simple_parsing.parse(Config))
"""


def _one(declared: str) -> str:
    return _HEAD.replace("{declared}", declared)


_CLASSIC = _HEAD.partition("@dataclass\nclass Config")[0] + (
    "p = simple_parsing.ArgumentParser()\np.add_argument('--seed', type=int)\n"
    "p.add_arguments(Adam, dest='opt')\nprint(p.parse_args())\n"
)
_GROUPS = _one("Adam | SGD = subgroups({'adam': Adam, 'sgd': SGD}, default='adam')")
_COMMANDS = _one("Union[Adam, SGD] = subparsers({'adam': Adam, 'sgd': SGD})")

CELLS = [
    Cell("flag", _one("bool = False"), "--x", {"x": True}, "true"),
    Cell("negatable flag", _one("bool = True"), "--nox", {"x": False}, "false"),
    Cell("number", _one("float = 0.1"), "--x 0.5", {"x": 0.5}, "0.5"),
    Cell("name with two words", _one("int = 1\n    a_b: int = 2"), "--a_b 3", {"a_b": 3}, "3"),
    Cell("choice", _one("str = choice('a', 'b', default='a')"), "--x b", {"x": "b"}, "b"),
    Cell("choice of a literal", _one("Literal['a', 'b'] = 'a'"), "--x b", {"x": "b"}, "b"),
    Cell("enum by name", _one("Kind = Kind.A"), "--x B", {"x": "B"}, "B"),
    Cell("list by `nargs`", _one("List[int] = list_field(0)"), "--x 1 2", {"x": [1, 2]}),
    Cell(
        "list of text",
        _one("list[str] = field(default_factory=list)"),
        "--x a b",
        {"x": ["a", "b"]},
    ),
    Cell("tuple", _one("Tuple[int, str] = (0, '')"), "--x 1 a", {"x": [1, "a"]}),
    Cell("number or nothing", _one("Optional[int] = None"), "--x 3", {"x": 3}, "3"),
    Cell("union", _one("Union[int, str] = 1"), "--x a", {"x": "a"}, "a"),
    Cell("path", _one("pathlib.Path = pathlib.Path('d')"), "--x a/b", {"x": "a/b"}, "a/b"),
    Cell(
        "fields of an inner class",
        _one("Adam = field(default_factory=Adam)"),
        "--lr 0.5",
        {"lr": 0.5},
        "0.5",
    ),
    Cell(
        "class of a group", _GROUPS, "--x sgd --momentum 0.9", {"momentum": 0.9, "x": "sgd"}, "0.9"
    ),
    Cell(
        "class as a subcommand",
        _COMMANDS,
        "sgd --momentum 0.9",
        {"momentum": 0.9},
        "0.9",
        "subcommand: sgd",
    ),
    Cell("parser with a class", _CLASSIC, "--seed 3 --lr 0.5", {"lr": 0.5, "seed": 3}, "0.5"),
]
