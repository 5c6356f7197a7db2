"""Options of Typer."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "Typer"
_HEAD = """
import datetime, enum, json, pathlib, typer, uuid
from typing import Annotated, Literal, Optional
class Kind(enum.Enum):
    A = "alpha"
    B = "beta"
"""


def _one(declared: str) -> str:
    return f"{_HEAD}def main(x: {declared}): print(repr(x))\ntyper.run(main)\n"


_COUNT = _one("Annotated[int, typer.Option(count=True)] = 0")
_CASE = _one("Annotated[Kind, typer.Option(case_sensitive=False)] = Kind.A")
_GROUP = (
    f"{_HEAD}app = typer.Typer()\n@app.callback()\ndef top(seed: int = 0): print(seed)\n"
    "@app.command()\ndef fit(lr: float = 0.1, amp: bool = False): print(lr, amp)\n"
    "@app.command()\ndef test(): print('test')\napp()\n"
)
_FILES = f"{_HEAD}def main(files: list[str], x: list[int] = []): print(files, x)\ntyper.run(main)\n"
_LOADS = _one("Annotated[dict, typer.Option(parser=json.loads)] = None")

CELLS = [
    Cell("flag", _one("bool = False"), "--x", {"x": True}, "true"),
    Cell("negatable flag", _one("bool = True"), "--no-x", {"x": False}, "false"),
    Cell("flag or nothing", _one("Optional[bool] = None"), "--no-x", {"x": False}, "false"),
    Cell(
        "flag with another negative",
        _one("Annotated[bool, typer.Option('--on/--off')] = True"),
        "--off",
        {"on": False},
        "false",
    ),
    Cell("count", _COUNT, "--x --x", {"x": 2}, "2"),
    Cell("choice", _one("Literal['a', 'b'] = 'a'"), "--x b", {"x": "b"}, "b"),
    Cell("enum by value", _one("Kind = Kind.A"), "--x beta", {"x": "beta"}, "beta"),
    Cell("enum without case", _CASE, "--x BETA", {"x": "BETA"}, "BETA"),
    Cell(
        "list of members", _one("list[Kind] = []"), "--x beta --x alpha", {"x": ["beta", "alpha"]}
    ),
    Cell("list by repetition", _one("list[int] = []"), "--x 1 --x 2", {"x": [1, 2]}),
    Cell("tuple", _one("tuple[int, str] = (0, '')"), "--x 1 a", {"x": [1, "a"]}),
    Cell("number or nothing", _one("int | None = None"), "--x 3", {"x": 3}, "3"),
    Cell("JSON mapping", _LOADS, """--x '{"a": 1}'""", {"x": {"a": 1}}),
    Cell(
        "date",
        _one("datetime.datetime = None"),
        "--x 2026-01-02",
        {"x": "2026-01-02"},
        "2026-01-02",
    ),
    Cell("path", _one("pathlib.Path = None"), "--x a/b", {"x": "a/b"}, "a/b"),
    Cell("variable", _one("Annotated[int, typer.Option(envvar='LR')] = 1"), "LR=2", {"x": 3}),
    Cell("positional", _one("int"), "3", {"x": 3}, "3"),
    Cell(
        "optional positional", _one("Annotated[str, typer.Argument()] = 'd'"), "a", {"x": "a"}, "a"
    ),
    Cell("positional tuple", _one("tuple[str, int]"), "a 2", {"x": ["a", 2]}),
    Cell(
        "positionals behind a list", _FILES, "--x 1 --x 2 a b", {"x": [1, 2], "files": ["a", "b"]}
    ),
    Cell("required option", _one("Annotated[int, typer.Option()]"), "--x 3", {"x": 3}, "3"),
    Cell("option of a subcommand", _GROUP, "fit --lr 0.5", {"lr": 0.5}, "0.5", "subcommand: fit"),
    Cell(
        "options before and behind a subcommand",
        _GROUP,
        *("--seed 3 fit --lr 0.5 --amp", {"lr": 0.5, "amp": True, "seed": 3}, "0.5"),
        "subcommand: fit",
    ),
]
