"""The places of tensors in a module: its parameters and persistent buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flodl.hf.weights import keys


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One name of a tensor: an attribute of a module.

    Attributes:
        key: Dotted name in the state dict of the whole module.
        owner: The module that holds the tensor.
        name: Its name there.
    """

    key: str
    owner: nn.Module
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A tensor of a module.

    Attributes:
        tensor: The tensor.
        places: Its places, in the order of the module.
        keys: All its names.
        name: The name that it is saved by.
    """

    tensor: Tensor
    places: tuple[Place, ...]
    keys: tuple[str, ...]
    name: str


def slots_of(module: nn.Module) -> list[Slot]:
    """The tensors of ``module.state_dict()``, each once.

    Raises:
        ValueError: A parameter is still lazy, so its shape is unknown.
    """
    tensors: dict[int, Tensor] = {}
    places: dict[int, list[Place]] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        passing = owner._non_persistent_buffers_set
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
            if tensor is None or name in passing:
                continue
            if nn.parameter.is_lazy(tensor):
                raise ValueError(f"{prefix}{name} has no shape yet: run the module once first")
            tensors[id(tensor)] = tensor
            places.setdefault(id(tensor), []).append(Place(prefix + name, owner, name))
    slots = []
    for key, tensor in tensors.items():
        names = tuple([place.key for place in places[key]])
        slots.append(Slot(tensor, tuple(places[key]), names, primary(names)))
    return slots


def primary(names: Sequence[str]) -> str:
    """The name that a tensor is saved by: the first that is not a second name, else the first."""
    for name in names:
        if not keys.is_alias(name):
            return name
    return names[0]


def put(places: tuple[Place, ...], tensor: Tensor) -> None:
    """Make ``tensor`` the parameter or buffer at all these places, one object for all.

    A parameter with storage keeps its object, because an optimizer may hold it, and gets the new
    data. A parameter on the meta device is replaced.
    """
    first = places[0]
    old = first.owner._parameters.get(first.name)
    if old is None:
        for place in places:
            place.owner._buffers[place.name] = tensor
        return
    if not old.is_meta:
        old.data = tensor
        torch.autograd.graph.increment_version(old)
        return
    new = nn.Parameter(tensor, requires_grad=old.requires_grad)
    for place in places:
        place.owner._parameters[place.name] = new


def put_apart(places: tuple[Place, ...], tensor: Tensor) -> None:
    """Like :meth:`put`, for places that shared a parameter with others and no longer should."""
    first = places[0]
    old = first.owner._parameters[first.name]
    new = nn.Parameter(tensor, requires_grad=old is None or old.requires_grad)
    for place in places:
        place.owner._parameters[place.name] = new
