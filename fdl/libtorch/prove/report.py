"""Find the problems of a folder of libraries, for some GPUs and for this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fdl.base.hardware import Gpu, Nvidia
from fdl.libtorch.prove import loader
from fdl.libtorch.prove.facts import Facts
from fdl.libtorch.prove.loader import Links, Missing, Unmet
from fdl.libtorch.prove.verdict import Verdict, judge, remedy

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
    here = (facts.os, facts.processor) == (loader.operating_system(), loader.processor())
    links = loader.links(facts.libraries, environ) if here else None
    verdicts = tuple(judge(gpu, facts, nvidia) for gpu in gpus)
    problems = [*_of_files(facts, variant), *_of_papers(facts, variant), *_of_machine(facts)]
    if links:
        problems += [*_missing(links), *_unmet(links), *_driver(links)]
    problems.sort(key=lambda one: one.severity != "error")
    return Report(facts, links, verdicts, tuple(problems), remedy(verdicts, facts, nvidia), variant)


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
    ours = loader.operating_system(), loader.processor()
    if not all(made):
        return
    if made != ours:
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
