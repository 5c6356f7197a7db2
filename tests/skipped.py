"""Counts what is skipped; a reason that nobody has allowed fails the run where ``CI`` is set.

``tests/skips.txt`` has one allowed reason per line.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

ALLOWED = Path(__file__).parent / "skips.txt"


def reasons(terminal: pytest.TerminalReporter) -> Counter[str]:
    """How often each reason was given."""
    texts = (
        report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for report in terminal.stats.get("skipped", [])
    )
    return Counter(text.removeprefix("Skipped: ") for text in texts)


def new_reasons(found: Counter[str]) -> list[str]:
    """The reasons that are not in the list."""
    allowed = ALLOWED.read_text(encoding="utf-8").splitlines()
    return sorted(reason for reason in found if reason not in allowed)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run with a new reason, in the process that prints the summary."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not os.environ.get("CI") or hasattr(session.config, "workerinput"):
        return
    found = reasons(terminal)
    new = new_reasons(found)
    if found:
        terminal.write_line(f"\n{found.total()} tests skipped for {len(found)} reasons")
    for reason in new:
        terminal.write_line(f"error: a new reason to skip: {reason}; add it to {ALLOWED.name}?")
    if new and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
