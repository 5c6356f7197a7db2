"""Options of HfArgumentParser."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "HfArgumentParser"
_HEAD = """
import enum, pathlib
from dataclasses import dataclass, field
from typing import Literal, Optional, Union
from transformers.hf_argparser import HfArg, HfArgumentParser
class Kind(enum.Enum):
    A = "alpha"
    B = "beta"
@dataclass
class Data:
    size: int = 3
@dataclass
class Config:
    x: {declared}
print(HfArgumentParser((Config, Data)).parse_args_into_dataclasses())
"""


def _one(declared: str) -> str:
    return _HEAD.replace("{declared}", declared)


_SWITCH, _NEGATABLE = _one("bool = False"), _one("bool = True")

CELLS = [
    Cell("flag", _SWITCH, "--x", {"x": True}, "true"),
    Cell("flag with a value", _SWITCH, "--x true", {"x": True}, "true"),
    Cell("negatable flag", _NEGATABLE, "--no_x", {"x": False}, "false"),
    Cell("flag or nothing", _one("Optional[bool] = None"), "--x false", {"x": False}, "false"),
    Cell("number", _one("float = 0.1"), "--x 0.5", {"x": 0.5}, "0.5"),
    Cell("number or nothing", _one("Optional[int] = None"), "--x 3", {"x": 3}, "3"),
    Cell("name with two words", _one("int = 1\n    a_b: int = 2"), "--a_b 3", {"a_b": 3}, "3"),
    Cell(
        "name with another spelling",
        _one("int = HfArg(default=1, aliases=['--size_x'])"),
        "--size_x 3",
        {"size_x": 3},
        "3",
    ),
    Cell("choice", _one("Literal['a', 'b'] = 'a'"), "--x b", {"x": "b"}, "b"),
    Cell("choice of mixed types", _one("Literal['a', 1] = 'a'"), "--x 1", {"x": 1}, "1"),
    Cell("enum by value", _one("Kind = Kind.A"), "--x beta", {"x": "beta"}, "beta"),
    Cell(
        "list by `nargs`", _one("list[int] = field(default_factory=list)"), "--x 1 2", {"x": [1, 2]}
    ),
    Cell("list or nothing", _one("Optional[list[str]] = None"), "--x a b", {"x": ["a", "b"]}),
    Cell("path", _one("pathlib.Path = None"), "--x a/b", {"x": "a/b"}, "a/b"),
    Cell("second class", _one("int = 1"), "--size 4", {"size": 4}, "4"),
]
