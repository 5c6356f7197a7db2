#!/usr/bin/env python3
"""Measure which lines and branches the tests of a merge run, and keep tests/records/coverage.md.

    python scripts/covered.py           # all parts, then the page; about four times a run of tests
    python scripts/covered.py tests/fdl # one part; its data are kept for the page
    python scripts/covered.py --page    # the page from the parts measured so far

Programs that the tests start are measured as well, also forked ones. The data lie in
``.coverage-parts``, a file for each part; a part that is measured again replaces its file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PARTS = ROOT / ".coverage-parts"
PAGE = ROOT / "tests" / "records" / "coverage.md"
BAR = 90
"""Percent of lines and branches together that the tests of a merge must run."""


class Counted(NamedTuple):
    """What could run and what ran."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def and_also(self, other: Counted) -> Counted:
        """Both together."""
        return Counted(*map(sum, zip(self, other, strict=True)))

    @property
    def percent(self) -> float:
        """Lines and branches that ran, of all."""
        return 100 * (self.lines_run + self.branches_run) / max(1, self.lines + self.branches)


def parts() -> list[str]:
    """The folders of tests that are measured one after another, and the tests beside them."""
    folders = [
        folder
        for top in ("tests/fdl", "tests/flodl")
        for folder in (*sorted((ROOT / top).glob("*/")), ROOT / top)
    ]
    others = [
        one for one in sorted((ROOT / "tests").glob("*/")) if one.name not in ("fdl", "flodl")
    ]
    found = [*folders, *others, ROOT / "tests"]
    return [one.relative_to(ROOT).as_posix() for one in found if any(one.glob("**/test_*.py"))]


def files_of(part: str) -> list[Path]:
    """The files of a part; a folder with parts below it stands for its own files."""
    deeper = any(one.startswith(f"{part}/") for one in parts())
    return sorted((ROOT / part).glob("test_*.py" if deeper else "**/test_*.py"))


def measure(part: str) -> int:
    """Run the tests of a part, and keep what they ran."""
    paths = [str(file) for file in files_of(part)]
    PARTS.mkdir(exist_ok=True)
    kept = PARTS / part.replace("/", ".")
    with tempfile.TemporaryDirectory(prefix="flodl-coverage-") as folder:
        env = {**os.environ, "COVERAGE_FILE": f"{folder}/{kept.name}"}
        words = ["-m", "coverage", "run", "-m", "pytest", "-q", "-m", "not slow", *paths]
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, check=False)
        kept.unlink(missing_ok=True)
        words = ["-m", "coverage", "combine", "--quiet", f"--data-file={kept}", folder]
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    return done.returncode


def report() -> dict[str, Counted]:
    """What ran of each package, from the parts."""
    with tempfile.TemporaryDirectory(prefix="flodl-coverage-") as folder:
        files = [str(file) for file in sorted(PARTS.iterdir())]
        words = ["combine", "--quiet", "--keep", f"--data-file={folder}/data", *files]
        subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, check=True)
        # Tests also run copies of the packages elsewhere, which are gone by now.
        ours = ",".join(str(ROOT / package / "*") for package in ("fdl", "flodl"))
        words = ["json", "--quiet", f"--data-file={folder}/data", "-o", f"{folder}/json"]
        words.append(f"--include={ours}")
        subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, check=True)
        return counted(json.loads(Path(folder, "json").read_text(encoding="utf-8"))["files"])


def counted(files: dict[str, dict[str, dict[str, int]]]) -> dict[str, Counted]:
    """Sum the files of coverage's JSON report by package and sub-package."""
    found: dict[str, Counted] = {}
    for path, told in files.items():
        top, *folders = path.split("/")[:-1]
        each = told["summary"]
        here = Counted(
            each["num_statements"], each["covered_lines"],
            each["num_branches"], each["covered_branches"],
        )  # fmt: skip
        for name in ("all", top, f"{top}/{folders[0] if folders else '*.py'}"):
            found[name] = found.get(name, Counted()).and_also(here)
    return found


def page(found: dict[str, Counted], commit: str, measured: Iterable[str]) -> str:
    """The page."""
    missing = sorted(set(parts()) - set(measured))
    verdict = "PASS" if found["all"].percent >= BAR and not missing else "MISSED"
    text = (
        "# Coverage\n\nMade by `python scripts/covered.py`; do not edit. It says what the tests of "
        "a merge run, programs\nthat they start included: lines, and branches between them. The "
        f"bar is {BAR} % of both together: {verdict}.\nCommit {commit}, "
        f"{datetime.date.today().isoformat()}.\n\n"
        "| Package | Lines and branches | Lines | Branches |\n|---|---|---|---|\n"
    )
    for name in sorted(found, key=lambda name: (name != "all", name)):
        one = found[name]
        text += (
            f"| {name} | {one.percent:.1f} % | {one.lines_run:,} of {one.lines:,} "
            f"| {one.branches_run:,} of {one.branches:,} |\n"
        )
    return text + (f"\nNot measured yet: {', '.join(missing)}.\n" if missing else "")


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="*", help="folders of tests (default: all)")
    parser.add_argument("--page", action="store_true", help="only write the page")
    asked = parser.parse_args(words)
    code = 0
    for part in () if asked.page else asked.part or parts():
        code = measure(part.rstrip("/")) or code
    command = ["git", "describe", "--always", "--abbrev=8", "--dirty=+", "--exclude=*"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    measured = [file.name.replace(".", "/") for file in PARTS.iterdir()]
    PAGE.write_text(page(report(), commit.strip(), measured), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
