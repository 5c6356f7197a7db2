"""Programs for a test's own PATH."""

from __future__ import annotations

import textwrap
from pathlib import Path

COUNTER = """
import signal, sys, time
seen = []
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
    number = getattr(signal, name)
    signal.signal(number, lambda number, frame: seen.append(signal.Signals(number).name))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.5)
print(*seen, flush=True)
sys.exit(7)
"""
"""A child that says it is ready, counts what it is sent for a moment, and exits with 7."""


def executable(path: Path, text: str) -> Path:
    """Write a script that can be started, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")
    path.chmod(0o755)
    return path
