"""Containers on disk: replaced completely or not at all, compressed if the name ends in .gz."""

from __future__ import annotations

import gzip
import io
import mmap
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from fdl.base.files import replacing
from flodl.checkpoint.container import (
    VERSION,
    Container,
    Header,
    check_digest,
    read_exactly,
    read_header,
)
from flodl.checkpoint.header import PREFIX_BYTES
from flodl.checkpoint.legacy import MAGIC, read_legacy
from flodl.errors import CheckpointError

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_LEVEL = 6
_ALIGNMENT = 16  # bytes: the largest element, a complex number of two doubles


def is_compressed(path: str | os.PathLike[str]) -> bool:
    """Whether a file with this name is compressed."""
    return os.fspath(path).endswith(".gz")


def config_sidecar(path: str | os.PathLike[str]) -> Path:
    """Return the path of a checkpoint's source configuration, beside the checkpoint.

    ``model.fdl`` and ``model.fdl.gz`` both have ``model.config.json``.
    """
    plain = Path(os.fspath(path).removesuffix(".gz"))
    return plain.with_name(f"{plain.stem}.config.json")


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Replace a file atomically and durably, see :func:`fdl.base.files.replacing`.

    Missing parent folders are created; a name ending in ``.gz`` gives a compressed file.

    Raises:
        CheckpointError: The system refused (permission, space, a folder with this name).
    """
    try:
        Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=True) as file:
            if is_compressed(path):
                with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                    yield cast("IO[bytes]", packed)
            else:
                yield file
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"cannot write checkpoint {os.fspath(path)}: {reason}") from error


def read_stream(source: IO[bytes], *, legacy: bool = False) -> Container:
    """Read a whole container from a binary stream, compressed or plain, up to its end.

    A plain file is mapped instead of copied. Torch may write to the map, but only in this process:
    the file does not change.

    Args:
        source: The stream, at the first byte of the container; it is not closed.
        legacy: Also read the binary versions 1 and 2.

    Raises:
        CheckpointError: The stream is truncated, damaged, of another format or of another version.
    """
    where = f"checkpoint {getattr(source, 'name', 'stream')}"
    # Only a buffered reader can peek at the first bytes without consuming them.
    mapped = _mapped(source)
    buffered = io.BufferedReader(cast("Any", source))
    try:
        with _decompressed(buffered, where) as stream:
            prefix = _read_prefix(stream, where, legacy=legacy)
            plain = stream is buffered and not prefix.startswith(MAGIC)
            return _read_whole(stream, prefix, where, mapped if plain else None)
    finally:
        buffered.detach()  # else deleting the reader would close the caller's stream


def _mapped(source: IO[bytes]) -> tuple[mmap.mmap, int] | None:
    """Map a stream that is a file on disk; return the map and the stream's position in it."""
    raw = source.raw if isinstance(source, io.BufferedReader) else source
    # Other readers have a file number, too, but return other bytes than the file has.
    if type(raw) is not io.FileIO or not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        return None
    try:
        return mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_COPY), source.tell()
    except (OSError, ValueError):  # an empty file, or a file system without maps
        return None


def read_file(path: str | os.PathLike[str], *, legacy: bool = False) -> Container:
    """Read a container from disk, see :func:`read_stream`.

    Raises:
        CheckpointError: The file cannot be opened, or as for :func:`read_stream`.
    """
    with _opened(path) as file:
        return read_stream(file, legacy=legacy)


def read_file_header(path: str | os.PathLike[str]) -> Header:
    """Read only the header of a file, of any version; the tensors' bytes are not checked.

    Raises:
        CheckpointError: The file cannot be read or has no valid header.
    """
    where = f"checkpoint {os.fspath(path)}"
    with _opened(path) as file, _decompressed(file, where) as stream:
        prefix = _read_prefix(stream, where, legacy=True)
        if prefix.startswith(MAGIC):
            return read_legacy(stream, prefix, where, header_only=True).header
        header, begin = read_header(stream, prefix, where)
        if stream is file:
            _check_size(os.fstat(file.fileno()).st_size, begin + header.body_size, where)
        return header


def _read_prefix(stream: IO[bytes], where: str, *, legacy: bool) -> bytes:
    prefix = stream.read(PREFIX_BYTES)
    if prefix.startswith(MAGIC) and not legacy:
        raise CheckpointError(
            f"{where} is a binary checkpoint of the Rust flodl; turn it into a file of this flodl "
            "with migrate_checkpoint_file(src, dst, params, buffers) and load that"
        )
    return prefix


def _read_whole(
    stream: IO[bytes], prefix: bytes, where: str, mapped: tuple[mmap.mmap, int] | None = None
) -> Container:
    if prefix.startswith(MAGIC):
        return read_legacy(stream, prefix, where)
    header, length = read_header(stream, prefix, where)
    _check_version(header, where)
    if mapped is not None:
        file, begin = mapped
        offset = begin + length
        _check_size(len(file), offset + header.body_size, where)
        if offset % _ALIGNMENT == 0:
            container = Container(header, file, offset)
            check_digest(container, where)
            stream.seek(0, io.SEEK_END)
            return container
    body = read_exactly(stream, header.body_size, where)
    # Read only one more byte: the rest of a compressed file may have any size.
    if stream.read(1):
        raise CheckpointError(f"{where} has data after its last tensor: it is damaged")
    container = Container(header, body, 0)
    check_digest(container, where)
    return container


def _check_size(actual: int, promised: int, where: str) -> None:
    if promised != actual:
        state = "truncated" if actual < promised else "damaged"
        raise CheckpointError(
            f"{where} is {state}: {actual} bytes instead of {promised}; "
            "restore the file from a copy or save it again"
        )


def _check_version(header: Header, where: str) -> None:
    version = header.metadata["fdl_version"]
    if int(version) != VERSION:
        raise CheckpointError(
            f"{where} has container version {version}; this flodl reads {VERSION}: "
            "load it with the flodl that wrote it"
        )


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[io.BufferedReader]:
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - only errors of opening are converted here
    except OSError as error:
        raise CheckpointError(
            f"cannot open checkpoint {os.fspath(path)}: {error.strerror}"
        ) from error
    with file:
        yield file


@contextmanager
def _decompressed(file: io.BufferedReader, where: str) -> Iterator[IO[bytes]]:
    if not file.peek(2).startswith(_GZIP_MAGIC):
        yield file
        return
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            yield cast("IO[bytes]", stream)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
