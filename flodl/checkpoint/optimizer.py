"""Save the state of an optimizer and load it into another; no pickle is used.

The file is a container like that of a model. Its tensors are those of ``optimizer.state_dict()``.
Everything else is JSON under the metadata key ``optimizer``, in the form of
:mod:`flodl.checkpoint.values`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from flodl.checkpoint.extra_state import tensor_finder
from flodl.checkpoint.files import read_file
from flodl.checkpoint.sharded import like
from flodl.checkpoint.store import save_checkpoint_file
from flodl.checkpoint.values import decode, encode
from flodl.errors import CheckpointError

_KEY = "optimizer"
_FIELDS = {"class", "shapes", "state", "groups"}


def save_optimizer_state(optimizer: Optimizer, path: str | os.PathLike[str]) -> None:
    """Write an optimizer's state and the options of its groups to ``path``, atomically.

    Under ``fully_shard`` every rank calls this, as for :func:`~flodl.save_checkpoint_file`.

    Args:
        optimizer: Any torch optimizer whose state consists of tensors, numbers, strings, and lists,
            tuples and mappings of them. All optimizers of torch qualify.
        path: A name ending in ``.gz`` gives a compressed file.

    Raises:
        ValueError: The state or an option contains another kind of object.
        CheckpointError: The file cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    description = describe_optimizer(optimizer, "", tensors)
    text = json.dumps(description, separators=(",", ":"), allow_nan=False)
    save_checkpoint_file(path, tensors.items(), [], metadata={_KEY: text})


@torch.no_grad()
def load_optimizer_state(optimizer: Optimizer, path: str | os.PathLike[str]) -> None:
    """Load the state and the group options of a file into an optimizer; an error changes nothing.

    Parameters are matched by position, as in torch: the optimizer must have the same parameters in
    the same groups and order as the saved one. State tensors move to the device of their
    parameter.

    Args:
        optimizer: A new or used optimizer of the saved class, or of a class derived from it.
        path: A file written by :func:`save_optimizer_state`.

    Raises:
        CheckpointError: The file is unreadable or damaged, holds no optimizer state, or is from
            another class of optimizer or other parameters (their number, groups or shapes).
    """
    where = f"checkpoint {os.fspath(path)}"
    container = read_file(path)
    text = container.header.metadata.get(_KEY)
    if text is None:
        raise CheckpointError(
            f"{where} holds no optimizer state; load a file written by save_optimizer_state"
        )
    try:
        state = read_optimizer(json.loads(text), optimizer, tensor_finder(container), where)
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"{where} has a damaged optimizer state: {problem}") from None
    optimizer.load_state_dict(state)


def describe_optimizer(
    optimizer: Optimizer, prefix: str, tensors: dict[str, Tensor]
) -> dict[str, object]:
    """Return an optimizer's state as JSON data.

    Args:
        optimizer: As for :func:`save_optimizer_state`.
        prefix: Prefix of the names of its tensors.
        tensors: Receives the tensors of the state: the optimizer's own, not copies.

    Raises:
        ValueError: The state or an option contains an object that a checkpoint cannot keep.
    """
    state = optimizer.state_dict()
    return {
        "class": type(optimizer).__name__,
        "shapes": _shapes(optimizer),
        "state": encode(state["state"], f"{prefix}state", tensors),
        "groups": encode(state["param_groups"], f"{prefix}groups", tensors),
    }


def read_optimizer(
    description: Any, optimizer: Optimizer, tensor: Callable[[str], Tensor], where: str
) -> dict[str, Any]:
    """Check a description against an optimizer and return the argument for ``load_state_dict``.

    Args:
        description: The result of :func:`describe_optimizer`.
        optimizer: The optimizer to load into; it is not changed here.
        tensor: Returns a copy of the tensor with a name.
        where: The file, for messages.

    Raises:
        CheckpointError: It is from another class of optimizer or from other parameters.
        ValueError: The description is damaged.
    """
    if not isinstance(description, dict) or description.keys() != _FIELDS:
        raise ValueError("it does not consist of class, shapes, state and groups")
    _check_fit(description, optimizer, where)
    state, groups = _read_state(description, tensor)
    _move_options(groups, optimizer)
    scatter(state, optimizer)
    return {"state": state, "param_groups": groups}


def _shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(p.shape) for p in group["params"]] for group in optimizer.param_groups]


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
    description: Mapping[str, Any], tensor: Callable[[str], Tensor]
) -> tuple[dict[int | str, Any], list[dict[str, Any]]]:
    """State by parameter number, and the groups, in the form of ``load_state_dict``."""
    state = decode(description["state"], tensor)
    groups = decode(description["groups"], tensor)
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


def scatter(state: dict[Any, Any], optimizer: Optimizer) -> None:
    """Give each process its part of state tensors that match a sharded parameter element-wise."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, parameter in enumerate(parameters):
        values = state.get(number, {})
        for key, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                values[key] = like(value, parameter)


def _move_options(groups: list[dict[str, Any]], optimizer: Optimizer) -> None:
    """Move a learning rate that is a tensor to the device of the optimizer's own."""
    for loaded, own in zip(groups, optimizer.param_groups, strict=True):
        for key, value in loaded.items():
            if isinstance(value, Tensor) and isinstance(own.get(key), Tensor):
                loaded[key] = value.to(own[key].device)
