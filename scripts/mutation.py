#!/usr/bin/env python3
"""Change the code in small ways, one at a time, and see whether the tests notice.

    python scripts/mutation.py manifest            # 40 changes of fdl/manifest
    python scripts/mutation.py --count 10 data

The changes are chosen by a fixed seed: a comparison, a boolean, a number, an arithmetic sign, a
returned value, a removed call, a negated condition. They are made in a copy of the checkout. The
output lists the changes that no test noticed, to be read one by one; docs/design/mutation.md keeps
the table.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 240
"""A change that makes the tests hang is noticed as well."""


def _tests(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


TARGETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "manifest": (("fdl/manifest/*.py",), ("tests/fdl/manifest",)),
    "planning": (
        ("fdl/planning/*.py", "fdl/select/*.py"),
        _tests("fdl", "presets dispatch quoting spelling ranks docker environments"),
    ),
    "schedule": (
        ("flodl/distributed/planning/*.py",),
        _tests("flodl/distributed", "elche guard scheduler ghost"),
    ),
    "graph": (
        ("flodl/graph/codegen.py", "flodl/graph/draft.py", "flodl/graph/topology.py"),
        _tests(
            "flodl/graph",
            "cases_builder builder names inputs optional_inputs graph routing loops state "
            "mapping errors identity random_graphs",
        ),
    ),
    "checkpoint": (("flodl/checkpoint/*.py",), ("tests/flodl/checkpoint",)),
    "data": (("flodl/data/*.py",), ("tests/flodl/data",)),
    "resume": (
        ("flodl/train/resume.py", "flodl/train/training_state.py", "flodl/train/loop_state.py"),
        _tests("flodl/train", "continuation resume_hint kill_resume trainer"),
    ),
    "weights": (
        ("flodl/hf/weights/*.py",),
        _tests("flodl/hf", "shards loading loading_mutations safetensors_io export"),
    ),
}
"""Name -> the files that are changed, and the tests that should notice."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        file: Path below the checkout.
        line: Where it is, from 1.
        before: The text that is replaced.
        after: What replaces it.
        text: The whole changed file.
    """

    file: str
    line: int
    before: str
    after: str
    text: str


def replacements(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The part of a node that may be replaced, with its replacement."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        changed = ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]],
                              node.comparators)  # fmt: skip
        yield node, f"({ast.unparse(changed)})"
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        yield node, f"({ast.unparse(ast.BinOp(node.left, _SIGNS[type(node.op)](), node.right))})"
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int):
        was: bool | int = node.value  # type: ignore[assignment]
        yield node, repr(not was if isinstance(was, bool) else was + 1)
    elif isinstance(node, ast.If):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.Return) and node.value is not None:
        yield node, "return None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of decorators, annotations, and f-strings, whose parts have no places."""
    for name, value in ast.iter_fields(tree):
        for child in value if isinstance(value, list) else [value]:
            types_only = name in ("annotation", "returns", "decorator_list")
            if isinstance(child, ast.AST) and not (types_only or isinstance(child, ast.JoinedStr)):
                yield child
                yield from nodes(child)


def mutants(file: Path) -> Iterator[Mutant]:
    """Every change of one file."""
    text = file.read_text(encoding="utf-8")
    raw = text.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in nodes(ast.parse(text)):
        for part, after in replacements(node):
            at = starts[part.lineno - 1] + part.col_offset  # type: ignore[attr-defined]
            end = starts[part.end_lineno - 1] + part.end_col_offset  # type: ignore[attr-defined]
            before = raw[at:end].decode()
            changed = (raw[:at] + after.encode() + raw[end:]).decode()
            if before == after:
                continue
            yield Mutant(str(file.relative_to(ROOT)), part.lineno, before, after, changed)  # type: ignore[attr-defined]


def chosen(patterns: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    """A sample of all changes, the same for the same code."""
    files = sorted(file for pattern in patterns for file in ROOT.glob(pattern))
    everything = [one for file in files for one in mutants(file)]
    choose = random.Random(seed)  # noqa: S311 - lines of code, no secret
    return choose.sample(everything, min(count, len(everything)))


def notices(copy: Path, tests: tuple[str, ...]) -> bool:
    """Whether a test fails in a copy of the checkout."""
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout", "60"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *tests],
            check=False,
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "CI": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> int:
    """Run the changes of one target; the exit code is 0 if the tests pass without a change."""
    parser = argparse.ArgumentParser(description="Change the code and run its tests.")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--count", type=int, default=40, help="changes to try (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    asked = parser.parse_args()
    patterns, tests = TARGETS[asked.target]
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Path(folder) / "checkout-to-change"
        for name in listed.stdout.splitlines():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        if notices(copy, tests):
            sys.stderr.write("error: the tests fail without any change\n")
            return 1
        survivors = 0
        sample = chosen(patterns, asked.count, asked.seed)
        for one in sample:
            (copy / one.file).write_text(one.text, encoding="utf-8")
            if not notices(copy, tests):
                survivors += 1
                sys.stdout.write(f"{one.file}:{one.line}: {one.before!r} -> {one.after!r}\n")
                sys.stdout.flush()
            shutil.copy2(ROOT / one.file, copy / one.file)
    killed = len(sample) - survivors
    sys.stdout.write(f"{asked.target}: {killed} of {len(sample)} noticed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
