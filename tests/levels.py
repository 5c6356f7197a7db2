"""Which tests run when, and in how many processes.

Tests without a mark run with every ``pytest``. Those that ``tests/records/merge_tests.txt`` names
have the mark ``merge``, and run before a change is merged: they take long. The list is written by
``scripts/merge_tests.py``, which says how long. The mark ``slow`` stands in the code.

Tests run beside each other, unless the command line says in how many processes, or names single
files. Without pytest-xdist they run one after another.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.merge_list import is_listed

MOST_SECONDS = 3.0
"""What a test without a mark may take on two idle cores, with the fixtures that it sets up."""

NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""For a run of pytest within a test: plugins that libraries bring import for a second."""

_TOLD = {
    "--numprocesses",
    "--dist",
    "--pdb",
    "--trace",
    "--capture",
    "-s",
    "--collect-only",
    "--co",
}


def workers(words: Sequence[str], cores: int) -> int:
    """How many processes are started for a command line; 0: none, this one runs the tests.

    Many tests wait for a terminal, a server or another process, so two processes keep a core busy.
    Where there are many cores, memory is scarcer: a process that has imported torch has 300 MB.
    """
    if any(word.startswith("-n") or word.partition("=")[0] in _TOLD for word in words):
        return 0
    if importlib.util.find_spec("xdist") is None:
        return 0
    paths = [Path(word.partition("::")[0]) for word in words]
    named = [path for path in paths if path.suffix == ".py" or path.is_dir()]
    if named and not any(path.is_dir() for path in named):
        return 0
    return min(2 * cores, max(8, cores))


def pytest_load_initial_conftests(args: list[str]) -> None:
    """Start several processes where the command line leaves it open."""
    count = 0 if "PYTEST_XDIST_WORKER" in os.environ else workers(args, os.cpu_count() or 1)
    if count:
        args[:0] = ["-n", str(count), "--dist", "worksteal"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the scripts of the two lists ask for."""
    parser.addoption(
        "--check-seconds",
        action="store_true",
        help=f"fail if a test without a mark takes more than {MOST_SECONDS:g} s; "
        "asked for, because whatever else the machine does makes every test longer",
    )
    parser.addoption(
        "--results",
        type=Path,
        metavar="FILE",
        help="add a line of JSON to this file for each test that ended: its name, result, seconds",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what the list names, before ``-m`` selects."""
    for item in items:
        if is_listed(item.nodeid) and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.merge)


class Results:
    """How each test ended, and how long it took with the fixtures that it set up."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._parts: defaultdict[str, list[pytest.TestReport]] = defaultdict(list)
        self.too_long: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a part of a test: what sets it up, the test, what puts things back."""
        parts = self._parts[report.nodeid]
        parts.append(report)
        if report.when != "teardown":
            return
        del self._parts[report.nodeid]
        seconds = sum(part.duration for part in parts)
        if seconds > MOST_SECONDS and not {"merge", "slow"} & set(report.keywords):
            self.too_long[report.nodeid] = seconds
        if self._file is not None:
            ended = {part.outcome for part in parts} - {"passed"}
            row = {
                "test": report.nodeid,
                "result": ended.pop() if len(ended) == 1 else "failed" if ended else "passed",
                "seconds": round(seconds, 2),
                "setup": round(parts[0].duration, 2),
            }
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the tests in the process that prints the summary."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(config.getoption("--results")), "results")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that was to check durations, and in which a test without a mark took too long."""
    results = session.config.pluginmanager.get_plugin("results")
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if results is None or terminal is None or not session.config.getoption("--check-seconds"):
        return
    for name, seconds in sorted(results.too_long.items(), key=lambda one: -one[1]):
        terminal.write_line(f"error: {name} took {seconds:.1f} s without the mark `merge`")
    if results.too_long:
        terminal.write_line("Make it faster, or `python scripts/merge_tests.py` marks it.")
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
