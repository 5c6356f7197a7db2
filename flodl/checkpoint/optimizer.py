"""Saving what an optimizer has learnt, and loading it into a new one; no pickle involved.

The file is a container like a model's. Its tensors are those of ``optimizer.state_dict()``; all
else stands as JSON under the metadata key ``optimizer``: a tensor as ``{"tensor": name}``, a tuple
as ``{"tuple": […]}``, a mapping as ``{"dict": [[key, value], …]}``, a float that JSON lacks as
``{"float": "inf"}``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from flodl.checkpoint.container import Container
from flodl.checkpoint.files import read_file
from flodl.checkpoint.store import save_checkpoint_file
from flodl.errors import CheckpointError

_KEY = "optimizer"


def save_optimizer_state(optimizer: Optimizer, path: str | os.PathLike[str]) -> None:
    """Write an optimizer's state and the options of its groups to ``path``, atomically.

    Args:
        optimizer: Any torch optimizer whose state is tensors, numbers, strings, and lists, tuples
            and mappings of them: all those of torch.
        path: A name ending in ``.gz`` gives a compressed file.

    Raises:
        ValueError: The state or an option holds an object of another kind.
        CheckpointError: The file cannot be written.
    """
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    description = {
        "class": type(optimizer).__name__,
        "shapes": _shapes(optimizer),
        "state": _encode(state["state"], "state", tensors),
        "groups": _encode(state["param_groups"], "groups", tensors),
    }
    text = json.dumps(description, separators=(",", ":"), allow_nan=False)
    save_checkpoint_file(path, tensors.items(), [], metadata={_KEY: text})


@torch.no_grad()
def load_optimizer_state(optimizer: Optimizer, path: str | os.PathLike[str]) -> None:
    """Give an optimizer the state and the group options of a file; an error changes nothing.

    The parameters are matched by position, as torch does it: the optimizer has to hold the same
    ones in the same groups and order as the saved one. State tensors move to the device of their
    parameter.

    Args:
        optimizer: A new or a used optimizer of the class that was saved, or of one derived from
            it.
        path: A file written by :func:`save_optimizer_state`.

    Raises:
        CheckpointError: The file is unreadable or damaged, holds no optimizer state, or belongs to
            another class of optimizer or to other parameters (their number, groups or shapes).
    """
    where = f"checkpoint {os.fspath(path)}"
    container = read_file(path)
    text = container.header.metadata.get(_KEY)
    if text is None:
        raise CheckpointError(
            f"{where} holds no optimizer state; load a file written by save_optimizer_state"
        )
    try:
        description = _parse(text)
        _check_fit(description, optimizer, where)
        state, groups = _read_state(description, container)
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"{where} has a damaged optimizer state: {problem}") from None
    _move_options(groups, optimizer)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(p.shape) for p in group["params"]] for group in optimizer.param_groups]


def _encode(value: object, path: str, tensors: dict[str, Tensor]) -> object:
    """A value as JSON data; its tensors are collected under the path that leads to them."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, Mapping):
        if not all(isinstance(key, int | str) for key in value):
            raise ValueError(f"optimizer {path} has keys that are neither numbers nor strings")
        return {"dict": [[k, _encode(v, f"{path}/{k}", tensors)] for k, v in value.items()]}
    raise ValueError(
        f"optimizer {path} is a {type(value).__name__}, which a checkpoint cannot keep: "
        "it takes tensors, numbers, strings, and lists, tuples and mappings of them"
    )


def _decode(value: Any, tensor: Callable[[str], Tensor]) -> Any:
    """The inverse of :func:`_encode`."""
    if isinstance(value, list):
        return [_decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"tensor": str(name), **rest} if not rest:
            return tensor(name)
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_decode(item, tensor) for item in items)
        case {"float": "inf" | "-inf" | "nan" as text, **rest} if not rest:
            return float(text)
        case {"dict": list(pairs), **rest} if not rest:
            return dict(_decode_pair(pair, tensor) for pair in pairs)
    raise ValueError(f"{str(value)[:80]} is no value")


def _decode_pair(pair: Any, tensor: Callable[[str], Tensor]) -> tuple[int | str, Any]:
    match pair:
        case [int() | str() as key, value]:
            return key, _decode(value, tensor)
    raise ValueError(f"{str(pair)[:80]} is no key with a value")


def _parse(text: str) -> dict[str, Any]:
    description = json.loads(text)
    if isinstance(description, dict) and description.keys() == {
        "class",
        "shapes",
        "state",
        "groups",
    }:
        return description
    raise ValueError("it does not consist of class, shapes, state and groups")


def _check_fit(description: Mapping[str, Any], optimizer: Optimizer, where: str) -> None:
    ancestors = [base.__name__ for base in type(optimizer).__mro__]
    if description["class"] not in ancestors:
        raise CheckpointError(
            f"{where} has the state of {description['class']}, which {ancestors[0]} cannot use; "
            "create the optimizer that was saved"
        )
    stored, wanted = description["shapes"], _shapes(optimizer)
    if not isinstance(stored, list) or not all(isinstance(shapes, list) for shapes in stored):
        raise ValueError("its shapes are not lists")
    counts, own_counts = [len(shapes) for shapes in stored], [len(shapes) for shapes in wanted]
    if counts != own_counts:
        raise CheckpointError(
            f"{where} has the state of {sum(counts)} parameters in groups of {counts}, the "
            f"optimizer holds {sum(own_counts)} in groups of {own_counts}; create the optimizer "
            "with the parameters that were saved"
        )
    misfits = [
        f"parameter {number} of group {index}: file {old}, optimizer {new}"
        for index, (olds, news) in enumerate(zip(stored, wanted, strict=True))
        for number, (old, new) in enumerate(zip(olds, news, strict=True))
        if old != new
    ]
    if misfits:
        raise CheckpointError(
            f"{where} has the state of parameters of other shapes, or in another order:\n  "
            + "\n  ".join(misfits)
        )


def _read_state(
    description: Mapping[str, Any], container: Container
) -> tuple[dict[int | str, Any], list[dict[str, Any]]]:
    """State by parameter number and the groups, as ``load_state_dict`` takes them."""
    entries = {entry.name: entry for entry in container.header.entries}
    aliases = container.header.aliases

    def tensor(name: str) -> Tensor:
        entry = entries.get(aliases.get(name, name))
        if entry is None:
            raise ValueError(f"the tensor {name!r} is not in the file")
        return container.tensor(entry).clone()  # the file need not stay mapped

    state = _decode(description["state"], tensor)
    groups = _decode(description["groups"], tensor)
    count = sum(len(shapes) for shapes in description["shapes"])
    if not isinstance(state, dict) or not all(
        isinstance(key, str) or (0 <= key < count and isinstance(value, dict))
        for key, value in state.items()
    ):
        raise ValueError("its state is not one mapping per parameter")
    numbers = iter(range(count))
    expected = [[next(numbers) for _ in shapes] for shapes in description["shapes"]]
    if not isinstance(groups, list) or expected != [
        group.get("params") if isinstance(group, dict) else None for group in groups
    ]:
        raise ValueError("its groups do not list the parameters in order")
    return state, groups


def _move_options(groups: list[dict[str, Any]], optimizer: Optimizer) -> None:
    """A learning rate that is a tensor goes where the optimizer keeps its own."""
    for loaded, own in zip(groups, optimizer.param_groups, strict=True):
        for key, value in loaded.items():
            if isinstance(value, Tensor) and isinstance(own.get(key), Tensor):
                loaded[key] = value.to(own[key].device)
