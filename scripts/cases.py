#!/usr/bin/env python3
"""Write tests/records/cases.md: every acceptance case with the tests that prove it.

A test says which case it proves with ``@pytest.mark.case(PART, NUMBER)``; its name says the
behaviour. A test of the slow suite stands with the date and machine of its last run, which
``slow_tests.py`` keeps; one that needs a GPU is said never to have run. The page is made from the
source text, nothing is imported: ``cases.py`` writes it, ``cases.py --check`` fails when it is out
of date.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "tests" / "records" / "cases.md"
PARTS = {"cli": 64, "runtime": 84, "distributed": 65, "hf": 54}
"""Number of acceptance cases of each part."""

SLOW = ROOT / "tests" / "records" / "slow_tests.md"
EVERYDAY = "every change"
SELDOM = ("slow", "gpu")
"""Marks of tests that do not run for every change."""

_ENDED = {"failure": "failed", "error": "failed"}
"""Word of the page of the slow suite -> word here."""

Proof = tuple[str, int, str, str, str]
"""Part, number, what the test's name says, its pytest id, and when it runs."""


def proofs(file: Path) -> Iterator[Proof]:
    """The cases that the tests of one file claim to prove."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    everywhere = _marks(_module_marks(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        marks = everywhere | _marks(node.decorator_list)
        sentence = node.name.removeprefix("test_").replace("_", " ")
        place = f"{file.relative_to(ROOT).as_posix()}::{node.name}"
        for mark in _decorations(node, tree):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.case":
                part, number = (ast.literal_eval(value) for value in mark.args)
                yield part, number, sentence, place, _runs_when(place, marks)


def _module_marks(tree: ast.Module) -> list[ast.expr]:
    """What ``pytestmark`` of a file holds."""
    return [
        statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "pytestmark"
    ]


def _marks(nodes: Iterable[ast.expr]) -> set[str]:
    """The marks that hold for a whole test; those of single parameters do not count."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.List):
            found |= _marks(node.elts)
        else:
            text = ast.unparse(node).partition("(")[0]
            found |= {name for name in SELDOM if text == f"pytest.mark.{name}"}
    return found


def _runs_when(place: str, marks: set[str]) -> str:
    """When a test ran last."""
    if "gpu" in marks:
        return "never: needs a GPU"
    if "slow" not in marks:
        return EVERYDAY
    rows = [line for line in slow_rows() if f"`{place}`" in line or f"`{place}[" in line]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    passed = sorted(f"{cell[3]} ({cell[5].strip(' |')})" for cell in cells if cell[1] == "passed")
    others = [cell for cell in cells if cell[1] != "passed"]
    told = ", ".join(sorted({" ".join([_ENDED.get(c[1], c[1]), c[3]]).strip() for c in others}))
    if not passed:
        return f"slow: {told or 'no record'}"
    ran = f"slow: {passed[0]}"
    return f"{ran}; {len(others)} of {len(cells)} without a pass: {told}" if others else ran


@cache
def slow_rows() -> list[str]:
    """The rows of the page of the slow suite."""
    text = SLOW.read_text(encoding="utf-8") if SLOW.exists() else ""
    return [line for line in text.splitlines() if line.startswith("| `")]


def _decorations(function: ast.FunctionDef, tree: ast.Module) -> Iterator[ast.AST]:
    """Everything in a function's decorators, the tables of parameters they name included."""
    tables = {
        ast.unparse(target): statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    }
    for decorator in function.decorator_list:
        for node in ast.walk(decorator):
            yield node
            if isinstance(node, ast.Name) and node.id in tables:
                yield from ast.walk(tables[node.id])


def page(found: list[Proof]) -> str:
    """The Markdown page."""
    lines = [
        "# Acceptance cases",
        "",
        "Made by `python scripts/cases.py` from the marks of the tests; do not edit.",
    ]
    for part, total in PARTS.items():
        mine = sorted(proof for proof in found if proof[0] == part)
        missing = sorted(set(range(1, total + 1)) - {proof[1] for proof in mine})
        everyday = {proof[1] for proof in mine if proof[4] == EVERYDAY}
        lines += ["", f"## {part}: {total - len(missing)} of {total}", ""]
        seldom = sorted({proof[1] for proof in mine} - everyday)
        lines.append(f"{len(everyday)} run for every change.")
        if seldom:
            lines[-1] += f" Not for every change: {', '.join(map(_span, _runs(seldom)))}."
        lines.append("")
        if mine:
            lines += ["| case | behaviour | test | last run |", "|---|---|---|---|"]
            lines += [f"| {n} | {says} | `{place}` | {ran} |" for _, n, says, place, ran in mine]
            lines.append("")
        if missing:
            lines.append("No test yet: " + ", ".join(map(_span, _runs(missing))) + ".")
    return "\n".join(lines) + "\n"


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _span(run: tuple[int, int]) -> str:
    first, last = run
    return str(first) if first == last else f"{first}–{last}"


def main() -> int:
    """Write or check the page; the exit code is 1 when a check finds it out of date."""
    found = [proof for file in sorted(ROOT.glob("tests/**/test_*.py")) for proof in proofs(file)]
    unknown = [proof for proof in found if proof[1] not in range(1, PARTS.get(proof[0], 0) + 1)]
    if unknown:
        sys.stderr.write(f"error: no such case: {unknown}\n")
        return 1
    text = page(found)
    if "--check" in sys.argv[1:]:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != text:
            sys.stderr.write(
                "error: tests/records/cases.md is out of date\nrun: python scripts/cases.py\n"
            )
            return 1
        return 0
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
