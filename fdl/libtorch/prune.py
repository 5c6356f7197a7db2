"""Remove parts of downloads that no later call can use, or that nobody came back for."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fdl.libtorch.fetch.part import is_resumable
from fdl.libtorch.store import Store

KEPT_DAYS = 30
_DAY_S = 86_400


def prune(
    store: Store, *, everything: bool = False, dry_run: bool = False
) -> list[tuple[str, int]]:
    """Remove useless parts of downloads; those that another process works on are left alone.

    A part is useless if it cannot be continued, or if it is older than 30 days.

    Args:
        store: The store.
        everything: Remove all parts.
        dry_run: Remove nothing.

    Returns:
        The name of each part with its size in bytes.
    """
    from filelock import FileLock, Timeout

    found = []
    for slot in _slots(store):
        size = _size(slot)
        # Another user may own it.
        with suppress(Timeout, OSError), FileLock(store.lock_file(slot.name), timeout=0):
            if everything or _is_useless(slot):
                found.append((slot.name, size))
                if not dry_run:
                    shutil.rmtree(slot, ignore_errors=True)
    return found


def _slots(store: Store) -> Iterator[Path]:
    with suppress(OSError):
        yield from sorted(one for one in (store.cache / "downloads").iterdir() if one.is_dir())


def _is_useless(slot: Path) -> bool:
    files = _files(slot)
    if not files:
        return True
    newest = max(one.stat().st_mtime for one in files)
    parts = [one for one in files if one.suffix == ".part"]
    if time.time() - newest > KEPT_DAYS * _DAY_S:
        return True
    # Wheels are whole; pip removes what it could not finish.
    return bool(parts) and not any(map(is_resumable, parts)) and len(files) <= 2 * len(parts)


def _files(slot: Path) -> list[Path]:
    return [Path(folder, name) for folder, _, names in os.walk(slot) for name in names]


def _size(slot: Path) -> int:
    return sum(one.stat().st_size for one in _files(slot))
