"""Get the GPUs from ``nvidia-smi``, for machines on which the NVML library cannot be loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fdl.base.hardware.ask import Answer, ask
from fdl.base.hardware.container import in_container
from fdl.base.hardware.facts import Gpu, Nvidia, Trouble
from fdl.base.hardware.refusals import (
    GPU_IS_LOST,
    OUTDATED,
    SILENT,
    UNKNOWN,
    of_driver,
    of_gpu,
    slices_missing,
)

_FOLDERS = ("usr/lib/wsl/lib", "run/current-system/sw/bin", "usr/local/nvidia/bin")

# The name comes last, because only the name may contain a comma.
_FIELDS = (
    "index", "pci.bus_id", "uuid", "compute_cap", "memory.total", "driver_version",
    "mig.mode.current", "name",
)  # fmt: skip

_GPU = re.compile(r"GPU (\d+):")
_SLICE = re.compile(r"\s+MIG (\S+).*\(UUID: (MIG-[^)]+)\)")
# Drivers from about version 610 print `CUDA UMD Version`.
_CUDA = re.compile(r"^CUDA (?:\w+ )?Version\s*: (\d+\.\d+)", re.MULTILINE)


def read(environ: Mapping[str, str], root: Path, *, patience: float = 20.0) -> Nvidia:
    """The facts from ``nvidia-smi``; without a ``source`` if it is missing or fails.

    It is searched in the PATH of ``environ``, and has ``patience`` seconds for each answer.
    """

    def smi(*words: str) -> Answer | None:
        folders = [str(root / folder) for folder in _FOLDERS]
        return ask(["nvidia-smi", *words], environ, patience=patience, folders=folders)

    answer = smi(f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
    if answer is None:
        return Nvidia()
    if answer.code is None:
        return Nvidia(troubles=(SILENT,))
    if answer.code != 0:
        return _failed(answer, in_container(root))
    rows = [row for row in map(_row, answer.text.splitlines()) if row]
    slices = {}
    if any(row["mig.mode.current"] == "Enabled" for row in rows):
        slices = _slices(smi("-L"))
    gpus: list[Gpu] = []
    troubles: list[Trouble] = []
    for number, row in enumerate(rows):
        _add(row, number, slices, gpus, troubles)
    return Nvidia(
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        driver=next((row["driver_version"] for row in rows), ""),
        cuda=_cuda(smi("-q", "-d", "COMPUTE")),
        source="nvidia-smi",
        troubles=tuple(troubles),
    )


def _failed(answer: Answer, container: bool) -> Nvidia:
    words = answer.text.strip().partition("\n")[0]
    if "No devices were found" in words:
        return Nvidia(source="nvidia-smi")
    if "compute_cap" in words:
        return Nvidia(troubles=(OUTDATED,))
    trouble = of_driver(
        answer.code or 0, words or f"nvidia-smi exits with {answer.code}", container
    )
    return Nvidia(troubles=(trouble,))


def _row(line: str) -> dict[str, str] | None:
    cells = [cell.strip() for cell in line.split(",", len(_FIELDS) - 1)]
    return dict(zip(_FIELDS, cells, strict=True)) if len(cells) == len(_FIELDS) else None


def _add(
    row: Mapping[str, str],
    number: int,
    slices: Mapping[int, list[tuple[str, str]]],
    gpus: list[Gpu],
    troubles: list[Trouble],
) -> None:
    """Append the GPU of one row, or its slices, or the reason why neither is possible."""
    index = int(row["index"]) if row["index"].isdigit() else number
    capability = re.fullmatch(r"(\d+)\.(\d+)", row["compute_cap"])
    if capability is None:
        lost = "lost" in " ".join(row.values()).lower()
        troubles.append(
            of_gpu(index, GPU_IS_LOST if lost else UNKNOWN, row["compute_cap"].strip("[]"))
        )
        return
    whole = Gpu(
        index=index,
        name=row["name"],
        capability=(int(capability[1]), int(capability[2])),
        memory=int(row["memory.total"]) << 20 if row["memory.total"].isdigit() else 0,
        uuid=row["uuid"] if row["uuid"].startswith("GPU-") else "",
        pci=row["pci.bus_id"],
    )
    if row["mig.mode.current"] != "Enabled":
        gpus.append(whole)
        return
    for profile, uuid in slices.get(index, []):
        name = f"{whole.name} MIG {profile}"
        gpus.append(replace(whole, name=name, uuid=uuid, memory=0, mig=True))
    if index not in slices:
        gpus.append(replace(whole, visible=False))
        troubles.append(slices_missing(index))


def _slices(answer: Answer | None) -> dict[int, list[tuple[str, str]]]:
    """Profile and UUID of every slice, by the index of its GPU, from ``nvidia-smi -L``."""
    found: dict[int, list[tuple[str, str]]] = {}
    index = -1
    for line in (answer.text if answer else "").splitlines():
        if heading := _GPU.match(line):
            index = int(heading[1])
        elif part := _SLICE.match(line):
            found.setdefault(index, []).append((part[1], part[2]))
    return found


def _cuda(answer: Answer | None) -> str:
    found = _CUDA.search(answer.text) if answer else None
    return found[1] if found else ""
