"""Options of Typer."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "Typer"


def _one(declared: str) -> str:
    return (
        "import datetime, enum, pathlib, typer\nfrom typing import Annotated\n"
        "class Kind(enum.Enum):\n    A = 'alpha'\n    B = 'beta'\n"
        f"def main(x: {declared}): print(repr(x))\ntyper.run(main)\n"
    )


_COUNT = _one("Annotated[int, typer.Option(count=True)] = 0")

CELLS = [
    Cell("flag", _one("bool = False"), "--x", {"x": True}, "true"),
    Cell("negatable flag", _one("bool = True"), "--no-x", {"x": False}, "false"),
    Cell("count", _COUNT, "--x --x", {"x": 2}, "2"),
    Cell("enum by value", _one("Kind = Kind.A"), "--x beta", {"x": "beta"}, "beta"),
    Cell("list by repetition", _one("list[int] = []"), "--x 1 --x 2", {"x": [1, 2]}),
    Cell("tuple", _one("tuple[int, str] = (0, '')"), "--x 1 a", {"x": [1, "a"]}),
    Cell("date", _one("datetime.datetime = None"), "--x 2026-01-02", {"x": "2026-01-02"}),
    Cell("path", _one("pathlib.Path = None"), "--x a/b", {"x": "a/b"}, "a/b"),
]
