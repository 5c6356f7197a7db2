#!/usr/bin/env python3
"""Run the slow suite in parts of ten minutes, and keep tests/records/slow_tests.md.

    bash scripts/slow.sh                     # one part: the tests whose last run is the oldest
    bash scripts/slow.sh --parts 6           # six parts, one after another

With paths, all slow tests below them run. The next line only names what has not run for three days:

    bash scripts/slow.sh --stale

Results of ``pytest -m slow --results FILE`` are taken in by ``--keep FILE``. The page says of each
test how it ended, on which commit, when and where. It is written after each part; a part that is
stopped keeps the tests that had ended. A test that is not in the suite any more loses its line.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from fdl.base.hardware import nvidia

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "tests" / "records" / "slow_tests.md"
HEAD = """\
# The slow suite

Made by `python scripts/slow_tests.py`; do not edit. These tests are too long for every change. The
table says when each ran last, on which commit and machine, and how it ended. Records begin on
2026-11-23, those of commits on 2026-11-28. `bash scripts/slow.sh` runs those that ran longest ago.

| Test | Result | Seconds | Date | Commit | Machine |
|---|---|---|---|---|---|
"""
PART_SECONDS = 480.0
"""What the tests of a part took last time. It ends after :data:`MOST_SECONDS`, whatever happens."""
MOST_SECONDS = 600
UNKNOWN_SECONDS = 60.0
"""What a test counts that has no record."""
STALE = datetime.timedelta(days=3)


class Record(NamedTuple):
    """The last run of a test; empty where nothing is known."""

    result: str = "no record"
    seconds: str = ""
    date: str = ""
    commit: str = ""
    machine: str = ""


def slow_tests() -> list[str]:
    """The names of the slow suite, in the order of the files."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "slow"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        sys.exit(f"error: pytest cannot collect the slow tests:\n{listed.stdout}{listed.stderr}")
    return [line for line in listed.stdout.splitlines() if "::" in line]


def below(paths: list[str], suite: list[str]) -> list[str]:
    """The tests of some folders and files, or of these names; all without a path."""
    starts = tuple(f"{path.rstrip('/')}{end}" for path in paths for end in ("/", "::", "["))
    return [name for name in suite if not paths or name in paths or name.startswith(starts)]


def kept() -> dict[str, Record]:
    """What the page says so far."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            name, *cells = (cell.strip(" |`") for cell in line[1:].split(" | "))
            found[name] = Record(*cells)
    return found


def machine() -> str:
    """This machine in words, without its name."""
    gpus = len(nvidia().gpus)
    return f"{os.cpu_count()} cores, {f'{gpus} GPUs' if gpus else 'no GPU'}"


def commit() -> str:
    """The commit of the checkout; with a plus if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=8", "--dirty=+", "--exclude=*"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def keep(results: Path, suite: list[str]) -> int:
    """Take results into the page of a suite; returns how many tests failed."""
    known, failed = kept(), 0
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    here = (commit(), machine())
    for line in results.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        known[row["test"]] = Record(row["result"], f"{row['seconds']:.1f}", today, *here)
        failed += row["result"] == "failed"
    rows = (f"| `{name}` | {' | '.join(known.get(name, Record()))} |\n" for name in suite)
    PAGE.write_text(HEAD + "".join(rows), encoding="utf-8")
    return failed


def stale(names: list[str]) -> list[str]:
    """The tests that have not run for three days, the longest ago first."""
    known = kept()
    limit = (datetime.datetime.now(datetime.UTC) - STALE).date().isoformat()
    old = [name for name in names if known.get(name, Record()).date <= limit]
    return sorted(old, key=lambda name: known.get(name, Record()).date)


def parts(names: list[str]) -> list[list[str]]:
    """Tests in parts that fit, the tests that ran longest ago first."""
    known = kept()
    cut: list[list[str]] = []
    left = 0.0
    for name in sorted(names, key=lambda name: known.get(name, Record()).date):
        seconds = float(known.get(name, Record()).seconds or UNKNOWN_SECONDS)
        if not cut or seconds > left:
            cut.append([])
            left = PART_SECONDS
        cut[-1].append(name)
        left -= seconds
    return cut


def run(part: list[str], suite: list[str]) -> int:
    """Run the tests of a part, and keep how they ended; returns how many failed."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        results.touch()
        words = ["-m", "slow", "-q", "-n", "0", "--tb=short", "--results", str(results)]
        command = [sys.executable, "-m", "pytest", *words, *part]
        running = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        try:
            running.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            _note_stopped(part, results)
        finally:
            _end(running)
        return keep(results, suite)


def _note_stopped(part: list[str], results: Path) -> None:
    """Add the test that was running, so that it does not come first again."""
    ended = {json.loads(line)["test"] for line in results.read_text().splitlines()}
    name = next(name for name in part if name not in ended)
    print(f"The part was stopped after {MOST_SECONDS} s, in {name}")
    row = {"test": name, "result": "stopped", "seconds": MOST_SECONDS}
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _end(running: subprocess.Popen[bytes]) -> None:
    """Interrupt the tests as Ctrl-C does, so that they put things back; then end what is left."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(running.pid, number)
            running.wait(30)


def main() -> int:
    """Do what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", help="run all slow tests of these files and folders")
    parser.add_argument("--parts", type=int, default=1, help="how many parts without paths [1]")
    parser.add_argument("--stale", action="store_true", help="only name what has not run for days")
    parser.add_argument("--keep", type=Path, metavar="RESULTS", help="only take results in")
    told = parser.parse_args()
    suite = slow_tests()
    if told.keep:
        return bool(keep(told.keep, suite))
    names = below(told.paths, suite)
    if not names:
        parser.error(f"no slow test is below {' '.join(told.paths)}")
    if told.stale:
        old = stale(names)
        print(*old, f"{len(old)} of {len(names)} slow tests have not run for 3 days", sep="\n")
        return bool(old)
    chosen = parts(names)
    failed = 0
    for number, part in enumerate(chosen[: None if told.paths else told.parts], 1):
        print(f"Part {number} of {len(chosen)}: {len(part)} tests", flush=True)
        failed += run(part, suite)
    old = stale(names)
    print(f"{failed} failed; {len(old)} have not run for 3 days (--stale names them)")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
