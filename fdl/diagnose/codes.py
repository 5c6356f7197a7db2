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
        severity: ``error`` if something cannot work; then ``--check`` fails. ``warning`` if
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
    (201, "driver-missing", "warning", "there is an NVIDIA card, but no NVIDIA driver"),
    (202, "driver-not-loaded", "error", "the driver's kernel module is not loaded"),
    (203, "driver-permission", "error", "this user may not use the driver"),
    (204, "driver-mismatch", "error", "the driver was updated, and the old one still runs"),
    (205, "driver-failure", "error", "the driver fails in another way"),
    (206, "driver-silent", "error", "the driver does not answer in time"),
    (207, "driver-outdated", "error", "the driver cannot tell what its cards can do"),
    (208, "library-missing", "error", "the driver's library cannot be loaded"),
    (209, "cards-withheld", "error", "the driver runs but offers none of the cards"),
    (210, "card-lost", "error", "a card has fallen off the bus or needs a reset"),
    (211, "card-permission", "error", "this user may not use one of the cards"),
    (212, "card-power", "error", "a card's power cable is not connected"),
    (213, "card-failure", "error", "a card cannot be read for another reason"),
    (214, "mig-without-slices", "warning", "MIG mode is on, but the card has no slices"),
    (215, "container-without-cards", "info", "the machine has a card, this container not"),
    (220, "visibility-unknown-card", "warning", "an entry of `CUDA_VISIBLE_DEVICES` names no "
     "card"),
    (221, "visibility-repeated-card", "warning", "`CUDA_VISIBLE_DEVICES` names a card twice"),
    (222, "cards-hidden", "info", "`CUDA_VISIBLE_DEVICES` hides some of the cards"),
    (223, "all-cards-hidden", "warning", "`CUDA_VISIBLE_DEVICES` hides every card"),
    (224, "card-order", "warning", "indices in `CUDA_VISIBLE_DEVICES` may count other cards "
     "than `nvidia-smi` does"),
    (230, "wsl", "info", "this is Linux under Windows"),
    (231, "container", "info", "this is a container"),
    (301, "no-active-variant", "error", "no libtorch variant is in use"),
    (302, "active-variant-missing", "error", "the variant in use is not installed"),
    (303, "architectures-unknown", "warning", "the variant does not say what it has code for"),
    (304, "card-uncovered", "error", "the variant has no code that runs on a card"),
    (305, "card-jit", "info", "a card runs code that is compiled when it is loaded"),
    (306, "driver-too-old", "error", "the driver is too old for the variant's CUDA"),
    (401, "torch-without-cuda", "warning", "the project's torch cannot use the cards"),
    (402, "torch-driver-too-old", "error", "the driver is too old for the CUDA of torch"),
)  # fmt: skip

CODES = {
    name: Code(f"FDL{number}", name, severity, meaning) for number, name, severity, meaning in _ALL
}
"""Name -> the kind of finding."""
