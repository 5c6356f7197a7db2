#!/usr/bin/env python3
"""Change the code in small ways, one at a time, and see whether the tests notice.

    python scripts/mutation.py manifest                 # 40 changes of fdl/manifest
    python scripts/mutation.py data --left --minutes 5  # a piece of those left
    python scripts/mutation.py data --left --by tests/flodl/data/test_batch.py  # by these tests

Another piece asks whether the tests of every save notice alone what those of a merge notice:

    python scripts/mutation.py data --unmarked

The changes are chosen by their digests: a comparison, a boolean, a number, an arithmetic sign, a
returned value, a removed call, a negated condition. They are made in a copy of the checkout. Tests
that run the changed line come first; the first test that fails ends the run of a change. A test
counts only if it passes again without the change. A change has survived when all files of tests
passed in which any test runs the changed line. The test that noticed a change before runs alone
first, because the lines that all tests run are not needed for that.

tests/records/mutation.json keeps the results, and tests/records/mutation.md is made from it. After
reading a survivor, write into its "why" whether the behaviour is the same, or what to do.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock
from mutants import Mutant, sample
from mutation_runs import (
    TEST_SECONDS,
    Coverage,
    Covered,
    copied,
    coverage,
    kept_folder,
    prepare,
    state,
    test_files,
    who_notices,
)

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))  # the package itself must come from the copy

from merge_list import is_listed  # noqa: E402 - found by the line above

RECORD = ROOT / "tests" / "records" / "mutation.json"
PAGE = ROOT / "tests" / "records" / "mutation.md"
COUNT = 40
BAR = 85
"""Percent of the changes that tests must notice."""
UNMARKED_BAR = 34
"""How many of a target's changes the tests without a mark must notice alone."""
UP_TO_MERGE, UNMARKED = "not slow", "not slow and not merge"


@dataclass(frozen=True)
class Target:
    """The files that are changed, and the tests that should notice."""

    code: tuple[str, ...]
    tests: tuple[str, ...]

    def sources(self, root: Path) -> list[Path]:
        """The files below a checkout."""
        return sorted(file for pattern in self.code for file in root.glob(pattern))


def _tests(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


TARGETS = {
    "manifest": Target(
        ("fdl/manifest/*.py",),
        (
            "tests/fdl/manifest",
            "tests/fdl/base/test_secrets.py",
            *_tests("fdl", "config_show environments variables"),
            "tests/fdl/inspect/test_config_set.py",
            "tests/fdl/schema/test_manifest_schema.py",
        ),
    ),
    "planning": Target(
        ("fdl/plan/*.py", "fdl/manifest/select/*.py"),
        (
            "tests/fdl/inspect",
            "tests/fdl/conformance/test_words.py",
            *_tests(
                "fdl",
                "presets dispatch quoting spelling ranks docker environments heap plan "
                "run_arguments flodl_programs list config_show variables unchecked "
                "guards_of_training two_launchers slips_of_newcomers first_start",
            ),
        ),
    ),
    "schedule": Target(
        ("flodl/ranks/planning/*.py",),
        _tests("flodl/distributed", "elche guard scheduler ghost"),
    ),
    "graph": Target(
        ("flodl/graph/codegen.py", "flodl/graph/draft.py", "flodl/graph/topology.py"),
        _tests(
            "flodl/graph",
            "cases_builder builder names inputs optional_inputs graph routing loops state "
            "mapping errors identity random_graphs",
        ),
    ),
    "checkpoint": Target(("flodl/checkpoint/*.py",), ("tests/flodl/checkpoint",)),
    "data": Target(("flodl/data/*.py",), ("tests/flodl/data",)),
    "resume": Target(
        (
            "flodl/train/run/resume.py",
            "flodl/train/run/training_state.py",
            "flodl/train/run/loop_state.py",
        ),
        _tests(
            "flodl/train",
            "continuation resume resume_hint kill_resume trainer refused_resume torch_schedule",
        )
        + _tests("flodl/distributed", "own_state_ranks sharded_states"),
    ),
    "weights": Target(
        ("flodl/hf/weights/*.py",),
        _tests("flodl/hf", "shards loading loading_mutations safetensors_io export"),
    ),
}

Result = dict[str, Any]
"""file, line, before, after, noticed_by, date, machine, state; for a survivor also why."""


def read_record(file: Path = RECORD) -> dict[str, dict[str, Result]]:
    """The results: target, key of the change, result."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def keep(target: str, results: dict[str, Result]) -> None:
    """Add results of a target to the record."""
    with FileLock(kept_folder(ROOT) / "record.lock"):
        record = read_record()
        record[target] = {**record.get(target, {}), **results}
        part = RECORD.with_name(f".{RECORD.name}.part")
        part.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        part.replace(RECORD)


def machine() -> str:
    """This machine in words, without its name."""
    gpu = Path("/proc/driver/nvidia").exists()
    return f"{os.cpu_count()} cores, {'with' if gpu else 'no'} GPU"


def run(target: str, asked: argparse.Namespace) -> None:
    """Run the changes that are asked for, and record each result as soon as it is known."""
    until = time.monotonic() + 60 * asked.minutes
    about = TARGETS[target]
    os.environ["PYTEST_ADDOPTS"] = shlex.join(["-m", UNMARKED if asked.unmarked else UP_TO_MERGE])
    prepare(torch=about.code[0].startswith("flodl"))
    with copied(ROOT) as copy:
        tests = test_files(copy, about.tests)
        sources = about.sources(copy)
        now = state(copy, sources, tests)
        changes = sample(copy, sources, asked.count, asked.seed)
        known = {
            one.key: old
            for one in changes
            if (old := read_record().get(target, {}).get(one.key)) is not None
        }
        covered: Coverage = {}
        for one in wanted(changes, known, now, asked):
            if time.monotonic() > until:
                break
            old = known.get(one.key, {})
            before = old.get("noticed_by", "")
            who = _notices_again(copy, one, before)
            if not who:
                covered = covered or coverage(copy, sources, test_files(copy, asked.by) or tests)
                who = who_notices(copy, ROOT, one, covered, before, asked.quick)
            result = _result(one, who, now, old)
            if who or not (asked.quick or asked.by or asked.unmarked):
                keep(target, {one.key: result})
            sys.stdout.write(f"{_place(result)}: {who or 'NOT NOTICED'}\n")
            sys.stdout.flush()


def _notices_again(copy: Path, one: Mutant, before: str) -> str:
    """The test that noticed a change before if it still does, or ``""``."""
    if not (copy / before.partition("::")[0]).is_file():
        return ""
    return who_notices(copy, ROOT, one, {before: Covered(TEST_SECONDS)}, before, quick=True)


def wanted(
    changes: Sequence[Mutant], known: dict[str, Result], now: str, asked: argparse.Namespace
) -> list[Mutant]:
    """The changes that are asked for: a range, those left, or those that survived."""
    return [
        one
        for one in changes[asked.first : asked.to]
        if not (asked.left and known.get(one.key, {}).get("state") == now)
        and not (asked.survivors and known.get(one.key, {}).get("noticed_by"))
        and not (asked.unmarked and by_unmarked(known.get(one.key, {})))
    ]


def by_unmarked(result: Result) -> bool:
    """Whether a test that runs at every save noticed a change."""
    return bool(who := result.get("noticed_by")) and not is_listed(who)


def _result(one: Mutant, who: str, now: str, old: Result) -> Result:
    result: Result = {
        "file": one.file, "line": one.line, "before": one.before, "after": one.after,
        "noticed_by": who, "date": datetime.date.today().isoformat(), "machine": machine(),
        "state": now,
    }  # fmt: skip
    if not who:
        result["why"] = old.get("why", "")
    return result


def _place(result: Result) -> str:
    return f"{result['file']}:{result['line']}: {_short(result['before'])} -> {result['after']}"


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 70 else f"{words[:67]}..."


def page(record: dict[str, dict[str, Result]]) -> str:
    """The page about all targets."""
    rows, survivors = [], []
    for name, about in TARGETS.items():
        sources = about.sources(ROOT)
        chosen = sample(ROOT, sources, COUNT)
        known = record.get(name, {})
        found = [known[one.key] for one in chosen if one.key in known]
        noticed = sum(bool(one["noticed_by"]) for one in found)
        if not found or (len(found) < len(chosen) and 100 * noticed < BAR * len(chosen)):
            rows.append(f"| {name} | {_code(about)} | {len(found)} of {COUNT} run | | | | | |\n")
            continue
        now = state(ROOT, sources, test_files(ROOT, about.tests))
        rows.append(_row(name, about, found, len(chosen), now))
        survivors += _survivors(name, [one for one in found if not one["noticed_by"]])
    return HEAD + "".join(rows) + MIDDLE + "".join(survivors)


def _code(about: Target) -> str:
    return ", ".join(f"`{pattern}`" for pattern in about.code)


def _row(name: str, about: Target, found: list[Result], count: int, now: str) -> str:
    noticed = sum(bool(one["noticed_by"]) for one in found)
    verdict = "PASS" if 100 * noticed >= BAR * count else "MISSED"
    old = sum(one["state"] != now for one in found)
    results = f"{old} before the last change" if old else "all of this code and these tests"
    if len(found) < count:
        results += f"; {count - len(found)} not run yet"
    dates = sorted({one["date"] for one in found})
    cells = [
        name, _code(about), f"{noticed} of {count} ({100 * noticed / count:.0f} %)", verdict,
        _told_unmarked(sum(map(by_unmarked, found))), results,
        " to ".join(dict.fromkeys([dates[0], dates[-1]])),
        "; ".join(sorted({one["machine"] for one in found})),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def _told_unmarked(noticed: int) -> str:
    return f"{noticed} {'PASS' if noticed >= UNMARKED_BAR else 'MISSED'}"


def _survivors(name: str, found: list[Result]) -> list[str]:
    if not found:
        return []
    lines = [f"\n## Survivors of {name}\n\n| Place | Change | What it means |\n|---|---|---|\n"]
    for one in sorted(found, key=lambda one: (one["file"], one["line"])):
        change = f"`{_short(one['before'])}` → `{_short(one['after'])}`".replace("|", "\\|")
        why = one.get("why") or "not read yet"
        lines.append(f"| `{one['file']}:{one['line']}` | {change} | {why} |\n")
    return lines


HEAD = f"""\
# Mutation testing

Made by `python scripts/mutation.py` from `tests/records/mutation.json`; do not edit.
The program changes the code of a target in {COUNT} small ways, one at a time. Then it runs the
tests that should notice. The bar is {BAR} % of the changes noticed. A change that keeps the
behaviour counts as not noticed as well. The tests are those of a merge. *At every save* counts the
changes that a test without a mark noticed; its bar is {UNMARKED_BAR} of {COUNT}.

| Target | Code | Noticed | Bar | At every save | Results | Date | Machine |
|---|---|---|---|---|---|---|---|
"""
MIDDLE = """
Tests that run the changed line come first. The first failure ends the run of a change. The test
that failed then runs again without the change. It counts only if it passes, so a test that fails by
chance notices nothing. A change has survived when all files of tests passed in which any test runs
the changed line, also in a child process. The JSON file names the test that noticed each change.
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the changes of one target, and write the page."""
    parser = argparse.ArgumentParser(description="Change the code and run its tests.")
    parser.add_argument("target", choices=TARGETS, nargs="?")
    parser.add_argument("--from", dest="first", type=int, default=0, help="first change, from 0")
    parser.add_argument("--to", type=int, default=None, help="the change behind the last one")
    parser.add_argument("--left", action="store_true", help="only those without a valid result")
    parser.add_argument("--survivors", action="store_true", help="only changes not yet noticed")
    parser.add_argument("--quick", action="store_true", help="run only the likeliest tests")
    parser.add_argument(
        "--by",
        nargs="+",
        default=(),
        metavar="FILE",
        help="run only tests of these files; keep what they notice",
    )
    parser.add_argument(
        "--unmarked",
        action="store_true",
        help="only changes that no test without a mark noticed, and only such tests",
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="then start no other change")
    parser.add_argument("--count", type=int, default=COUNT, help="changes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: %(default)s)")
    parser.add_argument("--page", action="store_true", help="only write the page")
    asked = parser.parse_args(words)
    if not asked.page:
        if asked.target is None:
            parser.error("name a target, or type --page")
        run(asked.target, asked)
    PAGE.write_text(page(read_record()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
