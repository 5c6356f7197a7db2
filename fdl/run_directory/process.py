"""Whether the process that a run belongs to is still there."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def is_gone(record: dict[str, Any]) -> bool:
    """Whether a run that calls itself running cannot be: its process has ended.

    Where that cannot be known (another machine, a container, an older record) the answer is no.

    Args:
        record: A run's ``run.json``; it may name ``pid``, ``host``, ``boot_id`` and
            ``process_started``, the process's start in clock ticks since the machine's.
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
    # The number may have gone to another process since.
    return isinstance(began, int) and now is not None and began != now


def boot_id() -> str:
    """What changes with every start of the machine; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _exists(pid: int) -> bool:
    if os.name == "nt":
        # Signal 0 would end the process there.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's
    return _state(pid) != "Z"


def _state(pid: int) -> str:
    """The kernel's letter for what the process does; ``Z`` is one that ended unnoticed."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def _start_ticks(pid: int) -> int | None:
    fields = _stat(pid)
    # proc_pid_stat(5): the state is field 3, the start time field 22.
    return int(fields[19]) if len(fields) > 19 and fields[19].isdecimal() else None


def _stat(pid: int) -> list[str]:
    """The fields behind the program's name, which may hold blanks and parentheses itself."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
