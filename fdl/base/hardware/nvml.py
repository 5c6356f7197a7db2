"""Get the GPUs from the driver's own library: NVML, through nvidia-ml-py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fdl.base.hardware.container import in_container
from fdl.base.hardware.facts import Gpu, Nvidia, Trouble
from fdl.base.hardware.refusals import LIBRARY_NOT_FOUND, of_driver, of_gpu, slices_missing

_LIBRARY = "libnvidia-ml.so.1"

_FOLDERS = (
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",
    "usr/local/nvidia/lib64",
    "usr/lib64-nvidia",
)
"""Places of the library in WSL2, NixOS and container hosts, unknown to the dynamic loader."""

T = TypeVar("T")


def read(root: Path) -> Nvidia:
    """The facts from NVML; without a ``source`` if NVML could not be used."""
    import pynvml

    try:
        _start(pynvml, root)
    except pynvml.NVMLError as error:
        if error.value == LIBRARY_NOT_FOUND:
            return Nvidia()
        return Nvidia(troubles=(of_driver(error.value, str(error), in_container(root)),))
    try:
        return _ask(pynvml)
    except pynvml.NVMLError as error:
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
        Gpu(
            index=index,
            name=_or_else(f"{whole.name} MIG", nvml, nvml.nvmlDeviceGetName, part),
            capability=whole.capability,
            memory=_memory(nvml, part),
            uuid=_or_else("", nvml, nvml.nvmlDeviceGetUUID, part),
            pci=whole.pci,
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
