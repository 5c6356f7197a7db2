"""Read one library file: its machine, the libraries that it needs, and the GPU code inside.

GPU code is in NVIDIA's fat binaries. A section of them is a sequence of containers, one per
translation unit, padded with zeros. A container is a header and a sequence of entries. Each entry
has a header that gives the kind of payload and its architecture. The headers are not compressed,
even if the payload is.

NVIDIA documents the header of the container (``fatbinary_section.h`` of the CUDA toolkit). The
fields of the entries are those that nvcc 12 and 13 write; the tests check this with nvcc.

Payloads are never copied, because sections of libtorch are larger than one gigabyte.
"""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import IO, Any, Literal

from elftools.elf.elffile import ELFFile

from fdl.libtorch.catalog import Architecture

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


class Section:
    """The content of one section of a file, read from its headers.

    For any bytes, reading ends and raises no error.

    Attributes:
        containers: Sets of images, and the number of containers with exactly that set; empty
            containers are left out.
        unjudged: Entries that are neither machine code nor PTX, such as code for link-time
            optimization.
        toolkit: Release of the CUDA compiler, from its mark in the code, such as ``13.0``; empty
            without a mark.

    Args:
        data: The file.
        begin: Offset of the section.
        end: Offset behind it. A part beyond the end of the file counts as damage.
    """

    def __init__(self, data: Buffer = b"", begin: int = 0, end: int = 0) -> None:
        self.containers: Counter[Container] = Counter()
        self.unjudged = 0
        self.toolkit = ""
        self._data = data
        self._end = min(end, len(data))
        self._damage: list[str] = []
        self._damaged = 0
        if (lost := end - len(data)) > 0:
            self._report(len(data), f"the section goes on for {lost} bytes behind the file")
        position = min(max(begin, 0), len(data))
        while position < self._end:
            found = self._data.find(MAGIC, position, self._end)
            self._check_padding(position, self._end if found < 0 else found)
            position = self._end if found < 0 else self._container(found)

    @property
    def images(self) -> frozenset[Image]:
        """All images, each once."""
        return frozenset().union(*self.containers)

    @property
    def damage(self) -> tuple[str, ...]:
        """Places that cannot be read, each with its offset in the file.

        The readable parts around them are in ``containers``.
        """
        more = self._damaged - len(self._damage)
        return (*self._damage, *([f"and {more} more places"] if more else []))

    def _report(self, offset: int, what: str) -> None:
        self._damaged += 1
        if self._damaged <= _REPORTED:
            self._damage.append(f"at offset {offset}: {what}")

    def _check_padding(self, begin: int, end: int) -> None:
        # Between containers there are a few zeros. The first bytes tell padding from a container
        # with a damaged magic number, without reading up to a gigabyte.
        if self._data[begin : min(end, begin + 64)].strip(b"\0"):
            self._report(begin, f"{end - begin} bytes that are not a fat binary")

    def _container(self, at: int) -> int:
        """Read one container; returns the position to look for the next one."""
        if at + _CONTAINER.size > self._end:
            self._report(at, "a fat binary is cut off")
            return self._end
        _, version, header, size = _CONTAINER.unpack_from(self._data, at)
        if header < _CONTAINER.size:
            self._report(at, f"a fat binary with a header of {header} bytes")
            return at + len(MAGIC)
        stop = at + header + size
        if stop > self._end:
            self._report(at, f"a fat binary is {stop - self._end} bytes longer than its section")
        if version != 1:
            self._report(at, f"a fat binary of the unknown format {version}")
        images, reached = self._entries(at + header, min(stop, self._end))
        if images:
            self.containers[images] += 1
        return stop if stop <= self._end else max(reached, at + len(MAGIC))

    def _entries(self, position: int, stop: int) -> tuple[Container, int]:
        """The images of one container, and the position where reading ended."""
        found = set[Image]()
        while position < stop:
            if position + _ENTRY.size > stop:
                self._report(position, "an entry of a fat binary is cut off")
                break
            kind, _, header, size, *payload = _ENTRY.unpack_from(self._data, position)
            following = position + header + size
            if header < _ENTRY.size or following > stop:
                self._report(position, "an entry of a fat binary is longer than the binary")
                break
            image = self._image(position, kind, payload)
            if image:
                found.add(image)
                if image.form == "sass" and not self.toolkit and not payload[-1] & _COMPRESSED:
                    self.toolkit = self._mark(position + header, following)
            position = following
        return frozenset(found), position

    def _image(self, at: int, kind: int, payload: Sequence[int]) -> Image | None:
        minor, major, number, flags = payload
        form = _FORMS.get(kind)
        if form is None:
            self.unjudged += 1
            return None
        if not 10 <= number < 1000:
            self._report(at, f"code for the unknown architecture {number}")
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


Abi = Literal["cxx11", "pre-cxx11", ""]

_PROCESSORS = {
    "EM_X86_64": "x86_64",
    "EM_AARCH64": "arm64",
    "EM_386": "x86",
    "EM_ARM": "arm",
    "EM_PPC64": "ppc64",
    "EM_RISCV": "riscv",
}

# A damaged file may give any number of sections; this limits the time to read it.
_MOST_SECTIONS = 4096
_MOST_ENTRIES = 4096

_WEAK = 0x2
_OLD_STRING = re.compile(rb"\0_ZNK?Ss")
_OWN_NEW_STRING = re.compile(rb"\0_ZNK?(?:3c10|2at|5torch)[^\0]*__cxx11")
_OWN_OLD_STRING = re.compile(rb"\0_ZNK?(?:3c10|2at|5torch)[^\0]*(?:E|RK)Ss")


@dataclass(frozen=True, slots=True)
class SymbolVersion:
    """A version of symbols that a library needs, such as ``GLIBC_2.28`` of ``libc.so.6``."""

    file: str
    version: str


@dataclass(frozen=True, slots=True)
class Binary:
    """The facts in the headers of a library file.

    Attributes:
        format: Its format; nothing is read of a file that is not ELF.
        processor: ``x86_64``, ``arm64`` …; empty if unknown.
        soname: The name it is loaded under; empty without one.
        needed: Names of the libraries it is linked to.
        rpath: Folders that are searched for these before the user's; as written, with ``$ORIGIN``.
        runpath: Folders that are searched for these after the user's; replaces ``rpath``.
        needs: Symbol versions that must be available.
        offers: Symbol versions that it defines.
        abi: The layout of C++ strings in its symbols; empty if no symbol shows it.
        code: GPU code: sets of images, and the number of translation units with exactly that set.
        unjudged: Pieces of GPU code that are neither machine code nor PTX.
        toolkit: Release of the CUDA compiler, if it left a mark; else empty.
        problem: Why it cannot be read, fully or partly; empty if it can.
    """

    path: Path
    format: Literal["elf", "unknown"] = "unknown"
    processor: str = ""
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    needs: tuple[SymbolVersion, ...] = ()
    offers: frozenset[str] = frozenset()
    abi: Abi = ""
    code: Mapping[Container, int] = field(default_factory=dict)
    unjudged: int = 0
    toolkit: str = ""
    problem: str = ""

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name


def read(path: Path) -> Binary:
    """Read a library; on failure, ``problem`` says why, and no error is raised."""
    try:
        with path.open("rb") as stream:
            if not stream.seek(0, 2):
                return Binary(path, problem="it is empty")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, stream, data)
    except OSError as error:
        return Binary(path, problem=f"it cannot be read: {error.strerror}")


def _parse(path: Path, stream: IO[bytes], data: mmap.mmap) -> Binary:
    if data[:4] != b"\x7fELF":
        return Binary(path, problem="it is not an ELF file")
    try:
        return _elf(path, stream, data)
    # pyelftools does not check for damaged files and can raise nearly any exception for them.
    # All of these mean the same.
    except Exception as error:
        reason = str(error) or type(error).__name__
        return Binary(path, "elf", problem=f"its ELF headers are damaged: {reason}")


def _elf(path: Path, stream: IO[bytes], data: mmap.mmap) -> Binary:
    elf: Any = ELFFile(stream)
    machine = str(elf["e_machine"])
    count = min(elf.num_sections(), _MOST_SECTIONS)
    sections = {one.name: one for one in map(elf.get_section, range(count))}
    linked = _fat_binaries(sections.get(".nv_fatbin"), data)
    relocatable = _fat_binaries(sections.get("__nv_relfatbin"), data)
    tags = _dynamic(sections.get(".dynamic"))
    damage = (*linked.damage, *relocatable.damage)
    problem = f"its GPU code is damaged {'; '.join(damage)}" if damage else ""
    if not sections:
        problem = "it has no section table, so nothing can be read from it"
    return Binary(
        path,
        "elf",
        _PROCESSORS.get(machine, machine.removeprefix("EM_").lower()),
        soname="".join(tags.get("soname", ())[:1]),
        needed=tuple(tags.get("needed", ())),
        rpath=_folders(tags.get("rpath", ())),
        runpath=_folders(tags.get("runpath", ())),
        needs=tuple(_needs(sections.get(".gnu.version_r"))),
        offers=frozenset(_offers(sections.get(".gnu.version_d"))),
        abi=_abi(sections.get(".dynstr"), data),
        code=united(linked, relocatable),
        unjudged=linked.unjudged + relocatable.unjudged,
        toolkit=linked.toolkit,
        problem=problem,
    )


def _fat_binaries(section: Any, data: Buffer) -> Section:
    if section is None or section["sh_type"] == "SHT_NOBITS":
        return Section()
    begin = section["sh_offset"]
    return Section(data, begin, begin + section["sh_size"])


def _dynamic(section: Any) -> dict[str, list[str]]:
    """The texts of the dynamic section, by kind of tag."""
    found: dict[str, list[str]] = {}
    if section is None:
        return found
    for tag in islice(section.iter_tags(), _MOST_ENTRIES):
        for kind in ("needed", "soname", "rpath", "runpath"):
            if hasattr(tag, kind):
                found.setdefault(kind, []).append(getattr(tag, kind))
    return found


def _folders(values: list[str] | tuple[()]) -> tuple[str, ...]:
    return tuple(folder for value in values for folder in value.split(":") if folder)


def _needs(section: Any) -> Iterator[SymbolVersion]:
    if section is None:
        return
    libraries = islice(section.iter_versions(), _MOST_ENTRIES)
    needs = ((library.name, one) for library, versions in libraries for one in versions)
    for file, one in islice(needs, _MOST_ENTRIES):
        # The loader ignores weak needs that are not met.
        if not one["vna_flags"] & _WEAK:
            yield SymbolVersion(file, one.name)


def _offers(section: Any) -> Iterator[str]:
    if section is None:
        return
    for _, names in islice(section.iter_versions(), _MOST_ENTRIES):
        for one in islice(names, 1):
            yield one.name


def _abi(strings: Any, data: mmap.mmap) -> Abi:
    """The kind of ``std::string`` in the names of symbols.

    The names are searched as bytes: libtorch_cpu has seventy thousand, and one decides. If both
    kinds occur, the library contains parts of the C++ runtime, and only torch's own names decide.
    """
    if strings is None:
        return ""
    span = strings["sh_offset"], strings["sh_offset"] + strings["sh_size"]
    new = data.find(b"__cxx11", *span) >= 0
    old = _OLD_STRING.search(data, *span) is not None
    if new and old:
        new = _OWN_NEW_STRING.search(data, *span) is not None
        old = not new and _OWN_OLD_STRING.search(data, *span) is not None
    if new:
        return "cxx11"
    return "pre-cxx11" if old else ""
