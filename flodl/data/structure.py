"""Batches of any structure, as loaders of other libraries make them.

A batch may be a tensor, a named tuple, a data class, a mapping, or a list of any of these. It may
also be an object that moves itself with ``to``, such as the encoding of a tokenizer or a graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from flodl.data.batch import Batch

Change = Callable[[Any], object]


def is_tensor(value: object) -> bool:
    """Whether a part of a batch is a tensor."""
    return isinstance(value, Tensor)


def moves_itself(value: object) -> bool:
    """Whether a part of a batch has its own ``to``; a tensor has."""
    return not isinstance(value, type) and callable(getattr(value, "to", None))


def moved(batch: Any, device: torch.device, move: Callable[[Tensor], Tensor]) -> Any:
    """Bring a batch to a device, and return it as the object that it was.

    Args:
        batch: Any structure; what neither holds tensors nor has ``to`` stays as it is.
        device: Where it goes.
        move: Moves a tensor.
    """

    def one(part: Any) -> object:
        return move(part) if isinstance(part, Tensor) else part.to(device)

    return changed(batch, one, moves_itself)


def cloned(batch: Any) -> Any:
    """Return a batch of the same structure with copies of its tensors."""
    return changed(batch, Tensor.clone)


def changed(value: Any, change: Change, ends: Callable[[object], bool] = is_tensor) -> Any:
    """Return a structure with some of its parts changed; the same object if none is.

    Args:
        value: The structure.
        change: Called with each part for which ``ends`` is true.
        ends: Whether a part is changed as a whole, so that nothing inside is looked at.
    """
    if ends(value):
        return change(value)
    parts, structure = tree_flatten(value, is_leaf=ends)
    if len(parts) == 1 and parts[0] is value:  # torch does not know what is inside
        return _rebuilt(value, lambda part: changed(part, change, ends))
    new = [changed(part, change, ends) for part in parts]
    return tree_unflatten(new, structure) if _differ(new, parts) else value


def tensors_of(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch in their order, also those inside of objects with ``to``."""
    return [leaf for leaf in leaves_of(batch) if isinstance(leaf, Tensor)]


def named_tensors(batch: Any) -> list[tuple[str, Tensor]]:
    """Return the tensors of a batch with their names, else with their numbers."""
    tensors = tensors_of(batch)
    names = batch.names if isinstance(batch, Batch) else map(str, range(len(tensors)))
    return list(zip(names, tensors, strict=True))


def leaves_of(batch: Any) -> Iterator[object]:
    """Yield everything in a batch that holds nothing else."""
    yield from _leaves(batch, set())


def samples_in(batch: Any, otherwise: int | None = None) -> int:
    """Return the length of dimension 0 of the first tensor of a batch that has one.

    Args:
        batch: Any structure.
        otherwise: The number to return if there is no tensor at all.
    """
    tensors = tensors_of(batch)
    if not tensors:
        return otherwise or 1
    return next((int(tensor.size(0)) for tensor in tensors if tensor.dim()), 1)


def changed_rows(value: Any, samples: int, change: Change) -> Any:
    """Return a structure with everything changed that has one entry per sample.

    These are tensors whose dimension 0 runs over the samples, and lists of texts, such as names.

    Args:
        value: The structure.
        samples: Number of samples.
        change: Called with each tensor, and each list or tuple of texts, of that length.
    """

    def one(part: Any) -> object:
        has_rows = not isinstance(part, Tensor) or part.dim() > 0
        return change(part) if has_rows and len(part) == samples else part

    return changed(value, one, lambda part: isinstance(part, Tensor) or _is_texts(part))


def _is_texts(value: Any) -> bool:
    return type(value) in (list, tuple) and all(isinstance(one, str) for one in value)


def _leaves(value: Any, seen: set[int]) -> Iterator[object]:
    if isinstance(value, Tensor):
        yield value
        return
    parts, _ = tree_flatten(value, is_leaf=is_tensor)
    if len(parts) == 1 and parts[0] is value:
        inside = _inside(value)
        if inside is None or id(value) in seen:
            yield value
            return
        seen.add(id(value))
        parts = list(inside)
    for part in parts:
        yield from _leaves(part, seen)


def _inside(value: Any) -> Iterable[object] | None:
    """The parts of an object that torch does not know; None if it has none."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple, Batch)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return _members(value).values()
    if moves_itself(value):
        return getattr(value, "__dict__", {}).values()
    return None


def _rebuilt(value: Any, change: Change) -> Any:
    """Return a copy of an object that torch does not know, or itself if nothing changes."""
    if isinstance(value, Mapping):
        items = {key: change(part) for key, part in value.items()}
        if not _differ(items.values(), value.values()):
            return value
        if not isinstance(value, MutableMapping):
            return type(value)(items)  # type: ignore[call-arg]
        new = copy.copy(value)
        new.update(items)
        return new
    if isinstance(value, (list, tuple, Batch)):
        parts: list[Any] = [change(part) for part in value]
        if not _differ(parts, value):
            return value
        if isinstance(value, Batch):
            return Batch(parts, value.names)
        return getattr(value, "_make", type(value))(parts)
    if is_dataclass(value) and not isinstance(value, type):
        before = _members(value)
        after = {name: change(part) for name, part in before.items()}
        if not _differ(after.values(), before.values()):
            return value
        other = copy.copy(value)
        for name, part in after.items():
            object.__setattr__(other, name, part)  # it may be frozen
        return other
    return value


def _members(value: Any) -> dict[str, Any]:
    names = [field.name for field in fields(value)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _differ(new: Iterable[object], old: Iterable[object]) -> bool:
    return any(one is not other for one, other in zip(new, old, strict=True))
