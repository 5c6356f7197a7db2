"""Whether the process of a run still exists."""

from __future__ import annotations

import os
from typing import Any

from fdl.base.run_record import boot_id, host, started_ticks, status


def is_gone(record: dict[str, Any]) -> bool:
    """Whether a run with the state ``running`` cannot be running: its process has ended.

    If this cannot be known (another machine, a container, an older record), the answer is no.

    Args:
        record: A run's ``run.json``. It may hold ``pid``, ``host``, ``boot_id`` and
            ``process_started``, the process's start in clock ticks since the machine's start.
    """
    pid = record.get("pid")
    if not isinstance(pid, int) or pid <= 0 or record.get("host") != host():
        return False
    boot, here = record.get("boot_id"), boot_id()
    if boot and here and boot != here:
        return True
    if not _exists(pid):
        return True
    began, now = record.get("process_started"), started_ticks(pid)
    # Another process may have the same number by now.
    return isinstance(began, int) and now is not None and began != now


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
    return status(pid)[:1] != ["Z"]
