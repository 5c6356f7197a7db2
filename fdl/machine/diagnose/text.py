"""The report as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from fdl.base.tables import TROUBLE, headed, pairs
from fdl.machine.diagnose.report import Device, Report

_VERDICTS = {
    "native": ("OK", "its machine code is there"),
    "jit": ("JIT", "compiled from PTX when it is loaded"),
    "missing": ("MISSING", "no code runs on it"),
}

_SEVERITIES = {"error": TROUBLE, "warning": "bold yellow", "info": "dim"}

Rows = Iterator[tuple[str, str]]


def render(report: Report) -> Group:
    """The sections Context, System, CUDA, libtorch and Compatibility, then the findings."""
    sections: tuple[tuple[str, list[RenderableType]], ...] = (
        ("Context", [pairs([("Mode", report.context.mode), ("Root", report.context.root)])]),
        ("System", [pairs(_system(report))]),
        ("CUDA", [pairs(_cuda(report)), *_devices(report)]),
        ("libtorch", [pairs(_libtorch(report))]),
        ("Compatibility", [*_compatibility(report)]),
        ("Findings", [*_findings(report)]),
    )
    return headed((title, Group(*body)) for title, body in sections if body)


def _system(report: Report) -> Rows:
    system = report.system
    yield "OS", f"{system.os} (WSL2)" if system.wsl else system.os
    threads = f"{system.threads} thread{'' if system.threads == 1 else 's'}"
    yield "CPU", f"{system.cpu}, {threads}"
    yield "Memory", f"{system.ram_gb} GB"
    yield "Docker", system.docker or "not found"
    yield "Python", f"{report.python.version or 'unknown'} ({report.python.executable})"
    if report.torch:
        kind = f"CUDA {report.torch.cuda}" if report.torch.cuda else "without CUDA"
        yield "PyTorch", f"{report.torch.version}, {kind}"
    tools = ", ".join(f"{name} {version}" for name, version in system.tools.items())
    yield "Tools", tools or "none found"


def _cuda(report: Report) -> Rows:
    cuda = report.cuda
    if cuda.driver is None:
        yield "Driver", "not found" if cuda.source is None else "unknown"
    else:
        newest = f", runs CUDA up to {cuda.version}" if cuda.version else ""
        yield "Driver", f"{cuda.driver}{newest}"
    if cuda.visible_devices is not None:
        yield "Visible", f"CUDA_VISIBLE_DEVICES={cuda.visible_devices}"
    if not cuda.devices:
        yield "Devices", "none"


def _devices(report: Report) -> Iterator[str]:
    for one in report.cuda.devices:
        memory = f", {one.vram_bytes / (1 << 30):.0f} GB" if one.vram_bytes else ""
        hidden = "" if one.visible else " (hidden)"
        yield f"[{one.index}] {one.name} -- {one.sm}{memory}{hidden}"


def _libtorch(report: Report) -> Rows:
    active = report.libtorch
    if active is None:
        yield "Active", "none" if report.libtorch_needed_by else "none, and none is needed"
    else:
        yield "Active", active.variant
        yield "Path", active.path
        for key, value in (
            ("Version", active.version),
            ("CUDA", active.cuda),
            ("Archs", active.archs),
            ("Source", active.source),
        ):
            if value:
                yield key, value
    names = [
        f"{one.variant}{' (active)' if one.active else ''}" for one in report.libtorch_variants
    ]
    yield "Installed", ", ".join(names) or "none"


def _compatibility(report: Report) -> Iterator[Text]:
    if report.libtorch or report.libtorch_needed_by:
        for device in report.gpus:
            yield _verdict(device)
        yield Text(_summary(report))


def _verdict(device: Device) -> Text:
    name = f"[{device.index}] {device.name} ({device.sm})"
    if device.code is None:
        return Text(f"{name}: unknown")
    word, reason = _VERDICTS[device.code]
    style = TROUBLE if device.code == "missing" else "bold"
    return Text.assemble(f"{name}: ", (word, style), f" ({reason})")


def _summary(report: Report) -> str:
    if report.libtorch is None:
        return "no libtorch variant is active"
    if report.compatible is None:
        return f"{report.libtorch.variant} does not say what it has code for"
    if not report.gpus:
        return f"no GPU was found; {report.libtorch.variant} runs on the processor"
    if report.compatible:
        return f"{report.libtorch.variant} serves every GPU that counts"
    return f"{report.libtorch.variant} does not serve every GPU"


def _findings(report: Report) -> Iterator[Text]:
    for one in report.findings:
        label = (one.severity, _SEVERITIES[one.severity])
        yield Text.assemble(label, f" {one.code} {one.name}: {one.message}")
        if one.remedy:
            yield Text.assemble("  ", ("hint", "cyan"), f": {one.remedy}")
