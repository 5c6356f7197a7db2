"""Options of argparse."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "argparse"
_HEAD = """
import argparse, ast, datetime, enum, json, os, pathlib
class Kind(enum.Enum):
    A = "alpha"
    B = "beta"
class Pairs(argparse.Action):
    def __call__(self, parser, space, values, flag=None):
        setattr(space, self.dest, dict(one.split("=") for one in values))
def bool_of(text): return text in ("yes", "true")
p = argparse.ArgumentParser()
"""
_TAIL = "print(p.parse_args())\n"


def _one(*declared: str) -> str:
    return _HEAD + "".join(f"p.add_argument({one})\n" for one in declared) + _TAIL


_NEGATABLE = _one('"--x", action=argparse.BooleanOptionalAction, default=True')
_OPTIONAL = _one('"--x", nargs="?", const="c"')
_SWITCHED = _one('"--x", type=bool_of, nargs="?", const=True, default=False')
_BOOL = _one('"--x", type=bool, default=True')
_PAIRS = _one('"--x", nargs=2, action="append", type=int')
_LOADS = _one('"--x", type=json.loads')
_BEHIND = _one('"--x", type=int, nargs="+"', '"files", nargs="*"')
_OUTER = (
    _HEAD + "p.add_argument('--seed', type=int)\ns = p.add_subparsers(dest='what')\n"
    "f = s.add_parser('fit')\nf.add_argument('--lr', type=float)\nf.add_argument('--amp', "
    "action='store_true')\ns.add_parser('test')\n" + _TAIL
)
_UNKNOWN = _one('"--x"').replace("parse_args", "parse_known_args")

_SPLITS = "The program splits the word itself: fdl passes commas, and says that it did not check."
_UNCHOSEN = (
    _HEAD + "s = p.add_subparsers(dest='what')\ns.add_parser('fit').add_argument('--lr')\n"
    "print(p.parse_known_args())\n"
)

CELLS = [
    Cell("flag", _one('"--x", action="store_true"'), "--x", {"x": True}, "true"),
    Cell("flag for false", _one('"--x", action="store_false"'), "--x", {"x": True}, "true"),
    Cell("flag value", _one('"--x", action="store_const", const=3'), "--x", {"x": True}, "true"),
    Cell("negatable flag", _NEGATABLE, "--no-x", {"x": False}, "false"),
    Cell("optional value, bare", _OPTIONAL, "--x", {"x": True}, "true"),
    Cell("optional value", _OPTIONAL, "--x d", {"x": "d"}, "d"),
    Cell("optional value, false", _OPTIONAL, "", {"x": False}, "false"),
    Cell("optional truth, true", _SWITCHED, "--x", {"x": True}, "true"),
    Cell("optional truth, false", _SWITCHED, "--x false", {"x": False}, "false"),
    Cell("count", _one('"-x", action="count"'), "-xx", {"x": 2}, "2"),
    Cell("long flag with one dash", _one('"-lr", type=float'), "-lr 0.5", {"lr": 0.5}, "0.5"),
    Cell("value that begins with a dash", _one('"--x"'), "--x=-a", {"x": "-a"}, "-a"),
    Cell("negative number", _one('"--x", type=int'), "--x -1", {"x": -1}, "-1"),
    Cell("small number", _one('"--x", type=float'), "--x 1e-05", {"x": 1e-05}, "1e-05"),
    Cell("text like a number", _one('"--x"'), "--x 1.10", {"x": "1.10"}, "1.10"),
    Cell("empty text", _one('"--x", default="d"'), "--x ''", {"x": ""}),
    Cell("choice", _one('"--x", choices=["a", "b"]'), "--x b", {"x": "b"}, "b"),
    Cell("choice of numbers", _one('"--x", type=int, choices=[1, 2]'), "--x 2", {"x": 2}, "2"),
    Cell(
        "choice without case",
        _one('"--x", type=str.lower, choices=["a", "b"]'),
        *("--x B", {"x": "B"}, "B"),
    ),
    Cell("enum by value", _one('"--x", type=Kind'), "--x beta", {"x": "beta"}, "beta"),
    Cell(
        "enum by value with choices",
        _one('"--x", type=Kind, choices=list(Kind)'),
        *("--x beta", {"x": "beta"}, "beta"),
    ),
    Cell(
        "enum by name",
        _one('"--x", type=lambda name: Kind[name], choices=list(Kind)'),
        *("--x B", {"x": "B"}, "B"),
    ),
    Cell(
        "enum by name with choices",
        _one('"--x", choices=[one.name for one in Kind]'),
        *("--x B", {"x": "B"}, "B"),
    ),
    Cell("list by `nargs`", _one('"--x", nargs="+", type=int'), "--x 1 2", {"x": [1, 2]}),
    Cell("list by `nargs`, one value", _one('"--x", nargs="+"'), "--x a", {"x": "a"}, "a"),
    Cell("empty list", _one('"--x", nargs="*", default=["a"]'), "--x", {"x": []}),
    Cell(
        "list of negative numbers", _one('"--x", nargs="+", type=int'), "--x -1 -2", {"x": [-1, -2]}
    ),
    Cell("tuple by `nargs=2`", _one('"--x", nargs=2'), "--x a b", {"x": ["a", "b"]}),
    Cell("list by repetition", _one('"--x", action="append"'), "--x a --x b", {"x": ["a", "b"]}),
    Cell("extended list", _one('"--x", action="extend", nargs="+"'), "--x a b", {"x": ["a", "b"]}),
    Cell("list of lists", _PAIRS, "--x 1 2 --x 3 4", {"x": [[1, 2], [3, 4]]}),
    Cell(
        "list by comma",
        _one('"--x", type=lambda text: text.split(",")'),
        *("--x a,b", {"x": ["a", "b"]}),
        reason=_SPLITS,
    ),
    Cell("list by literal", _one('"--x", type=ast.literal_eval'), "--x '[1, 2]'", {"x": "[1, 2]"}),
    Cell("pairs", _one('"--x", nargs="*", action=Pairs'), "--x a=1 b=2", {"x": ["a=1", "b=2"]}),
    Cell("`type=bool`, false", _BOOL, "--x ''", {"x": False}, "false"),
    Cell("`type=bool`, true", _BOOL, "--x true", {"x": True}, "true"),
    Cell("named type of truth", _one('"--x", type=bool_of'), "--x true", {"x": True}, "true"),
    Cell(
        "own type of truth",
        _one('"--x", type=lambda text: text == "true"'),
        *("--x true", {"x": True}, "true"),
        reason="Only the program knows its words for true: fdl passes `true`, and says so.",
    ),
    Cell(
        "own type of truth with another word",
        _one('"--x", type=lambda text: text == "yes"'),
        *("--x yes", {"x": True}),
        reason="Only the program knows its words for true: write the word as text, `x: 'yes'`.",
    ),
    Cell("JSON text", _LOADS, """--x '{"a": 1}'""", {"x": '{"a": 1}'}),
    Cell(
        "JSON mapping",
        _LOADS,
        """--x '{"a": 1, "b": [true, "c"]}'""",
        {"x": {"a": 1, "b": [True, "c"]}},
    ),
    Cell("JSON list", _LOADS, """--x '[1, "a"]'""", {"x": [1, "a"]}),
    Cell("JSON false", _LOADS, "--x false", {"x": False}, "false"),
    Cell("JSON null", _LOADS, "--x null", {"x": None}, "null"),
    Cell(
        "date",
        _one('"--x", type=datetime.date.fromisoformat'),
        *("--x 2026-01-02", {"x": "2026-01-02"}, "2026-01-02"),
    ),
    Cell("path", _one('"--x", type=pathlib.Path'), "--x a/b", {"x": "a/b"}, "a/b"),
    Cell(
        "default from the environment",
        _one('"--x", default=os.environ.get("LR", "1")'),
        *("LR=2 --x 3", {"x": 3}, "3"),
    ),
    Cell("positional", _one('"x", type=int'), "3", {"x": 3}, "3"),
    Cell("optional positional", _one('"x", nargs="?", default="d"'), "a", {"x": "a"}, "a"),
    Cell("positionals by `nargs=2`", _one('"x", nargs=2'), "a b", {"x": ["a", "b"]}),
    Cell("positional list", _one('"x", nargs="+", type=int'), "1 2", {"x": [1, 2]}),
    Cell("two positionals", _one('"a"', '"b", nargs="*"'), "1 2 3", {"b": [2, 3], "a": 1}),
    Cell("positionals behind a list", _BEHIND, "a.txt --x 1 2", {"x": [1, 2], "files": ["a.txt"]}),
    Cell(
        "rest of the line",
        _one('"x", nargs=argparse.REMAINDER'),
        "a --b c",
        {"x": ["a", "--b", "c"]},
    ),
    Cell("option of a subcommand", _OUTER, "fit --lr 0.5", {"lr": 0.5}, "0.5", "subcommand: fit"),
    Cell(
        "options before and behind a subcommand",
        _OUTER,
        *("--seed 3 fit --lr 0.5 --amp", {"lr": 0.5, "amp": True, "seed": 3}, "0.5"),
        "subcommand: fit",
    ),
    Cell(
        "unknown option",
        _UNKNOWN,
        *("--y 3", {"y": 3}, "3"),
        reason="The program passes on what it does not declare: fdl does too, and says so.",
    ),
    Cell(
        "option of a subcommand that is not chosen",
        _UNCHOSEN,
        *("--lr=3", {"lr": 3}, "3"),
        reason="The program ignores such an option. fdl asks for `subcommand: fit`.",
    ),
]
