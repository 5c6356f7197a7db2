"""The report of ``fdl diagnose``: its document and its text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Group, RenderableType
from rich.text import Text

from fdl.base.tables import TROUBLE, headed, pairs


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Context(_Record):
    """Which libtorch the report is about."""

    mode: Literal["project", "global"]
    """`project` for a project's own store, `global` for that of the user."""
    root: str
    """Folder that holds `libtorch/`."""


class Machine(_Record):
    """The machine around the GPUs."""

    cpu: str
    """Model of the processor."""
    threads: int
    """Hardware threads this process may use."""
    ram_gb: int
    """Main memory in GiB, rounded; of the container's limit, where there is a lower one."""
    os: str
    """Name and version of the operating system."""
    docker: str | None
    """Version of the Docker client, `container` inside one, null without."""
    container: bool
    """Whether this is a container."""
    wsl: bool
    """Whether this is Linux under Windows."""
    tools: dict[str, str]
    """Build tool -> version, for those that are there."""


class Python(_Record):
    """The interpreter of the project's environment, else the one that runs fdl."""

    version: str | None
    """Its version."""
    executable: str
    """Its path."""


class Torch(_Record):
    """The torch package of that environment, as its files tell; it is not imported."""

    version: str
    """Its version, such as `2.13.0+cpu`."""
    cuda: str | None
    """CUDA version it is built for; null for a build without CUDA."""


class Device(_Record):
    """One GPU, or one MIG slice."""

    index: int
    """Position in PCI order; the slices of a GPU share it."""
    name: str
    """Name of the product."""
    sm: str
    """Compute capability, such as `sm_86`."""
    vram_bytes: int
    """Bytes of memory; 0 when unknown."""
    arch_compatible: bool | None
    """Whether the active variant's code runs on it; null without one, or when it does not say."""
    code: Literal["native", "jit", "missing"] | None
    """How: as machine code, compiled from PTX when it is loaded, or not at all."""
    uuid: str | None
    """`GPU-…` or `MIG-…`."""
    pci: str | None
    """PCI address."""
    visible: bool
    """Whether programs can use it."""
    mig: bool
    """Whether it is a MIG slice."""


class Cuda(_Record):
    """The NVIDIA driver."""

    driver: str | None
    """Its version; null without one."""
    version: str | None
    """Newest CUDA version it runs."""
    source: Literal["nvml", "nvidia-smi"] | None
    """Who was asked."""
    visible_devices: str | None
    """Value of `CUDA_VISIBLE_DEVICES`; null when it is not set."""
    devices: list[Device]
    """The same as `gpus`."""


class Installed(_Record):
    """One variant of libtorch that is installed."""

    variant: str
    """Its id, such as `precompiled/cu128`."""
    active: bool
    """Whether it is in use."""
    version: str | None
    """Version of torch."""
    cuda: str | None
    """CUDA version; `none` for a CPU variant."""
    archs: str | None
    """Architectures it has code for, separated by blanks; `cpu` for a CPU variant."""


class Libtorch(_Record):
    """The variant in use."""

    path: str
    """Its folder."""
    variant: str
    """Its id."""
    version: str | None
    """Version of torch."""
    cuda: str | None
    """CUDA version; `none` for a CPU variant."""
    archs: str | None
    """Architectures it has code for, separated by blanks; `cpu` for a CPU variant."""
    source: str | None
    """How it came: `precompiled` or `compiled`."""


class Finding(_Record):
    """Something to know, or to do something about."""

    code: Annotated[str, Field(pattern=r"^FDL[1-9][0-9]{2}$")]
    """Stable number of its kind."""
    name: str
    """Stable word for its kind."""
    severity: Literal["error", "warning", "info"]
    """`error` makes `--check` fail."""
    message: str
    """What is the matter, here."""
    remedy: str | None
    """What to type, or to do; null where there is nothing to do."""


class Report(_Record):
    """All that `fdl diagnose` knows."""

    schema_version: Literal[1]
    """Changes when a key changes its meaning or goes; new keys may come without."""
    context: Context
    system: Machine
    python: Python
    torch: Torch | None
    """Null where the environment has no torch."""
    gpus: list[Device]
    """The GPUs, in PCI order."""
    cuda: Cuda
    libtorch: Libtorch | None
    """Null when no variant is in use."""
    libtorch_needed_by: str | None
    """File that shows that the project uses libtorch; null when none does."""
    libtorch_variants: list[Installed]
    """Every installed variant, sorted by id."""
    compatible: bool | None
    """Whether the active variant serves every GPU that counts: the visible ones, or all where
    none is visible. Null without an active variant, or when it does not say what it has code for.
    """
    findings: list[Finding]
    """Errors first, then warnings, then information."""


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
