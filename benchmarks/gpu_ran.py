"""What ran on a GPU, and what never did: the page of ``python -m benchmarks.gpu --list``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import torch

from benchmarks.gpu_lines import ROOT, Place, places
from benchmarks.measure import environment, table


def gpu_tests() -> list[str]:
    """The node ids of the tests that are marked ``gpu``, as pytest collects them."""
    marked = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "-n", "0"]
    listed = subprocess.run(
        [*command, *marked], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listed.splitlines() if "::" in line]


RAN = ROOT / "docs/benchmarks/gpu_ran.json"
"""What ran on a GPU the last time: where and when, the tests that passed, and places of code."""


def what_ran(junit: Path, coverage: Path) -> dict[str, object]:
    """What a run of ``pytest -m gpu`` on this machine proves.

    Args:
        junit: Its ``--junitxml``.
        coverage: The lines that it ran, from ``coverage json``.
    """
    cases = ElementTree.parse(junit).iter("testcase")
    passed = Counter(
        f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').split('[')[0]}"
        for case in cases
        if all(case.find(kind) is None for kind in ("skipped", "failure", "error"))
    )
    files = json.loads(coverage.read_text(encoding="utf-8"))["files"]
    # In bodies and outside of them: those of `def` and `class` run where nothing is called, too.
    lines: dict[tuple[str, bool], set[int]] = {}
    for name, file in files.items():
        for body, part in file["functions"].items():
            lines.setdefault((name, bool(body)), set()).update(part["executed_lines"])
    code = [
        _key(place)
        for place in places()
        if not lines.get((place.file, bool(place.function)), set()).isdisjoint(
            range(place.line, place.last + 1)
        )
    ]
    where, _, today = environment("torch").rpartition(", ")
    name = torch.cuda.get_device_name()
    return {"where": f"{name}; {where}", "date": today, "tests": dict(passed), "code": code}


def _key(place: Place) -> list[str]:
    """What a place is known by after lines were added above it."""
    return [place.file, place.function, place.why]


def never_run(cells: Sequence[tuple[str, str, str]]) -> str:
    """The page of what has run on a GPU, and what never has.

    Args:
        cells: Part, row and column of every figure that is measured there.
    """
    figures = Counter((part, row) for part, row, _ in cells)
    columns = {key: [one[2] for one in cells if one[:2] == key] for key in figures}
    tests = Counter(name.partition("[")[0] for name in gpu_tests())
    ran = json.loads(RAN.read_text(encoding="utf-8"))
    every = places()
    code = [place for place in every if _key(place) not in ran["code"]]
    known, count = (sum(place.lines for place in some) for some in (every, code))
    passed = {name: min(many, ran["tests"].get(name, 0)) for name, many in tests.items()}
    return "\n\n".join(
        [
            "# What ran on a GPU, and what never did",
            "Made by `python -m benchmarks.gpu --list`; do not edit. The project is developed on "
            "machines without a GPU. Tests skip there, and stand-ins answer for drivers. This "
            f"page lists what ran on a GPU the last time: {ran['where']}, {ran['date']}. "
            "`python -m benchmarks.gpu --ran JUNIT COVERAGE` keeps it, on the machine that ran "
            "the tests.",
            "## Figures",
            f"`python -m benchmarks.gpu` measures these {len(cells)} figures on a machine with a "
            "GPU. Without one it says so and ends with code 77. The figures are on "
            "[another page](gpu_rows.md).",
            table(
                ["part", "row", "ways"],
                [[part, row, ", ".join(columns[part, row])] for part, row in figures],
            ),
            "## Tests",
            f"{tests.total()} tests are marked `gpu`; {sum(passed.values())} of them passed there. "
            "`pytest -m gpu` runs them.",
            table(
                ["test", "cases", "passed"],
                [[f"`{name}`", str(many), str(passed[name])] for name, many in tests.items()],
            ),
            "## Code that has never run on one",
            f"{count} of {known} lines. `benchmarks/gpu_lines.py` has the rules by which it "
            "finds lines that only a GPU runs. A place counts as run as soon as one of its lines "
            "did. The last column is the condition under which they run.",
            table(["file", "function", "lines", "when"], [_row(place) for place in code]),
        ]
    )


def _row(place: Place) -> list[str]:
    """One row. It has no line numbers: every change above a place would make the page old."""
    when = place.why.replace("|", "\\|")
    function = f"`{place.function or 'module'}`"
    return [f"`{place.file}`", function, str(place.lines), f"`{when}`"]
