"""Carry out a plan: read, compare and convert first, and change the module only then."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flodl.hf import keys
from flodl.hf.load_report import LoadReport
from flodl.hf.models.building import fresh
from flodl.hf.weights.plan import Fill, Plan
from flodl.hf.weights.slots import Place, Slot, primary, put, put_apart
from flodl.hf.weights.stored import Stored, same_bytes
from flodl.log import warning

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Draw:
    """How the tensors of a new head are drawn.

    Attributes:
        std: Standard deviation of the weights.
        seed: Seed of their generator; None for torch's global generator.
    """

    std: float = 0.02
    seed: int | None = None


@dataclass(slots=True, eq=False)
class _Part:
    """Places that will hold one tensor, and the key it is read from; None if it is drawn."""

    places: tuple[Place, ...]
    source: str | None
    tensor: Tensor
    is_apart: bool = False

    @property
    def key(self) -> str:
        return primary(self.places)


def fill(
    plan: Plan,
    stored: Stored,
    *,
    dtype: torch.dtype | None,
    device: torch.device | None,
    draw: Draw,
    commit: str | None = None,
) -> LoadReport:
    """Fill a module.

    Args:
        plan: Which tensor goes where.
        stored: The tensors that the plan was made for.
        dtype: Dtype of all floats. None for the stored dtype; if these differ, their promotion.
        device: Where the tensors go. None keeps the device of the module's tensors, or means the
            CPU for a module on the meta device.
        draw: How to draw the tensors that the files lack.
        commit: The commit, for the report.

    Raises:
        CheckpointFormatError: A file changed since its header was read.
    """
    tensors = stored.read({source for f in plan.fills for source in f.sources.values()})
    compute = dtype or _promoted(tensors.values())
    parts = _parts(plan.fills, tensors)
    widened = {
        part.key: stored.tensors[part.source].dtype
        for part in parts
        if dtype is None and part.source is not None and _differs(part.tensor, compute)
    }
    drawn = _drawn(plan.drawn, draw, compute)
    everything = parts + drawn
    for part in everything:
        part.tensor = _placed(part, compute, device)
    _warn_of_non_finite(parts, stored.where)
    for part in everything:
        (put_apart if part.is_apart else put)(part.places, part.tensor)
    return LoadReport(
        loaded=tuple(part.key for part in parts),
        renamed=_renamed(parts),
        tied={
            place.key: part.key
            for part in everything
            for place in part.places
            if place.key != part.key
        },
        untied=tuple(part.key for part in parts if part.is_apart),
        ignored=plan.ignored,
        unexpected=plan.unexpected,
        initialised=tuple(sorted(part.key for part in drawn)),
        files=stored.files,
        commit=commit,
        dtypes=dict(Counter(stored.tensors[part.source].dtype for part in parts if part.source)),
        stored_dtypes=widened,
    )


def _promoted(tensors: Iterable[Tensor]) -> torch.dtype | None:
    """The type that holds every value of all tensors; None if none of them is of floats."""
    dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    return functools.reduce(torch.promote_types, dtypes) if dtypes else None


def _differs(tensor: Tensor, dtype: torch.dtype | None) -> bool:
    return tensor.is_floating_point() and tensor.dtype != dtype


def _parts(fills: Sequence[Fill], tensors: Mapping[str, Tensor]) -> list[_Part]:
    """Split the slots whose names have different values in the files."""
    different = [_different(f, tensors) for f in fills]
    split = {name for names in different for name in names if not keys.is_bias_alias(name)}
    if split:
        warning(
            f"{', '.join(sorted(split))}: tied to another parameter in this model, and another "
            "tensor in these files; both are kept, and the model is no longer tied"
        )
    # In no model of the reference is only the weight untied, so the bias goes with it.
    split |= {bias for name in split if (bias := keys.decoder_bias(name)) is not None}
    parts = []
    read: set[str] = set()
    for f, names in zip(fills, different, strict=True):
        for places, source in _shares(f, names, split):
            # Parameters must not share memory: an optimizer would change both through one of them.
            tensor = tensors[source].clone() if source in read else tensors[source]
            read.add(source)
            is_apart = len(places) < len(f.slot.places) and places[0].key in split
            parts.append(_Part(places, source, tensor, is_apart))
    return parts


def _main(fill: Fill) -> str:
    """The key of the file for the name the slot is saved by, else the only key."""
    return fill.sources.get(primary(fill.slot.places), next(iter(fill.sources.values())))


def _different(fill: Fill, tensors: Mapping[str, Tensor]) -> list[str]:
    """The names whose stored values differ from those of the name the slot is saved by."""
    first = _main(fill)
    return [
        name
        for name, source in fill.sources.items()
        if source != first and not _same(tensors[first], tensors[source])
    ]


def _same(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors hold the same bits after conversion to the wider of their types."""
    if left.dtype != right.dtype:
        wide = torch.promote_types(left.dtype, right.dtype)
        left, right = left.to(wide), right.to(wide)
    return same_bytes(left, right)


def _shares(
    fill: Fill, different: Sequence[str], split: set[str]
) -> list[tuple[tuple[Place, ...], str]]:
    """The groups of places of one slot, each with the key of the file that fills it."""
    places, main = fill.slot.places, _main(fill)
    together = tuple(place for place in places if place.key not in split)
    if together and len(together) < len(places):
        apart = [place for place in places if place.key in split]
        return [
            (together, main),
            *(((place,), fill.sources.get(place.key, main)) for place in apart),
        ]
    if different:  # two biases: the reference adds that of the output layer
        warning(f"{different[0]} differs from {primary(places)}, to which it is tied: it is used")
        main = fill.sources[different[0]]
    return [(places, main)]


def _drawn(slots: Iterable[Slot], draw: Draw, dtype: torch.dtype | None) -> list[_Part]:
    """New tensors for a head, drawn in the order of their names, not in the module's order."""
    generator = None
    if draw.seed is not None:
        generator = torch.Generator().manual_seed(draw.seed)
    parts = []
    for slot in sorted(slots, key=lambda slot: primary(slot.places)):
        place = slot.places[0]
        tensor = fresh(place.owner, place.name, slot.tensor, draw.std, generator)
        parts.append(_Part(slot.places, None, tensor.to(dtype or slot.tensor.dtype)))
    return parts


def _placed(part: _Part, dtype: torch.dtype | None, device: torch.device | None) -> Tensor:
    old = getattr(part.places[0].owner, part.places[0].name)
    if device is None:
        device = torch.device("cpu") if old.is_meta else old.device
    return part.tensor.to(device, dtype if part.tensor.is_floating_point() else None)


def _warn_of_non_finite(parts: Iterable[_Part], where: str) -> None:
    found = [part.key for part in parts if _is_non_finite(part.tensor)]
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        warning(
            f"{where}: {', '.join(found[:_SHOWN])}{more} hold values that are not finite; they "
            "are loaded as they are"
        )


def _is_non_finite(tensor: Tensor) -> bool:
    """Whether there is a NaN or an infinity; usually needs no further memory."""
    if not tensor.is_floating_point() or bool(tensor.sum().isfinite()):
        return False
    return not bool(tensor.isfinite().all())  # the sum of large finite numbers can be infinite


def _renamed(parts: Iterable[_Part]) -> dict[str, str]:
    return {
        part.source: part.key
        for part in parts
        if part.source is not None and part.source != part.key
    }
