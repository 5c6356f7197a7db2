"""Fire: parameters of a function, whose values are Python literals."""

from __future__ import annotations

from tests.fdl.conformance.cell import Cell

LIBRARY = "Fire"

_PROGRAM = """
import fire

def fit({}):
    print({name: value for name, value in sorted(locals().items())})

fire.Fire(fit)
"""


def _fit(declared: str) -> str:
    return _PROGRAM.replace("{}", declared)


_PLAIN = _fit("x=None, lr=0.1")
_CLASS = """
import fire

class Job:
    def __init__(self, lr=0.1, amp=False):
        self.lr, self.amp = lr, amp

    def fit(self, epochs=1, tag="a"):
        print("fit", self.lr, self.amp, repr(epochs), repr(tag))

    def test(self, fast=False):
        print("test", self.lr, fast)

fire.Fire(Job)
"""
_FUNCTIONS = """
import fire

def fit(epochs=1, tag="a"):
    print("fit", repr(epochs), repr(tag))

def test(fast=False):
    print("test", fast)

fire.Fire({"fit": fit, "test": test})
"""

_ANY = (
    "The function takes any name: fdl writes the value as Python, and says that it did not check."
)

CELLS = [
    Cell("flag", _fit("x=False"), "--x", {"x": True}, "true"),
    Cell("negatable flag", _fit("x=True"), "--nox", {"x": False}, "false"),
    Cell("text", _PLAIN, "--x main", {"x": "main"}, "main"),
    Cell("text like a number", _PLAIN, """--x '"1.10"'""", {"x": "1.10"}),
    Cell("text like a truth", _PLAIN, """--x '"True"'""", {"x": "True"}),
    Cell("text with a comma", _PLAIN, """--x '"a,b"'""", {"x": "a,b"}),
    Cell("text with a quote", _PLAIN, '--x "it\'s so"', {"x": "it's so"}),
    Cell("text like a flag", _PLAIN, "--x=-a", {"x": "-a"}),
    Cell("empty text", _PLAIN, """--x '""'""", {"x": ""}),
    Cell("number", _PLAIN, "--x 3", {"x": 3}, "3"),
    Cell("number below zero", _PLAIN, "--x -3", {"x": -3}, "-3"),
    Cell("text where the default is a number", _PLAIN, "--lr auto", {"lr": "auto"}, "auto"),
    Cell("number where the default is a flag", _fit("x=False"), "--x 3", {"x": 3}, "3"),
    Cell("null", _fit("x=1"), "--x None", {"x": None}),
    Cell("null where the default is a flag", _fit("x=True"), "--x None", {"x": None}),
    Cell("list", _PLAIN, "--x '[1,2]'", {"x": [1, 2]}),
    Cell(
        "list of texts",
        _PLAIN,
        """--x '["1", "a b", None, True]'""",
        {"x": ["1", "a b", None, True]},
    ),
    Cell("list of lists", _PLAIN, "--x '[[1,2],[3]]'", {"x": [[1, 2], [3]]}),
    Cell("empty list", _fit("x=(1,)"), "--x '[]'", {"x": []}),
    Cell("dict", _PLAIN, """--x '{"a": 1, "b": "2"}'""", {"x": {"a": 1, "b": "2"}}),
    Cell("dict in a dict", _PLAIN, """--x '{"a": {"b.c": [1]}}'""", {"x": {"a": {"b.c": [1]}}}),
    Cell("date", _PLAIN, """--x '"2026-01-02"'""", {"x": "2026-01-02"}),
    Cell("path", _PLAIN, "--x a/b.txt", {"x": "a/b.txt"}, "a/b.txt"),
    Cell("parameter without a default", _fit("x, y"), "--x 1 --y b", {"x": 1, "y": "b"}, "1"),
    Cell("parameter by name alone", _fit("*, x=1"), "--x 2", {"x": 2}, "2"),
    Cell("name of two words", _fit("batch_size=1"), "--batch-size 2", {"batch_size": 2}, "2"),
    Cell(
        "any other name",
        _fit("lr=0.1, **more"),
        """--x '"1.10"'""",
        {"x": "1.10"},
        reason=_ANY,
    ),
    Cell(
        "any other name, a list",
        _fit("lr=0.1, **more"),
        "--x '[1,2]'",
        {"x": [1, 2]},
        reason=_ANY,
    ),
    Cell(
        "functions",
        _FUNCTIONS,
        "fit --epochs 2 --tag '\"3\"'",
        {"epochs": 2, "tag": "3"},
        rest="subcommand: fit",
    ),
    Cell(
        "method of a class",
        _CLASS,
        "--lr 0.5 fit --epochs 2",
        {"lr": 0.5, "epochs": 2},
        rest="subcommand: fit",
    ),
    Cell(
        "flag of a class",
        _CLASS,
        "--amp=True test --fast",
        {"amp": True, "fast": True},
        rest="subcommand: test",
    ),
]
