"""Each kind of option of a library: by hand, in a preset, and typed behind fdl."""

from __future__ import annotations

import json
import shlex

import pytest

from tests import fork_server

ARGPARSE = """
import argparse, json, pathlib, datetime
p = argparse.ArgumentParser()
p.add_argument({declared})
print(p.parse_args())
"""
CLICK = """
import click
@click.command()
@click.option({declared})
def main(**given): print(given)
main()
"""
TYPER = """
import datetime, enum, pathlib, typer
from typing import Annotated
class Kind(enum.Enum):
    A = "alpha"
    B = "beta"
def main(x: {declared}): print(repr(x))
typer.run(main)
"""

# Library, declaration, what is typed by hand, the value in a manifest.
CELLS = [
    (ARGPARSE, '"--x", action="store_true"', "--x", True),
    (ARGPARSE, '"--x", action=argparse.BooleanOptionalAction, default=True', "--no-x", False),
    (ARGPARSE, '"--x", nargs="?", const="c"', "--x", True),
    (ARGPARSE, '"--x", nargs="?", const="c"', "--x d", "d"),
    (ARGPARSE, '"--x", action="count"', "--x --x", 2),
    (ARGPARSE, '"--x", choices=["a", "b"]', "--x b", "b"),
    (ARGPARSE, '"--x", nargs="+", type=int', "--x 1 2", [1, 2]),
    (ARGPARSE, '"--x", nargs=2', "--x a b", ["a", "b"]),
    (ARGPARSE, '"--x", action="append"', "--x a --x b", ["a", "b"]),
    (ARGPARSE, '"--x", action="extend", nargs="+"', "--x a b", ["a", "b"]),
    (ARGPARSE, '"--x", type=bool', "--x ''", False),
    (ARGPARSE, '"--x", type=json.loads', """--x '{"a": 1}'""", '{"a": 1}'),
    (ARGPARSE, '"--x", type=datetime.date.fromisoformat', "--x 2026-01-02", "2026-01-02"),
    (ARGPARSE, '"--x", type=pathlib.Path', "--x a/b", "a/b"),
    (CLICK, '"--x", is_flag=True', "--x", True),
    (CLICK, '"--x/--no-x", default=True', "--no-x", False),
    (CLICK, '"--x", is_flag=False, flag_value="f", default="d"', "--x g", "g"),
    (CLICK, '"--x", count=True', "--x --x", 2),
    (CLICK, '"--x", type=click.Choice(["Fast", "Slow"], case_sensitive=False)', "--x slow", "slow"),
    (CLICK, '"--x", multiple=True', "--x a --x b", ["a", "b"]),
    (CLICK, '"--x", nargs=2, type=int', "--x 1 2", [1, 2]),
    (CLICK, '"--x", type=bool', "--x false", False),
    (CLICK, '"--x", type=click.DateTime()', "--x 2026-01-02", "2026-01-02"),
    (CLICK, '"--x", type=click.Path()', "--x a/b", "a/b"),
    (TYPER, "bool = False", "--x", True),
    (TYPER, "bool = True", "--no-x", False),
    (TYPER, "Annotated[int, typer.Option(count=True)] = 0", "--x --x", 2),
    (TYPER, "Kind = Kind.A", "--x beta", "beta"),
    (TYPER, "list[int] = []", "--x 1 --x 2", [1, 2]),
    (TYPER, "tuple[int, str] = (0, '')", "--x 1 a", [1, "a"]),
    (TYPER, "datetime.datetime = None", "--x 2026-01-02", "2026-01-02"),
    (TYPER, "pathlib.Path = None", "--x a/b", "a/b"),
]


# Every third cell is tried each day.
MARKED = [
    pytest.param(*cell, marks=() if place % 3 == 1 else pytest.mark.slow)
    for place, cell in enumerate(CELLS)
]


@pytest.mark.parametrize(("library", "declared", "by_hand", "value"), MARKED)
def test_a_program_sees_the_same_values(driven, tmp_path, library, declared, by_hand, value):
    other = "  p: {options: {x: " + json.dumps(value) + "}}"
    call = driven(library.format(declared=declared), other)
    words = shlex.split(by_hand)
    expected = fork_server.python("main.py", *words, cwd=tmp_path)
    assert expected.returncode == 0, expected.stderr
    assert call("p") == expected.stdout.strip()
    if not isinstance(value, list | int):
        assert call("p", *words) == expected.stdout.strip()
