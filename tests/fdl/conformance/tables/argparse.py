"""Options of argparse."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "argparse"


def _one(declared: str) -> str:
    return (
        "import argparse, datetime, json, pathlib\n"
        f"p = argparse.ArgumentParser()\np.add_argument({declared})\nprint(p.parse_args())\n"
    )


_NEGATABLE = _one('"--x", action=argparse.BooleanOptionalAction, default=True')
_OPTIONAL = _one('"--x", nargs="?", const="c"')
_DATE = _one('"--x", type=datetime.date.fromisoformat')

CELLS = [
    Cell("flag", _one('"--x", action="store_true"'), "--x", {"x": True}, "true"),
    Cell("negatable flag", _NEGATABLE, "--no-x", {"x": False}, "false"),
    Cell("optional value, bare", _OPTIONAL, "--x", {"x": True}, "true"),
    Cell("optional value", _OPTIONAL, "--x d", {"x": "d"}, "d"),
    Cell("count", _one('"--x", action="count"'), "--x --x", {"x": 2}, "2"),
    Cell("choice", _one('"--x", choices=["a", "b"]'), "--x b", {"x": "b"}, "b"),
    Cell("list by `nargs`", _one('"--x", nargs="+", type=int'), "--x 1 2", {"x": [1, 2]}),
    Cell("tuple by `nargs=2`", _one('"--x", nargs=2'), "--x a b", {"x": ["a", "b"]}),
    Cell("list by repetition", _one('"--x", action="append"'), "--x a --x b", {"x": ["a", "b"]}),
    Cell("extended list", _one('"--x", action="extend", nargs="+"'), "--x a b", {"x": ["a", "b"]}),
    Cell("`type=bool`", _one('"--x", type=bool'), "--x ''", {"x": False}, "false"),
    Cell("JSON text", _one('"--x", type=json.loads'), """--x '{"a": 1}'""", {"x": '{"a": 1}'}),
    Cell("date", _DATE, "--x 2026-01-02", {"x": "2026-01-02"}, "2026-01-02"),
    Cell("path", _one('"--x", type=pathlib.Path'), "--x a/b", {"x": "a/b"}, "a/b"),
]
