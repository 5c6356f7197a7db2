"""Read one library file: the machine it is made for, and the libraries it needs."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from fdl.libtorch.prove.fatbin import Buffer, Container, Section, united, walk

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
    from elftools.elf.elffile import ELFFile

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
    return walk(data, begin, begin + section["sh_size"])


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
