#!/usr/bin/env python3
"""Keep tests/records/merge_tests.txt: the tests that are too long for every save.

    python -m pytest -m "not slow" --results results.jsonl   # on two idle cores
    python scripts/merge_tests.py results.jsonl              # writes it, shows what moved

A test above 0.8 s gets the mark ``merge``. It loses it below 0.55 s, so that a test in between does
not move each time. With four processes on two cores, a test takes about twice as long as alone.
What prepares a test is not counted, because the next test of the file would pay for it; if that
takes more than 3 s, the whole file gets the mark. A test that did not run, or did not pass, keeps
its line: its time says nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.levels import MOST_SECONDS  # noqa: E402 - found by the line above
from tests.merge_list import LISTED, listed  # noqa: E402

ENTERS, LEAVES = 0.8, 0.55
"""Seconds above which a test gets into the list, and below which it leaves it."""
HEAD = """\
# Seconds and name of each test with the mark `merge`: it runs before a change is merged.
# Made by `python scripts/merge_tests.py RESULTS` from results on two idle cores; do not edit.
"""


def measured(files: Iterable[Path]) -> dict[str, float]:
    """Passed test -> seconds without what prepares it; file -> seconds that prepare one test.

    Only files that take long to prepare are in it. Of several results, the longest counts.
    """
    found: dict[str, float] = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["result"] != "passed":
                continue
            test, prepared = row["test"], row["setup"]
            found[test] = max(found.get(test, 0.0), round(row["seconds"] - prepared, 2))
            if prepared > MOST_SECONDS:
                name = test.partition("::")[0]
                found[name] = max(found.get(name, 0.0), prepared)
    return found


def chosen(known: dict[str, float], found: dict[str, float]) -> dict[str, float]:
    """The new list, from the list so far and what was measured."""
    tried = {name.partition("::")[0] for name in found}
    stay = {
        name: seconds
        for name, seconds in known.items()
        if name not in found and ("::" in name or name not in tried)
    }
    stay |= {
        name: seconds
        for name, seconds in found.items()
        if seconds > (LEAVES if name in known else ENTERS)
    }
    files = {name for name in stay if "::" not in name}
    return {
        name: stay[name]
        for name in sorted(stay)
        if name in files or name.partition("::")[0] not in files
    }


def moved(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """What a reader should know about a new list."""
    lines = [f"+ {after[name]:5.1f} s  {name}" for name in after.keys() - before.keys()]
    lines += [f"- {before[name]:5.1f} s  {name}" for name in before.keys() - after.keys()]
    total = f"{len(after)} lines, {sum(after.values()):.0f} s; before {len(before)} lines, "
    return [*sorted(lines), total + f"{sum(before.values()):.0f} s"]


def main() -> int:
    """Write the list; returns the exit code."""
    if not sys.argv[1:]:
        print(__doc__)
        return 2
    known = listed()
    new = chosen(known, measured(map(Path, sys.argv[1:])))
    rows = "".join(f"{seconds:.1f} {name}\n" for name, seconds in new.items())
    LISTED.write_text(HEAD + rows, encoding="utf-8")
    print("\n".join(moved(known, new)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
