#!/usr/bin/env python3
"""Write docs/design/cases.md: every acceptance case with the tests that prove it.

A test says which case it proves with ``@pytest.mark.case(PART, NUMBER)``; its name says the
behaviour. The page is made from the source text, nothing is imported: ``cases.py`` writes it,
``cases.py --check`` fails when it is out of date.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design" / "cases.md"
PARTS = {"cli": 64, "runtime": 84, "distributed": 65, "hf": 54}
"""Number of acceptance cases of each part."""

Proof = tuple[str, int, str, str]
"""Part, number, what the test's name says, and its pytest id."""


def proofs(file: Path) -> Iterator[Proof]:
    """The cases that the tests of one file claim to prove."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        sentence = node.name.removeprefix("test_").replace("_", " ")
        place = f"{file.relative_to(ROOT).as_posix()}::{node.name}"
        for mark in _decorations(node, tree):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.case":
                part, number = (ast.literal_eval(value) for value in mark.args)
                yield part, number, sentence, place


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
        missing = sorted(set(range(1, total + 1)) - {number for _, number, _, _ in mine})
        lines += ["", f"## {part}: {total - len(missing)} of {total}", ""]
        if mine:
            lines += ["| case | behaviour | test |", "|---|---|---|"]
            lines += [f"| {n} | {sentence} | `{place}` |" for _, n, sentence, place in mine]
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
                "error: docs/design/cases.md is out of date\nrun: python scripts/cases.py\n"
            )
            return 1
        return 0
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
