"""The container, version 3: a safetensors file with metadata of flodl.

Layout: header length (u64, little-endian), JSON header padded with spaces, then the bytes of the
tensors without gaps. Wide types come first, so every tensor starts at a multiple of its item size.

The header is written here, because the safetensors library writes metadata in random order. Equal
models would then give unequal files. The metadata string ``digest`` is a checksum of header and
tensors; for it the header is written as here, with a blank digest. A file without a digest is read
unchecked.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from mmap import PAGESIZE, mmap
from typing import IO, Any

import torch
from torch import Tensor

from fdl.base.masking import KNOWN
from flodl.checkpoint.digest import BLANK, digest_of, digest_while
from flodl.checkpoint.disk import Disk
from flodl.checkpoint.forms import (
    FORMS,
    assembled,
    check_form,
    form_dtype,
    form_layout,
)
from flodl.checkpoint.header import (
    DTYPES,
    MAX_HEADER,
    METADATA,
    PREFIX_BYTES,
    StoredTensor,
    check_ranges,
    described,
    is_text_mapping,
    read_fields,
    unique,
)
from flodl.checkpoint.names import filed, qualify
from flodl.checkpoint.sharded import local_part
from flodl.errors import CheckpointError

FORMAT = "fdl"
VERSION = 3
DIGEST = "digest"
TRAINING = "training"
TRAINING_PREFIX = ".training/"
"""Name prefix of tensors with the state of a training, described by the metadata string
``training``. No module can have such a name. Readers of models skip these tensors."""
EXTRA = "extra_state"
EXTRA_PREFIX = ".extra/"
"""The same for what modules return from ``get_extra_state``, described by ``extra_state``."""
RESERVED = frozenset(
    {
        "format",
        "fdl_version",
        "structural_hash",
        "label",
        "flodl",
        "aliases",
        "config",
        "source_config",
        TRAINING,
        FORMS,
        EXTRA,
        DIGEST,
    }
)

_ALIGNMENT = 64  # of the first tensor, so that a mapped file suits all vector instructions
_MAX_DIGITS = 9  # of the version number
_SMALLEST_CHUNK, _LARGEST_CHUNK = 1 << 14, 1 << 22
_CHANGED = "the tensors changed while they were saved; save a snapshot of a model in training"
_PRESENT = 1 << 26
_POPULATE_READ = 22 if sys.platform == "linux" else None  # of madvise(2), since Linux 5.14
_PIECE = 1 << 22  # large, so that passing one to the checksum's thread takes no noticeable time

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file.

    Attributes:
        name: Its name.
        dtype: Its type.
        shape: Its shape.
        begin: Start of its bytes inside the body; if it is made of parts, of their first.
        end: End of its bytes; if it is made of parts, of their first.
        form: How it is made of parts; None for a tensor that is stored as it is.
        parts: The parts.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int
    form: Mapping[str, Any] | None = None
    parts: tuple[Entry, ...] = ()

    @property
    def layout(self) -> torch.layout:
        """The layout of the tensor."""
        return torch.strided if self.form is None else form_layout(self.form)


@dataclass(frozen=True, slots=True)
class Header:
    """The header before the tensors.

    Attributes:
        stored: The stored tensors in file order, named as in the file.
        entries: The tensors that these make, in file order, with qualified names.
        metadata: The strings of the file, including ``format`` and ``fdl_version``.
        aliases: Further qualified names of shared tensors, each with the name of an entry.
    """

    stored: tuple[Entry, ...]
    entries: tuple[Entry, ...]
    metadata: Mapping[str, str]
    aliases: Mapping[str, str]

    @property
    def model_entries(self) -> tuple[Entry, ...]:
        """The parameters and buffers of the model, in file order."""
        others = (TRAINING_PREFIX, EXTRA_PREFIX)
        return tuple(e for e in self.entries if not e.name.startswith(others))

    @property
    def body_size(self) -> int:
        """Number of bytes after the header."""
        return self.stored[-1].end if self.stored else 0


@dataclass(frozen=True, slots=True)
class Container:
    """A container in memory; tensors are views of its buffer.

    Attributes:
        header: The checked header.
        buffer: Bytes that contain the body.
        offset: Start of the body in ``buffer``.
    """

    header: Header
    buffer: bytearray | mmap
    offset: int

    def tensor(self, entry: Entry) -> Tensor:
        """The tensor of an entry, sharing memory with the buffer.

        Raises:
            CheckpointError: Its parts do not fit.
        """
        if entry.form is not None:
            try:
                return assembled(entry.form, [self.tensor(part) for part in entry.parts])
            except (ValueError, RuntimeError) as problem:
                raise CheckpointError(f"the tensor {entry.name!r} is damaged: {problem}") from None
        count = math.prod(entry.shape)
        if count == 0:
            return torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
        flat = torch.frombuffer(
            self.buffer, dtype=entry.dtype, count=count, offset=self.offset + entry.begin
        )
        return flat.reshape(entry.shape)


def lay_out(tensors: Iterable[tuple[str, Tensor]]) -> list[Entry]:
    """Assign every tensor its place: widest items first, equal widths in the given order.

    Raises:
        ValueError: A tensor has a reserved name.
    """
    named = list(tensors)
    if any(name == METADATA for name, _ in named):
        raise ValueError(f"a tensor cannot be named {METADATA}: the container uses the name itself")
    entries = []
    begin = 0
    for name, tensor in sorted(named, key=lambda item: -item[1].element_size()):
        end = begin + tensor.numel() * tensor.element_size()
        entries.append(Entry(name, tensor.dtype, tuple(tensor.shape), begin, end))
        begin = end
    return entries


def encode_header(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """Return the length field and the padded JSON header.

    Raises:
        ValueError: The header is too long to be read again, or contains more than text.
    """
    fields: dict[str, object] = {METADATA: {key: metadata[key] for key in sorted(metadata)}}
    for entry in entries:
        fields[entry.name] = {
            "dtype": _DTYPE_NAMES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": (entry.begin, entry.end),
        }
    try:
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 30) : error.end]
        raise ValueError(
            f"a name or a metadata string holds no valid text after {near!r}: escape it first"
        ) from None
    text += b" " * (-(PREFIX_BYTES + len(text)) % _ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise ValueError(
            f"names and metadata take {len(text):,} bytes and a container has space for "
            f"{MAX_HEADER:,}; keep large texts in a file of their own"
        )
    return len(text).to_bytes(PREFIX_BYTES, "little") + text


def write_container(
    stream: IO[bytes],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    rewindable: bool,
    fetch: Callable[[str], Tensor],
) -> None:
    """Write header and tensors, and compute the digest.

    Args:
        stream: Where to write; if ``rewindable``, it is at its beginning.
        tensors: The tensors by qualified name, each once; the file has their dotted names.
        metadata: The strings of the file, without the digest; secrets in them are masked.
        rewindable: Whether the header can be corrected after the tensors are written. If not, the
            tensors are read twice, which copies them twice from a GPU.
        fetch: Returns the values of a tensor by name; called in the order of :func:`fetched`.

    Raises:
        ValueError: As for :func:`lay_out`.
        CheckpointError: The tensors changed during the write.
    """
    entries = lay_out(tensors.items())
    named = [replace(entry, name=filed(entry.name)) for entry in entries]
    metadata = {key: KNOWN.text(text) for key, text in metadata.items()}
    blank = encode_header(named, {**metadata, DIGEST: BLANK})
    pieces = _pieces(fetch, entries)
    if rewindable:
        versions = _versions(tensors)
        disk = Disk(stream.fileno(), len(blank) + (entries[-1].end if entries else 0))
        stream.write(blank)
        digest = digest_while(blank, pieces, lambda piece: disk.wrote(stream.write(piece)))
        # The written bytes may not match the digest, and then the file could not be loaded.
        if _versions(tensors) != versions:
            raise CheckpointError(_CHANGED)
        stream.seek(0)
        stream.write(encode_header(named, {**metadata, DIGEST: digest}))
        stream.seek(0, os.SEEK_END)
        return
    digest = digest_of(chain([blank], pieces))
    stream.write(encode_header(named, {**metadata, DIGEST: digest}))
    if digest_while(blank, _pieces(fetch, entries), stream.write) != digest:
        raise CheckpointError(_CHANGED)


def _versions(tensors: Mapping[str, Tensor]) -> list[int]:
    """Number of writes to each tensor, as far as torch counts them."""
    local = [local_part(tensor) for tensor in tensors.values()]
    return [0 if tensor.is_inference() else tensor._version for tensor in local]


def fetched(tensors: Mapping[str, Tensor], *, rewindable: bool) -> list[str]:
    """The names that :func:`write_container` fetches, in its order.

    Raises:
        ValueError: As for :func:`lay_out`.
    """
    names = [entry.name for entry in lay_out(tensors.items()) if entry.end > entry.begin]
    return names if rewindable else names * 2


def _pieces(fetch: Callable[[str], Tensor], entries: Iterable[Entry]) -> Iterator[memoryview]:
    """The bytes of the body in row-major order; at most one CPU copy of one tensor at a time."""
    for entry in entries:
        if entry.end == entry.begin:
            continue
        dense = fetch(entry.name).detach().cpu().resolve_conj().resolve_neg().contiguous()
        size = dense.numel() * dense.element_size()
        data = memoryview((ctypes.c_char * size).from_address(dense.data_ptr())).cast("B")
        for start in range(0, size, _PIECE):
            yield data[start : start + _PIECE]


def check_digest(container: Container, where: str) -> None:
    """Compare header and tensors with the digest, if the file has one.

    Raises:
        CheckpointError: They differ.
    """
    header = container.header
    recorded = header.metadata.get(DIGEST)
    if recorded is None:
        return
    try:
        # Written again, because other programs may have put the fields in another order.
        blank = encode_header(header.stored, {**header.metadata, DIGEST: BLANK})
        with memoryview(container.buffer) as data:
            pieces: Iterable[bytes | memoryview] = chain([blank], _present_pieces(container, data))
            actual = digest_of(pieces, torch.get_num_threads())
    except ValueError:  # the header holds a name that cannot be written
        actual = "none"
    if actual != recorded:
        raise CheckpointError(
            f"{where} is damaged: its checksum is {actual} instead of {recorded}; "
            "restore the file from a copy or save it again. A program that changes a checkpoint "
            f"on purpose has to drop the metadata string {DIGEST}"
        )


def _present_pieces(container: Container, data: memoryview) -> Iterator[memoryview]:
    """The bytes of the body; of a mapped file, each piece is in memory before it is used.

    Asking for many pages at once takes a thirtieth of the time of a page fault for each.
    """
    buffer, begin = container.buffer, container.offset
    end = begin + container.header.body_size
    for start in range(begin, end, _PRESENT):
        stop = min(start + _PRESENT, end)
        if isinstance(buffer, mmap) and _POPULATE_READ is not None:
            page = start - start % PAGESIZE
            with suppress(OSError):  # a kernel without it: the pages come one by one
                buffer.madvise(_POPULATE_READ, page, stop - page)
        yield data[start:stop]


def read_header(stream: IO[bytes], prefix: bytes, where: str) -> tuple[Header, int]:
    """Read and check the header.

    Args:
        stream: A binary stream after the first eight bytes of a (decompressed) container.
        prefix: Those eight bytes, or fewer if the stream has no more.
        where: The file, for messages.

    Returns:
        The header, and its length in bytes: the start of the body.

    Raises:
        CheckpointError: The bytes are not a valid container header.
    """
    if not prefix:
        raise CheckpointError(f"{where} is empty: not a checkpoint")
    length = int.from_bytes(prefix, "little")
    if len(prefix) < PREFIX_BYTES or not 2 <= length <= MAX_HEADER:
        raise CheckpointError(f"{where} is not an fdl checkpoint: no safetensors header")
    raw = read_exactly(stream, length, where)
    try:
        return _parse_header(raw), PREFIX_BYTES + length
    except ValueError as error:  # covers broken JSON, broken UTF-8 and our own checks
        raise CheckpointError(f"{where} is not a sound fdl checkpoint: {error}") from None
    except RecursionError:
        raise CheckpointError(f"{where} is not an fdl checkpoint: header nested too deep") from None


def read_exactly(stream: IO[bytes], size: int, where: str) -> bytearray:
    """Read ``size`` bytes.

    Raises:
        CheckpointError: The stream ends early.
    """
    data = bytearray()
    append_exactly(data, stream, size, where)
    return data


def append_exactly(data: bytearray, stream: IO[bytes], size: int, where: str) -> None:
    """Append ``size`` bytes to ``data``, growing as they arrive: a wrong size reserves no memory.

    Raises:
        CheckpointError: The stream ends early.
    """
    end = len(data) + size
    while len(data) < end:
        room = max(_SMALLEST_CHUNK, min(len(data) // 2, _LARGEST_CHUNK))
        chunk = stream.read(min(room, end - len(data)))
        if not chunk:
            raise CheckpointError(
                f"{where} is truncated: {end - len(data)} bytes are missing; "
                "restore the file from a copy or save it again"
            )
        data += chunk


def _parse_header(raw: bytearray) -> Header:
    fields, metadata = read_fields(raw)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"it lacks the mark format={FORMAT}; another program wrote it")
    version = metadata.get("fdl_version", "")
    if not (version.isascii() and version.isdigit() and len(version) <= _MAX_DIGITS):
        raise ValueError("its fdl_version is not a number")
    stored = {name: described(name, value) for name, value in fields.items()}
    check_ranges(stored.items())
    entries = [_entry(name, tensor) for name, tensor in stored.items()]
    ordered = tuple(sorted(entries, key=lambda entry: (entry.begin, entry.end)))
    made = _made(ordered, json.loads(metadata.get(FORMS, "{}"), object_pairs_hook=unique))
    made = tuple(replace(entry, name=qualify(entry.name)) for entry in made)
    names = {entry.name for entry in made}
    if len(names) < len(made):
        raise ValueError("two of its tensors have one qualified name")
    aliases = json.loads(metadata.get("aliases", "{}"), object_pairs_hook=unique)
    if not is_text_mapping(aliases):
        raise ValueError("its aliases are not a mapping of names")
    aliases = {qualify(alias): qualify(name) for alias, name in aliases.items()}
    for alias, name in aliases.items():
        if alias in names or name not in names:
            raise ValueError(f"alias {alias!r} does not lead to a stored tensor")
    return Header(ordered, made, metadata, aliases)


def _made(stored: tuple[Entry, ...], forms: Any) -> tuple[Entry, ...]:
    """Return the tensors that stored ones make, in file order."""
    if not isinstance(forms, dict):
        raise ValueError("its forms are not a mapping")
    if not forms:
        return stored
    known = {entry.name: entry for entry in stored}
    used: set[str] = set()
    # Backwards, because the name of a part begins with the name of its tensor.
    for name, form in sorted(forms.items(), reverse=True):
        check_form(name, form, known.__contains__)
        if name in known or used & set(form["parts"]):
            raise ValueError(f"the form of tensor {name!r} is damaged")
        used |= set(form["parts"])
        parts = tuple(known[part] for part in form["parts"])
        dtype, first = form_dtype(form, parts[-1].dtype), parts[0]
        shape = tuple(form["shape"])
        known[name] = Entry(name, dtype, shape, first.begin, first.end, form, parts)
    whole = (entry for name, entry in known.items() if name not in used)
    return tuple(sorted(whole, key=lambda entry: (entry.begin, entry.end)))


def _entry(name: str, stored: StoredTensor) -> Entry:
    dtype = DTYPES.get(stored.dtype)
    if dtype is None:
        raise ValueError(f"tensor {name!r} has an unknown dtype {stored.dtype!r}")
    return Entry(name, dtype, stored.shape, stored.begin, stored.end)
