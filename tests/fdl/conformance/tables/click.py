"""Options of click."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "click"


def _one(declared: str) -> str:
    return (
        "import click\n"
        f"@click.command()\n@click.option({declared})\ndef main(**given): print(given)\nmain()\n"
    )


_VALUE = _one('"--x", is_flag=False, flag_value="f", default="d"')
_CASE = _one('"--x", type=click.Choice(["Fast", "Slow"], case_sensitive=False)')

CELLS = [
    Cell("flag", _one('"--x", is_flag=True'), "--x", {"x": True}, "true"),
    Cell("negatable flag", _one('"--x/--no-x", default=True'), "--no-x", {"x": False}, "false"),
    Cell("optional value", _VALUE, "--x g", {"x": "g"}, "g"),
    Cell("count", _one('"--x", count=True'), "--x --x", {"x": 2}, "2"),
    Cell("choice without case", _CASE, "--x slow", {"x": "slow"}, "slow"),
    Cell("list by repetition", _one('"--x", multiple=True'), "--x a --x b", {"x": ["a", "b"]}),
    Cell("tuple by `nargs=2`", _one('"--x", nargs=2, type=int'), "--x 1 2", {"x": [1, 2]}),
    Cell("`type=bool`", _one('"--x", type=bool'), "--x false", {"x": False}, "false"),
    Cell("date", _one('"--x", type=click.DateTime()'), "--x 2026-01-02", {"x": "2026-01-02"}),
    Cell("path", _one('"--x", type=click.Path()'), "--x a/b", {"x": "a/b"}, "a/b"),
]
