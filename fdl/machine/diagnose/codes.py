"""All kinds of findings of ``fdl diagnose``; their codes and names never change their meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding.

    Attributes:
        id: ``FDL301``; the first digit is the area, and a number is never used again.
        name: A word for the same.
        severity: ``error`` if something cannot work; then the exit code is 1. ``warning`` if
            something may work differently than the user expects. ``info`` for useful facts.
        meaning: One line for the reference.
    """

    id: str
    name: str
    severity: Severity
    meaning: str


_ALL: tuple[tuple[int, str, Severity, str], ...] = (
    (101, "manifest-broken", "error", "the project's manifest cannot be read"),
    (102, "store-unreadable", "error", "the folder of libtorch variants cannot be read"),
    (103, "libtorch-overridden", "warning", "`LIBTORCH` points elsewhere than to the "
     "active variant, and wins over it"),
    (104, "libtorch-variable-broken", "error", "`LIBTORCH` names a folder without libtorch"),
    (201, "driver-missing", "warning", "there is an NVIDIA GPU, but no NVIDIA driver"),
    (202, "driver-not-loaded", "error", "the driver's kernel module is not loaded"),
    (203, "driver-permission", "error", "this user may not use the driver"),
    (204, "driver-mismatch", "error", "the driver was updated, and the old one still runs"),
    (205, "driver-failure", "error", "the driver fails in another way"),
    (206, "driver-silent", "error", "the driver does not answer in time"),
    (207, "driver-outdated", "error", "the driver does not report what its GPUs can do"),
    (208, "library-missing", "error", "the driver's library cannot be loaded"),
    (209, "gpus-withheld", "error", "the driver runs but offers none of the GPUs"),
    (210, "gpu-lost", "error", "a GPU has fallen off the bus or needs a reset"),
    (211, "gpu-permission", "error", "this user may not use one of the GPUs"),
    (212, "gpu-power", "error", "a GPU's power cable is not connected"),
    (213, "gpu-failure", "error", "a GPU cannot be read for another reason"),
    (214, "mig-without-slices", "warning", "MIG mode is on, but the GPU has no slices"),
    (215, "container-without-gpus", "info", "the machine has a GPU, this container cannot use it"),
    (216, "driver-without-pytorch", "error", "the driver is too old for every CUDA build of "
     "PyTorch"),
    (220, "visibility-unknown-gpu", "warning", "an entry of `CUDA_VISIBLE_DEVICES` names no "
     "GPU"),
    (221, "visibility-repeated-gpu", "warning", "`CUDA_VISIBLE_DEVICES` names a GPU twice"),
    (222, "gpus-hidden", "info", "`CUDA_VISIBLE_DEVICES` hides some of the GPUs"),
    (223, "all-gpus-hidden", "warning", "`CUDA_VISIBLE_DEVICES` hides every GPU"),
    (224, "gpu-order", "warning", "indices in `CUDA_VISIBLE_DEVICES` may count other GPUs "
     "than `nvidia-smi` does"),
    (230, "wsl", "info", "this is Linux under Windows"),
    (231, "container", "info", "this is a container"),
    (301, "no-active-variant", "error", "no libtorch variant is active"),
    (302, "active-variant-missing", "error", "the active variant is not installed"),
    (303, "architectures-unknown", "warning", "the variant does not list its GPU architectures"),
    (304, "gpu-uncovered", "error", "the variant has no code that runs on a GPU"),
    (305, "gpu-jit", "info", "a GPU runs code that is compiled when it is loaded"),
    (306, "driver-too-old", "error", "the driver is too old for the variant's CUDA"),
    (401, "torch-without-cuda", "warning", "the project's torch cannot use the GPUs"),
    (402, "torch-driver-too-old", "error", "the driver is too old for the CUDA of torch"),
)  # fmt: skip

CODES = {
    name: Code(f"FDL{number}", name, severity, meaning) for number, name, severity, meaning in _ALL
}
"""Name -> the kind of finding."""
