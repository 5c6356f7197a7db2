"""Make the report from facts."""

from __future__ import annotations

from fdl.base.hardware import System
from fdl.libtorch.active import Variant
from fdl.machine.diagnose import report
from fdl.machine.diagnose.compatibility import architectures, code_for, is_served
from fdl.machine.diagnose.findings import findings
from fdl.machine.diagnose.survey import Facts


def assemble(facts: Facts) -> report.Report:
    """The report on the gathered facts."""
    archs = architectures(facts.stock.active)
    devices = _devices(facts)
    torch = facts.environment.torch
    return report.Report(
        schema_version=1,
        context=report.Context(mode=facts.stock.store.scope, root=str(facts.stock.store.root)),
        system=_machine(facts.system),
        python=report.Python(
            version=facts.environment.version or None, executable=facts.environment.executable
        ),
        torch=report.Torch(version=torch.version, cuda=torch.cuda or None) if torch else None,
        gpus=devices,
        cuda=report.Cuda(
            driver=facts.nvidia.driver or None,
            version=facts.nvidia.cuda or None,
            source=facts.nvidia.source or None,
            visible_devices=facts.nvidia.restriction,
            devices=devices,
        ),
        libtorch=_libtorch(facts.stock.active) if facts.stock.active else None,
        libtorch_needed_by=facts.stock.needed_by or None,
        libtorch_variants=[_installed(one, facts.stock.active) for one in facts.stock.installed],
        compatible=None if archs is None else is_served(facts.nvidia, archs),
        findings=findings(facts),
    )


def _machine(system: System) -> report.Machine:
    return report.Machine(
        cpu=system.cpu,
        threads=system.threads,
        ram_gb=round(system.memory / (1 << 30)),
        os=system.os,
        docker=system.docker or None,
        container=system.container,
        wsl=system.wsl,
        tools=dict(system.tools),
    )


def _devices(facts: Facts) -> list[report.Device]:
    archs = architectures(facts.stock.active)
    found = []
    for gpu in facts.nvidia.gpus:
        code = None if archs is None else code_for(gpu, archs)
        found.append(
            report.Device(
                index=gpu.index,
                name=gpu.name,
                sm=gpu.sm,
                vram_bytes=gpu.memory,
                arch_compatible=None if code is None else code != "missing",
                code=code,
                uuid=gpu.uuid or None,
                pci=gpu.pci or None,
                visible=gpu.visible,
                mig=gpu.mig,
            )
        )
    return found


def _libtorch(variant: Variant) -> report.Libtorch:
    return report.Libtorch(
        path=variant.path,
        variant=variant.id,
        version=variant.facts.get("torch"),
        cuda=variant.facts.get("cuda"),
        archs=variant.facts.get("archs"),
        source=variant.facts.get("source"),
    )


def _installed(variant: Variant, active: Variant | None) -> report.Installed:
    return report.Installed(
        variant=variant.id,
        active=active is not None and active.id == variant.id,
        version=variant.facts.get("torch"),
        cuda=variant.facts.get("cuda"),
        archs=variant.facts.get("archs"),
    )
