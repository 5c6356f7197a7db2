"""Apply ``CUDA_VISIBLE_DEVICES``: decide which GPUs programs can use.

The rules are CUDA's (CUDA C++ Programming Guide, "CUDA Environment Variables"):

- The value is a list of indices or of UUIDs. UUIDs may be shortened if they stay unambiguous.
- The first entry that names no GPU ends the list; it and all later entries are ignored.
- If a GPU is named twice, the whole list is void.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fdl.base.hardware.facts import Gpu, Trouble

VARIABLE = "CUDA_VISIBLE_DEVICES"

ORDER = "CUDA_DEVICE_ORDER"
"""Variable with the order of indices; only ``PCI_BUS_ID`` is a reliable order."""

# As strtoul reads it: CUDA reads `1st` as 1.
_INDEX = re.compile(r"\+?(\d+)")


def restrict(gpus: Sequence[Gpu], value: str | None) -> tuple[tuple[Gpu, ...], tuple[Trouble, ...]]:
    """Mark the GPUs that stay visible; without a value, nothing changes.

    Indices are interpreted in PCI order.

    Returns:
        The same GPUs, and a trouble if an entry is probably a mistake.
    """
    if value is None:
        return tuple(gpus), ()
    shown: list[Gpu] = []
    trouble: tuple[Trouble, ...] = ()
    for word in map(str.strip, value.split(",")):
        named = _named(word, gpus)
        if any(gpu in shown for gpu in named):
            shown, trouble = [], (_twice(word, value),)
            break
        if not named:
            trouble = (_ignored(word, value),) if _is_mistake(word, value, gpus) else ()
            break
        shown += named
    return tuple(replace(gpu, visible=gpu.visible and gpu in shown) for gpu in gpus), trouble


def _named(word: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that an entry names; the slices of a GPU share its index."""
    if word.startswith(("GPU-", "MIG-")):
        found = [gpu for gpu in gpus if gpu.uuid.startswith(word)]
        return found if len(found) == 1 else []
    index = _INDEX.match(word)
    return [gpu for gpu in gpus if gpu.index == int(index[1])] if index else []


def _is_mistake(word: str, value: str, gpus: Sequence[Gpu]) -> bool:
    """Whether an entry that names no GPU is a mistake, not one of the usual words for no GPU."""
    hides_all = not value.strip() or word.startswith("-") or value in ("NoDevFiles", "none", "void")
    return bool(gpus) and not hides_all


def _ignored(word: str, value: str) -> Trouble:
    return Trouble(
        "visibility-unknown-gpu",
        f"`{word}` in {VARIABLE}={value} names no GPU of this machine, so CUDA ignores it and "
        "everything behind it",
        "nvidia-smi -L",
    )


def _twice(word: str, value: str) -> Trouble:
    return Trouble(
        "visibility-repeated-gpu",
        f"{VARIABLE}={value} names a GPU twice, at `{word}`, so CUDA shows none at all",
        f"unset {VARIABLE}",
    )
