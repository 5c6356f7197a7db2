"""Render a report as text for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fdl.libtorch.prove.binary import Binary
from fdl.libtorch.prove.facts import Facts
from fdl.libtorch.prove.report import Report, machine
from fdl.libtorch.prove.verdict import Verdict
from fdl.output import Palette

SCHEMA_VERSION = 1

_SYMBOLS = ("GLIBC", "GLIBCXX", "CXXABI")
_INDENT = "  "


def text(report: Report, palette: Palette) -> str:
    """The report in sections: facts, GPU code, GPUs, problems."""
    facts = report.facts
    name = f"libtorch {facts.torch}" if facts.torch else "libraries"
    variant = f" ({report.variant})" if report.variant else ""
    lines = [f"{palette.bold(name)} in {facts.folder}{variant}", ""]
    rows = list(_facts(report))
    width = max(len(label) for label, _ in rows)
    lines += [f"{_INDENT}{label.ljust(width)}  {value}" for label, value in rows]
    for title, body in (
        ("GPU code by library", list(_libraries(facts.libraries))),
        ("Cards", list(_cards(report.verdicts, palette))),
        ("Problems", list(_problems(report, palette))),
    ):
        if body:
            lines += ["", palette.bold(title), *(f"{_INDENT}{line}" for line in body)]
    if report.remedy:
        lines += ["", f"To serve every card: {palette.cyan(report.remedy)}"]
    return "".join(f"{line}\n" for line in lines)


def document(report: Report) -> dict[str, object]:
    """The report as the document of ``--json``; its keys are in the reference."""
    facts = report.facts
    return {
        "schema_version": SCHEMA_VERSION,
        "ok": report.ok,
        "folder": str(facts.folder),
        "variant": report.variant or None,
        "torch": facts.torch or None,
        "machine": {"os": facts.os or None, "processor": facts.processor or None},
        "cuda": _cuda(facts),
        "abi": facts.abi or None,
        "needs": {name.lower(): facts.newest(name) or None for name in _SYMBOLS},
        "archs": [str(one) for one in facts.architectures],
        "libraries": [_library(one) for one in facts.libraries],
        "missing": [
            {"name": one.name, "needed_by": one.needed_by, "essential": one.essential}
            for one in (report.links.missing if report.links else ())
        ],
        "unmet": [
            {"version": one.need.version, "of": one.need.file, "needed_by": one.needed_by}
            for one in (report.links.unmet if report.links else ())
        ],
        "cards": [_card(one) for one in report.verdicts],
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


def _libraries(libraries: Sequence[Binary]) -> Iterator[str]:
    carriers = [one for one in libraries if one.code]
    width = max((len(one.name) for one in carriers), default=0)
    for one in carriers:
        counts = _counts(one)
        most = max(count for _, count in counts)
        whole = [name for name, count in counts if count == most]
        parts = [f"{name} ({count} of {most})" for name, count in counts if count < most]
        partly = f"; in part: {' '.join(parts)}" if parts else ""
        yield f"{one.name.ljust(width)}  {' '.join(whole)}{partly}"


def _cards(verdicts: Sequence[Verdict], palette: Palette) -> Iterator[str]:
    words = {
        "native": "native",
        "jit": palette.yellow("JIT from PTX"),
        "impossible": palette.red("impossible"),
    }
    for one in verdicts:
        yield f"{one.gpu.name} ({one.gpu.sm}): {words[one.outcome]}"
        yield f"{_INDENT}{one.reason}"


def _problems(report: Report, palette: Palette) -> Iterator[str]:
    for one in report.problems:
        paint = palette.red if one.severity == "error" else palette.dim
        yield f"{paint(one.severity)}: {one.message}"
        if one.remedy:
            yield f"{_INDENT}{palette.cyan(one.remedy)}"


def _cuda(facts: Facts) -> dict[str, str | None] | None:
    if facts.cuda is None:
        return None
    return {
        "version": facts.cuda.version,
        "origin": facts.cuda.origin,
        "driver": facts.driver,
    }


def _library(one: Binary) -> dict[str, object]:
    return {
        "name": one.name,
        "format": one.format,
        "translation_units": sum(one.code.values()),
        "code": [{"name": name, "translation_units": count} for name, count in _counts(one)],
        "unjudged": one.unjudged,
        "needs": list(one.needed),
    }


def _card(one: Verdict) -> dict[str, str | None]:
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
    found = sorted(frozenset().union(*library.code))
    units = library.code.items()
    return [(image.name, sum(count for unit, count in units if image in unit)) for image in found]
