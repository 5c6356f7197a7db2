"""Render a report as text for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fdl.base.tables import TROUBLE, headed, pairs
from fdl.libtorch.prove.binary import Binary
from fdl.libtorch.prove.facts import images
from fdl.libtorch.prove.loader import Links
from fdl.libtorch.prove.report import Report, machine
from fdl.libtorch.prove.verdict import Verdict

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
    facts, links = report.facts, report.links or Links()
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
        "missing": [asdict(one) for one in links.missing],
        "unmet": [
            {"version": one.need.version, "of": one.need.file, "needed_by": one.needed_by}
            for one in links.unmet
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
