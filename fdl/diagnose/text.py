"""The report as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from fdl.diagnose.report import Device, Finding, Report
from fdl.output import Palette

_KEY = 10
"""Width of a row's name, in columns."""

_VERDICTS = {
    "native": ("OK", "its machine code is there"),
    "jit": ("JIT", "compiled from PTX when it is loaded"),
    "missing": ("MISSING", "no code runs on it"),
}


def render(report: Report, palette: Palette) -> str:
    """The sections Context, System, CUDA, libtorch and Compatibility, then the findings.

    Args:
        report: The report.
        palette: The styles of the output stream.
    """
    sections = (
        ("Context", _context(report)),
        ("System", _system(report)),
        ("CUDA", _cuda(report)),
        ("libtorch", _libtorch(report)),
        ("Compatibility", _compatibility(report, palette)),
        ("Findings", _findings(report, palette)),
    )
    blocks = []
    for title, lines in sections:
        body = "".join(f"  {line}\n" for line in lines)
        if body:
            blocks.append(f"{palette.bold(title)}\n{body}")
    return "\n".join(blocks)


def _row(key: str, value: str) -> str:
    return f"{key:<{_KEY}}{value}"


def _context(report: Report) -> Iterator[str]:
    yield _row("Mode", report.context.mode)
    yield _row("Root", report.context.root)


def _system(report: Report) -> Iterator[str]:
    system = report.system
    yield _row("OS", f"{system.os} (WSL2)" if system.wsl else system.os)
    threads = f"{system.threads} thread{'' if system.threads == 1 else 's'}"
    yield _row("CPU", f"{system.cpu}, {threads}")
    yield _row("Memory", f"{system.ram_gb} GB")
    yield _row("Docker", system.docker or "not found")
    yield _row("Python", f"{report.python.version or 'unknown'} ({report.python.executable})")
    if report.torch:
        kind = f"CUDA {report.torch.cuda}" if report.torch.cuda else "without CUDA"
        yield _row("PyTorch", f"{report.torch.version}, {kind}")
    tools = ", ".join(f"{name} {version}" for name, version in system.tools.items())
    yield _row("Tools", tools or "none found")


def _cuda(report: Report) -> Iterator[str]:
    cuda = report.cuda
    if cuda.driver is None:
        yield _row("Driver", "not found" if cuda.source is None else "unknown")
    else:
        newest = f", runs CUDA up to {cuda.version}" if cuda.version else ""
        yield _row("Driver", f"{cuda.driver}{newest}")
    if cuda.visible_devices is not None:
        yield _row("Visible", f"CUDA_VISIBLE_DEVICES={cuda.visible_devices}")
    if not cuda.devices:
        yield _row("Devices", "none")
    for one in cuda.devices:
        memory = f", {one.vram_bytes / (1 << 30):.0f} GB" if one.vram_bytes else ""
        hidden = "" if one.visible else " (hidden)"
        yield f"[{one.index}] {one.name} -- {one.sm}{memory}{hidden}"


def _libtorch(report: Report) -> Iterator[str]:
    active = report.libtorch
    if active is None:
        yield _row("Active", "none")
    else:
        yield _row("Active", active.variant)
        yield _row("Path", active.path)
        for key, value in (
            ("Version", active.version),
            ("CUDA", active.cuda),
            ("Archs", active.archs),
            ("Source", active.source),
        ):
            if value:
                yield _row(key, value)
    names = [
        f"{one.variant}{' (active)' if one.active else ''}" for one in report.libtorch_variants
    ]
    yield _row("Installed", ", ".join(names) or "none")


def _compatibility(report: Report, palette: Palette) -> Iterator[str]:
    for device in report.gpus:
        yield _verdict(device, palette)
    yield _summary(report)


def _verdict(device: Device, palette: Palette) -> str:
    name = f"[{device.index}] {device.name} ({device.sm})"
    if device.code is None:
        return f"{name}: unknown"
    word, reason = _VERDICTS[device.code]
    styled = palette.red(word) if device.code == "missing" else palette.bold(word)
    return f"{name}: {styled} ({reason})"


def _summary(report: Report) -> str:
    if report.libtorch is None:
        return "no libtorch variant is active"
    if report.compatible is None:
        return f"{report.libtorch.variant} does not say what it has code for"
    if not report.gpus:
        return f"no GPU was found; {report.libtorch.variant} runs on the processor"
    if report.compatible:
        return f"{report.libtorch.variant} serves every card that counts"
    return f"{report.libtorch.variant} does not serve every card"


def _findings(report: Report, palette: Palette) -> Iterator[str]:
    for one in report.findings:
        yield f"{_severity(one, palette)} {one.code} {one.name}: {one.message}"
        if one.remedy:
            yield f"  {palette.cyan('hint')}: {one.remedy}"


def _severity(finding: Finding, palette: Palette) -> str:
    style = {"error": palette.red, "warning": palette.yellow, "info": palette.dim}
    return style[finding.severity](finding.severity)
