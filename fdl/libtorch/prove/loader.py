"""Find the libraries that are needed from outside a folder, and check that they are available.

The search order is that of the dynamic loader of Linux (``man 8 ld.so``). Nothing is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fdl.base.hardware.ask import ask
from fdl.libtorch.catalog import operating_system as operating_system, processor as processor
from fdl.libtorch.prove.binary import Binary, SymbolVersion, read

DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1")
"""Libraries that come with the NVIDIA driver, never with libtorch."""

_ENTRANCE = "libtorch.so"
_CACHED = re.compile(r"\s*(\S+) \(([^)]*)\) => (\S+)")
_CACHE_MARKS = {"x86_64": "x86-64", "arm64": "AArch64"}
_TRIPLETS = {"x86_64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}


@dataclass(frozen=True, slots=True)
class Missing:
    """A needed library that was not found.

    Attributes:
        name: Its name.
        needed_by: The first library that needs it.
        essential: Whether libtorch cannot be loaded without it; False if only an extra library
            beside libtorch needs it.
    """

    name: str
    needed_by: str
    essential: bool


@dataclass(frozen=True, slots=True)
class Unmet:
    """A needed version of symbols that the library found on this machine lacks.

    Attributes:
        need: The version, and the library that should have it.
        needed_by: The first library that needs it.
        provider: The library that was found under that name.
    """

    need: SymbolVersion
    needed_by: str
    provider: Path


@dataclass(frozen=True, slots=True)
class Links:
    """The result of the loader's search.

    Attributes:
        missing: Libraries that it would not find, without those of the NVIDIA driver.
        unmet: Symbol versions that it would not find.
        driver: Needed libraries of the NVIDIA driver that are not on this machine.
    """

    missing: tuple[Missing, ...] = ()
    unmet: tuple[Unmet, ...] = ()
    driver: tuple[str, ...] = ()


def links(libraries: Sequence[Binary], environ: Mapping[str, str]) -> Links:
    """Look for all needs of the ELF libraries of a folder, also with ``LD_LIBRARY_PATH``."""
    search = _Search(libraries, environ)
    for one in libraries:
        search.visit(one, ())
    return search.result()


class _Search:
    """One search for the needs of a folder's libraries, and for the needs of those found."""

    def __init__(self, libraries: Sequence[Binary], environ: Mapping[str, str]) -> None:
        self._folder = libraries[0].path.parent
        self._user = [*filter(None, re.split("[:;]", environ.get("LD_LIBRARY_PATH", "")))]
        self._cache = _cache(environ)
        self._defaults = _defaults()
        self._known = {one.path.resolve(): one for one in libraries}
        self._visited: set[Path] = set()
        self._found: dict[str, Path | None] = {}
        self._edges: dict[str, tuple[str, ...]] = {}
        self._first: dict[str, str] = {}
        self._needs: dict[SymbolVersion, str] = {}

    def visit(self, library: Binary, inherited: tuple[str, ...]) -> None:
        """Find the libraries that a library needs, then those that these need.

        ``inherited`` are the run paths of the libraries that load it; used if it has no run path of
        the newer kind.
        """
        path = library.path.resolve()
        if path in self._visited:
            return
        self._visited.add(path)
        self._edges[library.name] = library.needed
        for need in library.needs:
            self._needs.setdefault(need, library.name)
        before = () if library.runpath else (*_expand(library.rpath, path), *inherited)
        for name in library.needed:
            self._first.setdefault(name, library.name)
            if name not in self._found:
                self._found[name] = self._look(name, (*before, *self._user), library)
                self._follow(name, before)

    def _look(self, name: str, before: Iterable[str], library: Binary) -> Path | None:
        if "/" in name:
            return Path(name) if _is_file(Path(name)) else None
        behind = _expand(library.runpath, library.path.resolve())
        for folder in (*before, *behind, str(self._folder)):
            if _is_file(Path(folder) / name):
                return Path(folder) / name
        system = self._cache.get(name)
        places = [Path(system)] if system else [Path(one) / name for one in self._defaults]
        return next((place for place in places if _is_file(place)), None)

    def _follow(self, name: str, inherited: tuple[str, ...]) -> None:
        """Visit a found library; those of the system are skipped, because they are complete."""
        found = self._found[name]
        if found is None or str(found) == self._cache.get(name):
            return
        if str(found.parent) in self._defaults:
            return
        library = self._read(found)
        self._edges[name] = library.needed
        self.visit(library, inherited)

    def _read(self, path: Path) -> Binary:
        return self._known.get(path.resolve()) or read(path)

    def result(self) -> Links:
        essential = self._reached()
        lost = [name for name, path in self._found.items() if path is None]
        return Links(
            missing=tuple(
                Missing(name, self._first[name], self._first[name] in essential or not essential)
                for name in lost
                if name not in DRIVER
            ),
            unmet=tuple(self._unmet()),
            driver=tuple(name for name in lost if name in DRIVER),
        )

    def _reached(self) -> set[str]:
        """Names of the libraries that loading libtorch loads; empty without a libtorch."""
        reached: set[str] = set()
        waiting = [_ENTRANCE] if _ENTRANCE in self._edges else []
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += [one for one in self._edges.get(name, ()) if one in self._edges]
        return reached

    def _unmet(self) -> Iterable[Unmet]:
        offers: dict[Path, frozenset[str]] = {}
        for need, needed_by in self._needs.items():
            provider = self._found.get(need.file)
            if provider is None:
                continue
            if provider not in offers:
                offers[provider] = self._read(provider).offers
            # The loader accepts a library without any versions, with a warning.
            if offers[provider] and need.version not in offers[provider]:
                yield Unmet(need, needed_by, provider)


def _is_file(path: Path) -> bool:
    """Whether a file exists; False for impossible names, which a damaged library may need."""
    try:
        return path.is_file()
    except OSError:
        return False


def _expand(folders: Iterable[str], library: Path) -> tuple[str, ...]:
    origin = str(library.parent)
    return tuple(
        folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in folders
    )


def _cache(environ: Mapping[str, str]) -> dict[str, str]:
    """The loader's cache: name -> path, for this machine's kind; empty if it cannot be read."""
    environ = {**environ, "LC_ALL": "C"}
    answer = ask(["ldconfig", "-p"], environ, patience=10, folders=("/sbin", "/usr/sbin"))
    if answer is None or answer.code is None:
        return {}
    mark = _CACHE_MARKS.get(processor(), "")
    found: dict[str, str] = {}
    for match in map(_CACHED.match, answer.text.splitlines()):
        if match and mark in match[2]:
            found.setdefault(match[1], match[3])
    return found


def _defaults() -> tuple[str, ...]:
    triplet = _TRIPLETS.get(processor())
    ours = (f"/lib/{triplet}", f"/usr/lib/{triplet}") if triplet else ()
    return (*ours, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
