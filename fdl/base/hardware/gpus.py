"""Find the GPUs of this machine: by NVML, else ``nvidia-smi``, else the kernel's files.

NVML is the driver's own library, read through nvidia-ml-py.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fdl.base.hardware.facts import Gpu, Nvidia, Trouble
from fdl.base.hardware.machine import Answer, ask, in_container
from fdl.base.hardware.troubles import (
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    OUTDATED,
    RESTART,
    SILENT,
    UNKNOWN,
    VARIABLE,
    of_driver,
    of_gpu,
    restrict,
    shows_gpu,
    slices_missing,
    troubles as kernel_troubles,
)

_SMI_FOLDERS = ("usr/lib/wsl/lib", "run/current-system/sw/bin", "usr/local/nvidia/bin")

# The name comes last, because only the name may contain a comma.
_FIELDS = (
    "index", "pci.bus_id", "uuid", "compute_cap", "memory.total", "driver_version",
    "mig.mode.current", "name",
)  # fmt: skip

_GPU = re.compile(r"GPU (\d+):")
_SLICE = re.compile(r"\s+MIG (\S+).*\(UUID: (MIG-[^)]+)\)")
# Drivers from about version 610 print `CUDA UMD Version`.
_CUDA = re.compile(r"^CUDA (?:\w+ )?Version\s*: (\d+\.\d+)", re.MULTILINE)


def read_smi(environ: Mapping[str, str], root: Path, *, patience: float = 20.0) -> Nvidia:
    """The facts from ``nvidia-smi``; without a ``source`` if it is missing or fails.

    It is searched in the PATH of ``environ``, and has ``patience`` seconds for each answer.
    """

    def smi(*words: str) -> Answer | None:
        folders = [str(root / folder) for folder in _SMI_FOLDERS]
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
        slices = _smi_slices(smi("-L"))
    gpus: list[Gpu] = []
    troubles: list[Trouble] = []
    for number, row in enumerate(rows):
        _add(row, number, slices, gpus, troubles)
    return Nvidia(
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        driver=next((row["driver_version"] for row in rows), ""),
        cuda=_smi_cuda(smi("-q", "-d", "COMPUTE")),
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


def _smi_slices(answer: Answer | None) -> dict[int, list[tuple[str, str]]]:
    """Profile and UUID of every slice, by the index of its GPU, from ``nvidia-smi -L``."""
    found: dict[int, list[tuple[str, str]]] = {}
    index = -1
    for line in (answer.text if answer else "").splitlines():
        if heading := _GPU.match(line):
            index = int(heading[1])
        elif part := _SLICE.match(line):
            found.setdefault(index, []).append((part[1], part[2]))
    return found


def _smi_cuda(answer: Answer | None) -> str:
    found = _CUDA.search(answer.text) if answer else None
    return found[1] if found else ""


_LIBRARY = "libnvidia-ml.so.1"

_FOLDERS = (
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",
    "usr/local/nvidia/lib64",
    "usr/lib64-nvidia",
)
"""Places of the library in WSL2, NixOS and container hosts, unknown to the dynamic loader."""

T = TypeVar("T")


def read_nvml(root: Path) -> Nvidia:
    """The facts from NVML; without a ``source`` if NVML could not be used."""
    import pynvml

    try:
        _start(pynvml, root)
        return _ask(pynvml)
    except pynvml.NVMLError as error:
        if error.value == LIBRARY_NOT_FOUND:
            return Nvidia()
        return Nvidia(troubles=(of_driver(error.value, str(error), in_container(root)),))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _start(nvml: Any, root: Path) -> None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value != LIBRARY_NOT_FOUND or not _preloaded(root):
            raise
        nvml.nvmlInit()


def _preloaded(root: Path) -> bool:
    """Load the library by its path; afterwards the loader finds it by its name."""
    for folder in _FOLDERS:
        file = root / folder / _LIBRARY
        if file.exists():
            with suppress(OSError):
                ctypes.CDLL(str(file))
                return True
    return False


def _ask(nvml: Any) -> Nvidia:
    devices: list[tuple[int, list[Gpu]]] = []
    troubles: list[Trouble] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus = _device(nvml, index)
        except nvml.NVMLError as error:
            troubles.append(of_gpu(index, error.value, str(error)))
            continue
        devices.append((index, gpus))
        if not gpus[0].visible:
            troubles.append(slices_missing(index))
    return Nvidia(
        gpus=_in_pci_order(devices),
        driver=_or_else("", nvml, nvml.nvmlSystemGetDriverVersion),
        cuda=_cuda(_or_else(0, nvml, nvml.nvmlSystemGetCudaDriverVersion)),
        source="nvml",
        troubles=tuple(troubles),
    )


def _device(nvml: Any, index: int) -> list[Gpu]:
    """A GPU, or its slices if its MIG mode is on: then programs cannot use the whole GPU."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    whole = Gpu(
        index=index,
        name=_or_else("NVIDIA GPU", nvml, nvml.nvmlDeviceGetName, handle),
        capability=nvml.nvmlDeviceGetCudaComputeCapability(handle),
        memory=_memory(nvml, handle),
        uuid=_or_else("", nvml, nvml.nvmlDeviceGetUUID, handle),
        pci=_or_else("", nvml, _pci, nvml, handle),
    )
    current, _ = _or_else([0, 0], nvml, nvml.nvmlDeviceGetMigMode, handle)
    if not current:
        return [whole]
    slices = [
        replace(
            whole,
            name=_or_else(f"{whole.name} MIG", nvml, nvml.nvmlDeviceGetName, part),
            memory=_memory(nvml, part),
            uuid=_or_else("", nvml, nvml.nvmlDeviceGetUUID, part),
            mig=True,
        )
        for part in _slices(nvml, handle)
    ]
    return slices or [replace(whole, visible=False)]


def _slices(nvml: Any, handle: Any) -> list[Any]:
    """The handles of a GPU's slices; most slots for slices are usually empty."""
    found = []
    for place in range(_or_else(0, nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        with suppress(nvml.NVMLError):
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
    return found


def _in_pci_order(devices: list[tuple[int, list[Gpu]]]) -> tuple[Gpu, ...]:
    """Number the GPUs in PCI order; a GPU that does not answer keeps its number."""
    numbers = [index for index, _ in devices]
    along = sorted((gpus for _, gpus in devices), key=lambda gpus: gpus[0].pci)
    return tuple(
        replace(gpu, index=number)
        for number, gpus in zip(numbers, along, strict=True)
        for gpu in gpus
    )


def _memory(nvml: Any, handle: Any) -> int:
    info = _or_else(None, nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return 0 if info is None else int(info.total)


def _pci(nvml: Any, handle: Any) -> str:
    address = nvml.nvmlDeviceGetPciInfo(handle).busId
    return address.decode("ascii", "replace") if isinstance(address, bytes) else str(address)


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}" if version else ""


def _or_else(default: T, nvml: Any, question: Callable[..., Any], *subject: Any) -> T:
    """The answer to a question that a driver may refuse while other answers stay valid."""
    try:
        found: T = question(*subject)
    except (nvml.NVMLError, UnicodeDecodeError):
        return default
    return found


def survey(environ: Mapping[str, str], root: Path) -> Nvidia:
    """Ask one source after the other until one answers; see :func:`fdl.base.hardware.nvidia`."""
    answer = read_nvml(root)
    if not answer.source:
        second = read_smi(environ, root)
        if second.source or not answer.troubles:
            answer = second
    troubles = answer.troubles
    if not answer.gpus and not troubles:
        troubles = kernel_troubles(root, driver_answers=bool(answer.source))
    if in_container(root):
        troubles = tuple(map(_on_the_host, troubles))
    restriction = environ.get(VARIABLE)
    gpus, ignored = restrict(answer.gpus, restriction)
    return replace(
        answer,
        gpus=gpus,
        troubles=troubles + ignored,
        restriction=restriction,
        present=bool(gpus) or shows_gpu(root),
    )


def _on_the_host(trouble: Trouble) -> Trouble:
    """The same trouble in a container, where only the host can change the driver."""
    remedy = trouble.remedy
    if remedy == RESTART:
        remedy = "restart the host of this container"
    elif remedy.startswith("sudo "):
        remedy = f"on the host of this container: {remedy}"
    return replace(trouble, remedy=remedy)
