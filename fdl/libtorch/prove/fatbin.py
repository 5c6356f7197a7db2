"""Read the GPU code inside a library: NVIDIA's fat binaries.

A section of fat binaries is a sequence of containers, one per translation unit, padded with zeros.
A container is a header and a sequence of entries. Each entry has a header that gives the kind of
payload and its architecture. The headers are not compressed, even if the payload is.

NVIDIA documents the header of the container (``fatbinary_section.h`` of the CUDA toolkit). The
fields of the entries are those that nvcc 12 and 13 write; the tests check this with nvcc.

Payloads are never copied, because sections of libtorch are larger than one gigabyte.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Literal

from fdl.libtorch.architectures import Architecture

MAGIC = b"\x50\xed\x55\xba"

_CONTAINER = Struct("<4sHHQ")
"""Magic, format version, bytes of this header, bytes of all entries."""

_ENTRY = Struct("<HHIQ8xHHI8xQ")
"""Kind, format version, bytes of this header, bytes of the padded payload, minor and major of the
payload's own version, architecture, flags."""

_FORMS: Mapping[int, Literal["sass", "ptx"]] = {0x01: "ptx", 0x02: "sass", 0x10: "sass"}
"""Kinds of payload that are machine code or PTX."""

_COMPRESSED = 0x2000 | 0x8000
_EXACT = 0x100000
_FAMILY = 0x200000

_REPORTED = 8
"""Maximum number of damaged places in a report; an unreadable section has thousands."""

Buffer = bytes | mmap.mmap


@dataclass(frozen=True, slots=True, order=True)
class Image:
    """One piece of GPU code.

    Attributes:
        architecture: The architecture it was compiled for.
        form: ``sass``, machine code, or ``ptx``, which the driver compiles for the GPU.
        isa: Version of the PTX language; (0, 0) for machine code.
    """

    architecture: Architecture
    form: Literal["sass", "ptx"]
    isa: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """The name that compilers use: ``sm_90a``, ``compute_90``."""
        digits = self.architecture.sm.removeprefix("sm_")
        return f"{'sm' if self.form == 'sass' else 'compute'}_{digits}"

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of this compute capability can execute it."""
        if self.form == "sass" or self.architecture.specific:
            return self.architecture.is_native_on(capability)
        return self.architecture.capability <= capability


Container = frozenset[Image]
"""The images of one translation unit; the driver uses the one that fits the GPU best."""


@dataclass(frozen=True, slots=True)
class Section:
    """The content of one section.

    Attributes:
        containers: Sets of images, and the number of containers with exactly that set; empty
            containers are left out.
        unjudged: Entries that are neither machine code nor PTX, such as code for link-time
            optimization.
        damage: Places that cannot be read, each with its offset in the file; the readable parts
            around them are in ``containers``.
        toolkit: Release of the CUDA compiler, from its mark in the code, such as ``13.0``; empty
            without a mark.
    """

    containers: Mapping[Container, int] = field(default_factory=dict)
    unjudged: int = 0
    damage: tuple[str, ...] = ()
    toolkit: str = ""

    @property
    def images(self) -> frozenset[Image]:
        """All images, each once."""
        return frozenset().union(*self.containers)


def walk(data: Buffer, begin: int, end: int) -> Section:
    """Read the headers of a section of a file, between two offsets.

    A part beyond the end of the file counts as damage. For any bytes, the call ends and raises no
    error.
    """
    reader = _Reader(data, min(max(begin, 0), len(data)), min(end, len(data)))
    if end > len(data):
        reader.report(len(data), f"the section goes on for {end - len(data)} bytes behind the file")
    reader.read()
    return reader.section()


class _Reader:
    def __init__(self, data: Buffer, begin: int, end: int) -> None:
        self._data = data
        self._begin = begin
        self._end = end
        self._containers: Counter[Container] = Counter()
        self._unjudged = 0
        self._damage: list[str] = []
        self._damaged = 0
        self._toolkit = ""

    def section(self) -> Section:
        damage = list(self._damage)
        if self._damaged > _REPORTED:
            damage.append(f"and {self._damaged - _REPORTED} more places")
        return Section(dict(self._containers), self._unjudged, tuple(damage), self._toolkit)

    def report(self, offset: int, what: str) -> None:
        self._damaged += 1
        if self._damaged <= _REPORTED:
            self._damage.append(f"at offset {offset}: {what}")

    def read(self) -> None:
        position = self._begin
        while position < self._end:
            found = self._data.find(MAGIC, position, self._end)
            start = self._end if found < 0 else found
            self._check_padding(position, start)
            if found < 0:
                return
            position = self._container(found)

    def _check_padding(self, begin: int, end: int) -> None:
        # Between containers there are a few zeros. The first bytes tell padding from a container
        # with a damaged magic number, without reading up to a gigabyte.
        if self._data[begin : min(end, begin + 64)].strip(b"\0"):
            self.report(begin, f"{end - begin} bytes that are not a fat binary")

    def _container(self, at: int) -> int:
        """Read one container; returns the position to look for the next one."""
        if at + _CONTAINER.size > self._end:
            self.report(at, "a fat binary is cut off")
            return self._end
        _, version, header, size = _CONTAINER.unpack_from(self._data, at)
        if header < _CONTAINER.size:
            self.report(at, f"a fat binary with a header of {header} bytes")
            return at + len(MAGIC)
        stop = at + header + size
        if stop > self._end:
            self.report(at, f"a fat binary is {stop - self._end} bytes longer than its section")
        if version != 1:
            self.report(at, f"a fat binary of the unknown format {version}")
        images, reached = self._entries(at + header, min(stop, self._end))
        if images:
            self._containers[images] += 1
        return stop if stop <= self._end else max(reached, at + len(MAGIC))

    def _entries(self, position: int, stop: int) -> tuple[Container, int]:
        """The images of one container, and the position where reading ended."""
        found = set[Image]()
        while position < stop:
            if position + _ENTRY.size > stop:
                self.report(position, "an entry of a fat binary is cut off")
                break
            kind, _, header, size, *payload = _ENTRY.unpack_from(self._data, position)
            following = position + header + size
            if header < _ENTRY.size or following > stop:
                self.report(position, "an entry of a fat binary is longer than the binary")
                break
            image = self._image(position, kind, payload)
            if image:
                found.add(image)
                if image.form == "sass" and not self._toolkit and not payload[-1] & _COMPRESSED:
                    self._toolkit = self._mark(position + header, following)
            position = following
        return frozenset(found), position

    def _image(self, at: int, kind: int, payload: Sequence[int]) -> Image | None:
        minor, major, number, flags = payload
        form = _FORMS.get(kind)
        if form is None:
            self._unjudged += 1
            return None
        if not 10 <= number < 1000:
            self.report(at, f"code for the unknown architecture {number}")
            return None
        isa = (major, minor) if form == "ptx" else (0, 0)
        specific = "a" if flags & _EXACT else "f" if flags & _FAMILY else ""
        return Image(Architecture(number // 10, number % 10, specific), form, isa)

    def _mark(self, begin: int, end: int) -> str:
        sign = b"Cuda compilation tools, release "
        at = self._data.find(sign, begin, end)
        if at < 0:
            return ""
        text = self._data[at + len(sign) : min(at + len(sign) + 8, end)]
        release = text.partition(b",")[0].decode("ascii", "replace")
        return release if release.replace(".", "", 1).isdigit() else ""


def united(linked: Section, relocatable: Section) -> Mapping[Container, int]:
    """The containers of a library as the driver sees them.

    The linked containers hold the machine code of relocatable code (``-rdc=true``). Its PTX is
    linked at load time, which needs PTX in every translation unit. Units whose machine code was
    not linked are NVIDIA's device runtime. That has code for every architecture, so it tells
    nothing about the library.
    """
    ours = frozenset(image for image in linked.images if image.form == "sass")
    units = [
        unit
        for unit in relocatable.containers
        if not any(image.form == "sass" for image in unit) or unit & ours
    ]
    whole = Counter(linked.containers)
    if units and all(any(image.form == "ptx" for image in unit) for unit in units):
        joined = frozenset().union(*units)
        whole[frozenset(one for one in joined if one.form == "ptx" or one in ours)] += 1
    return whole
