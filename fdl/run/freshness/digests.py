"""The digest of a file's content, kept as long as the file stays as it is."""

# The paths are strings, thousands of them.
# ruff: noqa: PTH110, PTH116, PTH118, PTH123
from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from fdl.base.errors import FdlError
from fdl.base.files import read_text
from fdl.run.freshness.folder import state_file, write

# The coarsest clock tick of the supported file systems. A file that changes again within one tick
# keeps its stamp. So content that was read that soon after a change is read again.
_TICK_NS = 10_000_000

_CHUNK = 1 << 24


class Digests:
    """Reads each file once, until its times, size or inode change.

    Args:
        root: Directory of the project. Paths are relative to it.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._file = state_file(root, "files")
        self._known: dict[str, list[object]] = _read(self._file)
        self._fresh: dict[str, list[object]] = {}

    def of(self, path: str) -> str:
        """The digest of a file, a link being what it leads to.

        Raises:
            FdlError: It cannot be read.
        """
        file, now = os.path.join(self._root, path), time.time_ns()
        try:
            status = os.stat(file)
            stamp = [status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino]
            known = self._fresh.get(path) or self._known.get(path)
            if known and known[:4] == stamp:
                return str(known[4])
            digest = _hashed(file)
        except OSError as problem:
            raise FdlError(
                f"{path} cannot be read: {problem.strerror}",
                hint="it is an input or an output of a command, so make it readable",
            ) from None
        if max(stamp[:2]) < now - _TICK_NS:
            self._fresh[path] = [*stamp, digest]
        return digest

    def save(self) -> None:
        """Keep what has been read, for the next call. Where that is impossible, do nothing."""
        if not self._fresh:
            return
        # Another fdl may have written meanwhile. What one of them loses is only read again.
        known = {**_read(self._file), **self._fresh}
        there = {
            path: entry
            for path, entry in known.items()
            if path in self._fresh or os.path.exists(os.path.join(self._root, path))
        }
        with suppress(OSError):
            write(self._file, there)
        self._known, self._fresh = there, {}


def _hashed(file: str) -> str:
    import blake3

    hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest(length=16)


def _read(file: str) -> dict[str, list[object]]:
    try:
        content = json.loads(read_text(file))
        sound = all(isinstance(one, list) and len(one) == 5 for one in content.values())
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return content if sound else {}
