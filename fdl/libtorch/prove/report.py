"""Report on a folder of libraries, for some GPUs and for this machine.

Libraries that are needed from outside the folder are searched in the order of the dynamic loader of
Linux (``man 8 ld.so``). Nothing is loaded, and the loader is not asked: with ``--list`` too, it
runs the code of an audit library that a library names (``DT_AUDIT``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fdl.base.hardware import Gpu, Nvidia
from fdl.base.hardware.machine import ask
from fdl.base.tables import TROUBLE, headed, pairs
from fdl.libtorch.catalog import operating_system as operating_system, processor as processor
from fdl.libtorch.prove.binary import Binary, SymbolVersion, read
from fdl.libtorch.prove.facts import Facts, Verdict, images, judge, remedy

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


class Links:
    """The loader's search for the needs of a folder's ELF libraries, and of those found.

    Attributes:
        missing: Libraries that it would not find, without those of the NVIDIA driver.
        unmet: Symbol versions that it would not find.
        driver: Needed libraries of the NVIDIA driver that are not on this machine.

    Args:
        libraries: The libraries.
        environ: The environment, which may have ``LD_LIBRARY_PATH``.
    """

    def __init__(self, libraries: Sequence[Binary], environ: Mapping[str, str]) -> None:
        self._folder = libraries[0].path.parent
        self._user = [*filter(None, re.split("[:;]", environ.get("LD_LIBRARY_PATH", "")))]
        self._cache = _cache(environ)
        self._defaults = _defaults()
        self._known = {one.path.resolve(): one for one in libraries}
        self._visited: set[Path] = set()
        self._found: dict[str, Path | None] = {}
        self._first: dict[str, str] = {}
        self._needs: dict[SymbolVersion, str] = {}
        entrance = [one for one in libraries if one.name == _ENTRANCE]
        for one in entrance:
            self._visit(one, ())
        essential = set(self._found)
        for one in libraries:
            self._visit(one, ())
        lost = [name for name, path in self._found.items() if path is None]
        self.missing = tuple(
            Missing(name, self._first[name], name in essential or not entrance)
            for name in lost
            if name not in DRIVER
        )
        self.unmet = tuple(self._unmet())
        self.driver = tuple(name for name in lost if name in DRIVER)

    def _visit(self, library: Binary, inherited: tuple[str, ...]) -> None:
        """Find the libraries that a library needs, then those that these need.

        ``inherited`` are the run paths of the libraries that load it; used if it has no run path of
        the newer kind.
        """
        path = library.path.resolve()
        if path in self._visited:
            return
        self._visited.add(path)
        for need in library.needs:
            self._needs.setdefault(need, library.name)
        before = () if library.runpath else (*_expand(library.rpath, path), *inherited)
        for name in library.needed:
            if name not in self._found:
                self._first[name] = library.name
                found = self._look(name, (*before, *self._user), library)
                self._found[name] = found
                if found and not self._is_of_the_system(name, found):
                    self._visit(self._read(found), before)

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

    def _is_of_the_system(self, name: str, found: Path) -> bool:
        """Whether the system provides a library, whose own needs are then met."""
        return str(found) == self._cache.get(name) or str(found.parent) in self._defaults

    def _read(self, path: Path) -> Binary:
        return self._known.get(path.resolve()) or read(path)

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


_NVIDIA = ("libcu", "libnv", "libnccl")
_NAMED = {"linux": "Linux", "macos": "macOS", "windows": "Windows"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, other than a GPU that is not served.

    Attributes:
        severity: ``error`` prevents libtorch from running here, ``note`` may matter.
        message: The problem, without a final full stop.
        remedy: What to do; empty if nothing is to be done.
    """

    severity: Literal["error", "note"]
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found about a folder.

    Attributes:
        links: What this machine lacks; None if the libraries are for another kind of machine.
        verdicts: One per GPU.
        problems: The problems, errors first.
        remedy: The smallest change that serves all GPUs; empty if they are served.
        variant: The id of the variant; empty for other folders.
    """

    facts: Facts
    links: Links | None = None
    verdicts: tuple[Verdict, ...] = ()
    problems: tuple[Problem, ...] = ()
    remedy: str = ""
    variant: str = ""

    @property
    def ok(self) -> bool:
        """Whether every GPU is served and no error prevents libtorch from running here."""
        served = all(one.outcome != "impossible" for one in self.verdicts)
        return served and all(one.severity != "error" for one in self.problems)


def examine(
    facts: Facts,
    gpus: Sequence[Gpu],
    nvidia: Nvidia | None,
    environ: Mapping[str, str],
    variant: str = "",
) -> Report:
    """Judge a folder for some GPUs, with their driver if it is known, and for this machine."""
    here = (facts.os, facts.processor) == (operating_system(), processor())
    searched = Links(facts.libraries, environ) if here else None
    verdicts = tuple(judge(gpu, facts, nvidia) for gpu in gpus)
    problems = [*_of_files(facts, variant), *_of_papers(facts, variant), *_of_machine(facts)]
    if searched:
        problems += [*_missing(searched), *_unmet(searched), *_driver(searched)]
    problems.sort(key=lambda one: one.severity != "error")
    verdict = remedy(verdicts, facts, nvidia)
    return Report(facts, searched, verdicts, tuple(problems), verdict, variant)


def _of_files(facts: Facts, variant: str) -> Iterator[Problem]:
    for one in facts.libraries:
        if one.problem:
            yield Problem("error", f"{one.path}: {one.problem}", _again(variant))
        if one.format == "elf" and one.processor and one.processor != facts.processor:
            yield Problem(
                "error", f"{one.path} is for {one.processor}, the others for {facts.processor}"
            )
    if facts.is_libtorch and facts.abi == "mixed":
        yield Problem(
            "error",
            "the libraries mix the two C++ ABIs, cxx11 and pre-cxx11, and cannot work together",
            _again(variant),
        )


def _of_papers(facts: Facts, variant: str) -> Iterator[Problem]:
    declared, found = facts.declared_cuda, facts.cuda
    if declared and found and declared.major != found.major:
        yield Problem(
            "error",
            f"{declared.origin} says CUDA {declared.version}, but the libraries want "
            f"CUDA {found.version} ({found.origin})",
            _again(variant),
        )


def _again(variant: str) -> str:
    if variant:
        return f"fdl libtorch remove {variant} && fdl libtorch install"
    return "unpack it again, or let fdl do it: fdl libtorch install"


def _of_machine(facts: Facts) -> Iterator[Problem]:
    made = facts.os, facts.processor
    ours = operating_system(), processor()
    if all(made) and made != ours:
        yield Problem(
            "error",
            f"the libraries are for {machine(*made)}, this machine is {machine(*ours)}",
            "fdl libtorch install",
        )


def _missing(links: Links) -> Iterator[Problem]:
    """One problem per remedy: without NVIDIA's libraries, a dozen are missing at once."""
    groups: dict[tuple[bool, bool], list[Missing]] = {}
    for one in links.missing:
        groups.setdefault((one.essential, one.name.startswith(_NVIDIA)), []).append(one)
    for (essential, nvidia), group in groups.items():
        names = ", ".join(f"{one.name} (needed by {one.needed_by})" for one in group)
        what = "is missing" if len(group) == 1 else "are missing"
        later = "" if essential else "; without it something that is loaded later will fail"
        yield Problem(
            "error" if essential else "note",
            f"{names} {what}: neither beside libtorch, nor on a run path, nor in the system{later}",
            "let fdl install it: fdl libtorch install"
            if nvidia
            else "install the packages of your system that have them",
        )


def _unmet(links: Links) -> Iterator[Problem]:
    """One problem per library that is too old."""
    groups: dict[Path, list[Unmet]] = {}
    for one in links.unmet:
        groups.setdefault(one.provider, []).append(one)
    for provider, group in groups.items():
        names = ", ".join(f"{one.need.version} (needed by {one.needed_by})" for one in group)
        yield Problem(
            "error",
            f"{provider} is too old: it does not have {names}",
            "use a newer system, or a container of one, or build on this one: fdl libtorch build"
            if any(one.need.version.startswith("GLIBC_") for one in group)
            else f"install a newer {group[0].need.file}",
        )


def _driver(links: Links) -> Iterator[Problem]:
    if links.driver:
        names = ", ".join(links.driver)
        yield Problem(
            "note", f"{names} comes with the NVIDIA driver, and this machine has none to offer"
        )


def machine(os: str, processor: str) -> str:
    """A kind of machine in words: ``Linux x86_64``."""
    return f"{_NAMED.get(os, os)} {processor}".strip()


SCHEMA_VERSION = 1

_SYMBOLS = ("GLIBC", "GLIBCXX", "CXXABI")


def text(report: Report) -> Group:
    """The report in sections: facts, GPU code, GPUs, problems."""
    facts = report.facts
    name = f"libtorch {facts.torch}" if facts.torch else "libraries"
    variant = f" ({report.variant})" if report.variant else ""
    sections: list[tuple[str, RenderableType]] = [
        ("", Text.assemble((name, "bold"), f" in {facts.folder}{variant}")),
        ("", Padding.indent(pairs(_facts(report)), 2)),
    ]
    code = list(_libraries(facts.libraries))
    for title, body in (
        ("GPU code by library", [pairs(code)] if code else []),
        ("GPUs", list(_gpus(report.verdicts))),
        ("Problems", list(_problems(report))),
    ):
        if body:
            sections.append((title, Group(*body)))
    if report.remedy:
        sections.append(("", Text.assemble("To serve every GPU: ", (report.remedy, "cyan"))))
    return headed(sections)


def document(report: Report) -> dict[str, object]:
    """The report as the document of ``--json``; its keys are in the reference."""
    facts, links = report.facts, report.links
    return {
        "schema_version": SCHEMA_VERSION,
        "ok": report.ok,
        "folder": str(facts.folder),
        "variant": report.variant or None,
        "torch": facts.torch or None,
        "machine": {"os": facts.os or None, "processor": facts.processor or None},
        "cuda": {**asdict(facts.cuda), "driver": facts.driver} if facts.cuda else None,
        "abi": facts.abi or None,
        "needs": {name.lower(): facts.newest(name) or None for name in _SYMBOLS},
        "archs": [str(one) for one in facts.architectures],
        "libraries": [_library(one) for one in facts.libraries],
        "missing": [asdict(one) for one in links.missing] if links else [],
        "unmet": [
            {"version": one.need.version, "of": one.need.file, "needed_by": one.needed_by}
            for one in (links.unmet if links else ())
        ],
        "gpus": [_gpu(one) for one in report.verdicts],
        "problems": [
            {"severity": one.severity, "message": one.message, "remedy": one.remedy or None}
            for one in report.problems
        ],
        "remedy": report.remedy or None,
    }


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    facts = report.facts
    yield "machine", machine(facts.os, facts.processor) or "unknown"
    if facts.cuda:
        driver = f"; driver {facts.driver} or newer" if facts.driver else ""
        yield "CUDA", f"{facts.cuda.version} (from {facts.cuda.origin}){driver}"
    yield "GPU code", " ".join(map(str, facts.architectures)) or "none"
    if facts.abi:
        yield "C++ ABI", facts.abi
    needs = [f"{name} {facts.newest(name)}" for name in _SYMBOLS if facts.newest(name)]
    if needs:
        has = "; this machine has them" if report.links and not report.links.unmet else ""
        yield "needs", ", ".join(needs) + has


def _libraries(libraries: Sequence[Binary]) -> Iterator[tuple[str, str]]:
    carriers = [one for one in libraries if one.code]
    for one in carriers:
        counts = _counts(one)
        most = max(count for _, count in counts)
        whole = [name for name, count in counts if count == most]
        parts = [f"{name} ({count} of {most})" for name, count in counts if count < most]
        partly = f"; in part: {' '.join(parts)}" if parts else ""
        yield one.name, f"{' '.join(whole)}{partly}"


def _gpus(verdicts: Sequence[Verdict]) -> Iterator[Text]:
    words = {
        "native": ("native", ""),
        "jit": ("JIT from PTX", "bold yellow"),
        "impossible": ("impossible", TROUBLE),
    }
    for one in verdicts:
        yield Text.assemble(f"{one.gpu.name} ({one.gpu.sm}): ", words[one.outcome])
        yield Text(f"  {one.reason}")


def _problems(report: Report) -> Iterator[Text]:
    for one in report.problems:
        style = TROUBLE if one.severity == "error" else "dim"
        yield Text.assemble((one.severity, style), f": {one.message}")
        if one.remedy:
            yield Text(f"  {one.remedy}", style="cyan")


def _library(one: Binary) -> dict[str, object]:
    return {
        "name": one.name,
        "format": one.format,
        "translation_units": sum(one.code.values()),
        "code": [{"name": name, "translation_units": count} for name, count in _counts(one)],
        "unjudged": one.unjudged,
        "needs": list(one.needed),
    }


def _gpu(one: Verdict) -> dict[str, str | None]:
    return {
        "name": one.gpu.name,
        "uuid": one.gpu.uuid or None,
        "sm": one.gpu.sm,
        "verdict": one.outcome,
        "code": one.code or None,
        "library": one.library or None,
        "reason": one.reason,
    }


def _counts(library: Binary) -> list[tuple[str, int]]:
    """The GPU code of a library by architecture, with the number of units that have it."""
    units = library.code.items()
    return [
        (image.name, sum(count for unit, count in units if image in unit))
        for image in sorted(images(library))
    ]
