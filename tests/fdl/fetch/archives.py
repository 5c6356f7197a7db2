"""Archives to fetch, and the trees they unpack to."""

from __future__ import annotations

import io
import os
import random
import stat
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fdl.libtorch.archive import Options

LARGEST_ENDING = 22 + 0xFFFF + 20 + 56
"""The most bytes that the records at the end of an archive take."""

QUICK = Options(
    tail=LARGEST_ENDING,
    backoff=0.005,
    stall_timeout=60,
    attempts=4,
)
"""Small sizes and short times, so that small archives meet everything that large ones do."""

Tree = dict[str, bytes | str]
"""Path -> content of a file, followed by `!` if it may be run; or target of a link."""


def member(name: str, mode: int = 0o644, kind: int = stat.S_IFREG) -> zipfile.ZipInfo:
    """A member whose mode is that of a Unix system."""
    info = zipfile.ZipInfo(name, (2025, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = (kind | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def pack(
    members: Iterable[tuple[zipfile.ZipInfo | str, bytes]],
    *,
    seekable: bool = True,
    zip64: bool = False,
) -> bytes:
    """Make an archive.

    Without `seekable` sizes and checksums stand behind the members. With `zip64` every member has
    fields for sizes beyond 4 GiB.
    """
    buffer = io.BytesIO()
    stream: Any = buffer if seekable else _Pipe(buffer)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            info = member(name) if isinstance(name, str) else name
            with archive.open(info, "w", force_zip64=zip64) as file:
                file.write(content)
    return buffer.getvalue()


class _Pipe:
    """A stream that can only be written to."""

    def __init__(self, sink: io.BytesIO) -> None:
        self._sink = sink

    def write(self, data: bytes) -> int:
        return self._sink.write(data)

    def flush(self) -> None:
        """Nothing is held back."""


def library(size: int = 2_000_000, seed: int = 0) -> list[tuple[zipfile.ZipInfo | str, bytes]]:
    """Members like those of libtorch: many short ones, one that is most of it, a link."""
    source = random.Random(seed)
    words = [source.randbytes(6) for _ in range(400)]
    headers: list[tuple[zipfile.ZipInfo | str, bytes]] = [
        (f"libtorch/include/part{n % 7}/header{n}.h", b" ".join(source.choices(words, k=200)))
        for n in range(120)
    ]
    return [
        (member("libtorch/", 0o755, stat.S_IFDIR), b""),
        *headers,
        (member("libtorch/bin/tool", 0o755), b"#!/bin/sh\necho tool\n"),
        ("libtorch/lib/libtorch_cpu.so", source.randbytes(size) + bytes(size)),
        (member("libtorch/lib/libtorch.so", kind=stat.S_IFLNK), b"libtorch_cpu.so"),
        ("libtorch/build-version", b"2.13.0+cpu\n"),
        ("README", b"left out\n"),
    ]


def inside(name: str) -> str | None:
    """Everything below `libtorch/`."""
    return name.removeprefix("libtorch/") if name.startswith("libtorch/") else None


def tree(folder: Path) -> Tree:
    """What is in a folder; the empty folders in it do not count."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            found[name] = path.read_bytes() + b"!" * os.access(path, os.X_OK)
    return found


def expected(archive: bytes, select: Callable[[str], str | None] = inside) -> Tree:
    """What an archive unpacks to, as Python's own module reads it."""
    found: Tree = {}
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        for info in opened.infolist():
            name = None if info.is_dir() else select(info.filename)
            if name is None:
                continue
            mode = info.external_attr >> 16
            content = opened.read(info)
            found[name] = (
                content.decode() if stat.S_ISLNK(mode) else content + b"!" * bool(mode & 0o111)
            )
    return dict(sorted(found.items()))
