"""Whether the process of a run still exists."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def is_gone(record: dict[str, Any]) -> bool:
    """Whether a run with the state ``running`` cannot be running: its process has ended.

    If this cannot be known (another machine, a container, an older record), the answer is no.

    Args:
        record: A run's ``run.json``. It may hold ``pid``, ``host``, ``boot_id`` and
            ``process_started``, the process's start in clock ticks since the machine's start.
    """
    pid, host = record.get("pid"), record.get("host")
    if not isinstance(pid, int) or pid <= 0 or host != socket.gethostname():
        return False
    boot, here = record.get("boot_id"), boot_id()
    if boot and here and boot != here:
        return True
    if not _exists(pid):
        return True
    began, now = record.get("process_started"), _start_ticks(pid)
    # Another process may have the same number by now.
    return isinstance(began, int) and now is not None and began != now


def boot_id() -> str:
    """An id that changes with every start of the machine; empty if the system has none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _exists(pid: int) -> bool:
    if os.name == "nt":
        # On Windows, signal 0 would end the process.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's
    # An ended process that its parent has not yet reaped.
    return _stat(pid)[:1] != ["Z"]


def _start_ticks(pid: int) -> int | None:
    fields = _stat(pid)
    # proc_pid_stat(5): the state is field 3, the start time field 22.
    return int(fields[19]) if len(fields) > 19 and fields[19].isdecimal() else None


def _stat(pid: int) -> list[str]:
    """The fields after the program's name, which may contain blanks and parentheses."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
