#!/usr/bin/env python3
"""Keep tests/records/slow_tests.md: when each test of the slow suite ran last, and how it ended.

    pytest -m slow --junitxml=results.xml
    python scripts/slow_tests.py results.xml

Several results may be given; a test that is not in them keeps its line. A test that is not in the
slow suite any more loses it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from fdl.hardware import nvidia

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "tests" / "records" / "slow_tests.md"
HEAD = """\
# The slow suite

Made by `python scripts/slow_tests.py results.xml` from results of `pytest -m slow`; do not edit.
These tests are too long for every change. The table says when each ran last, on what machine,
and how it ended. Records begin on 2026-11-23.

| Test | Result | Seconds | Date | Machine |
|---|---|---|---|---|
"""


def slow_tests() -> list[str]:
    """The names of the slow suite, in the order of the files."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "slow", "-n", "0"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "::" in line]


Record = tuple[str, str, str, str]
"""Result, seconds, date and machine."""


def machine() -> str:
    """This machine in words, without its name."""
    gpus = len(nvidia().gpus)
    return f"{os.cpu_count()} cores, {f'{gpus} GPUs' if gpus else 'no GPU'}"


def results(file: str) -> dict[str, Record]:
    """The records of tests, as a file of results on this machine tells them."""
    found = {}
    for suite in ET.parse(file).getroot().iter("testsuite"):  # noqa: S314 - written by pytest
        date = suite.get("timestamp", "")[:10]
        for case in suite.iter("testcase"):
            ended = {one.tag for one in case} & {"failure", "error", "skipped"}
            result = ended.pop() if ended else "passed"
            seconds = f"{float(case.get('time', 0)):.1f}"
            found[_name(case)] = (result, seconds, date, machine())
    return found


def _name(case: ET.Element) -> str:
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"


def kept() -> dict[str, Record]:
    """What the page says so far."""
    if not PAGE.exists():
        return {}
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            name, *cells = (cell.strip(" |`") for cell in line[1:].split(" | "))
            result, seconds, date, where = cells
            found[name] = (result, seconds, date, where)
    return found


def main() -> int:
    """Write the page; returns the exit code."""
    known = kept()
    for file in sys.argv[1:]:
        known.update(results(file))
    never = ("no record", "", "", "")
    lines = [f"| `{name}` | {' | '.join(known.get(name, never))} |\n" for name in slow_tests()]
    PAGE.write_text(HEAD + "".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
