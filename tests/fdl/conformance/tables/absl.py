"""Flags of absl: each kind that it defines, and arguments behind the flags."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "absl"

_PROGRAM = """
import enum
from absl import app, flags

class Act(enum.Enum):
    RELU = 1
    GELU = 2

flags.DEFINE_{}
flags.DEFINE_integer("steps", 10, "steps")

def main(argv):
    print(repr(flags.FLAGS.x), flags.FLAGS.steps, argv[1:])

app.run(main)
"""


def _flag(declared: str) -> str:
    return _PROGRAM.replace("{}", declared)


CELLS = [
    Cell("flag", _flag('bool("x", False, "x")'), "--x", {"x": True}, "true"),
    Cell("negatable flag", _flag('bool("x", True, "x")'), "--nox", {"x": False}, "false"),
    Cell("flag with a value", _flag('boolean("x", True, "x")'), "--x=false", {"x": False}, "false"),
    Cell("text", _flag('string("x", None, "x")'), "--x 'a b'", {"x": "a b"}, "a b"),
    Cell("text like a flag", _flag('string("x", None, "x")'), "--x=-a", {"x": "-a"}),
    Cell("path", _flag('string("x", None, "x")'), "--x a/b.txt", {"x": "a/b.txt"}, "a/b.txt"),
    Cell("number", _flag('float("x", 0.1, "x")'), "--x -2.5", {"x": -2.5}, "-2.5"),
    Cell(
        "number with a short name",
        _flag('integer("x", 1, "x", short_name="n")'),
        "-n 3",
        {"x": 3},
        "3",
    ),
    Cell("choice", _flag('enum("x", "a", ["a", "b"], "x")'), "--x b", {"x": "b"}, "b"),
    Cell(
        "choice in any case",
        _flag('enum("x", "Fast", ["Fast", "Slow"], "x", case_sensitive=False)'),
        "--x slow",
        {"x": "slow"},
        "slow",
    ),
    Cell(
        "enum by name",
        _flag('enum_class("x", Act.RELU, Act, "x")'),
        "--x GELU",
        {"x": "GELU"},
        "GELU",
    ),
    Cell(
        "enum in any case",
        _flag('enum_class("x", Act.RELU, Act, "x")'),
        "--x gelu",
        {"x": "gelu"},
        "gelu",
    ),
    Cell(
        "enum in its own case",
        _flag('enum_class("x", Act.RELU, Act, "x", case_sensitive=True)'),
        "--x GELU",
        {"x": "GELU"},
        "GELU",
    ),
    Cell("list by comma", _flag('list("x", ["a"], "x")'), "--x b,c", {"x": ["b", "c"]}),
    Cell(
        "list by comma, commas inside",
        _flag('list("x", [], "x")'),
        """--x 'b,"c,d"'""",
        {"x": ["b", "c,d"]},
    ),
    Cell("empty list by comma", _flag('list("x", ["a"], "x")'), "--x=", {"x": []}),
    Cell("list by blank", _flag('spaceseplist("x", ["a"], "x")'), "--x 'b c'", {"x": ["b", "c"]}),
    Cell(
        "list by blank or comma",
        _flag('spaceseplist("x", ["a"], "x", comma_compat=True)'),
        "--x 'b c'",
        {"x": ["b", "c"]},
    ),
    Cell(
        "list by repetition",
        _flag('multi_string("x", ["a"], "x")'),
        "--x b,c --x d",
        {"x": ["b,c", "d"]},
    ),
    Cell(
        "list by repetition, one value",
        _flag('multi_string("x", ["a"], "x")'),
        "--x b",
        {"x": "b"},
        "b",
    ),
    Cell(
        "numbers by repetition",
        _flag('multi_integer("x", [1], "x")'),
        "--x 2 --x -3",
        {"x": [2, -3]},
    ),
    Cell(
        "floats by repetition",
        _flag('multi_float("x", [1], "x")'),
        "--x 2.5 --x 3",
        {"x": [2.5, 3]},
    ),
    Cell(
        "choices by repetition",
        _flag('multi_enum("x", ["a"], ["a", "b"], "x")'),
        "--x b --x a",
        {"x": ["b", "a"]},
    ),
    Cell(
        "enum by repetition",
        _flag('multi_enum_class("x", [Act.RELU], Act, "x")'),
        "--x gelu --x RELU",
        {"x": ["gelu", "RELU"]},
    ),
    Cell(
        "a parser of its own",
        _flag('integer("y", 1, "y")\nflags.DEFINE(flags.FloatParser(), "x", 0.1, "x")'),
        "--x 0.5",
        {"x": 0.5},
        "0.5",
    ),
    Cell(
        "alias",
        _flag('integer("x", 1, "x")\nflags.DEFINE_alias("old", "x")'),
        "--old 3",
        {"old": 3},
        "3",
    ),
    Cell(
        "flags of absl itself",
        _flag('integer("x", 1, "x")'),
        "--verbosity 1",
        {"verbosity": 1},
        "1",
        reason="absl and imported modules have flags of their own: fdl passes them, and says so.",
    ),
]
