"""Save the state of an optimizer and load it into another; no pickle is used.

The file is a container like that of a model. Its tensors are those of ``optimizer.state_dict()``.
Everything else is JSON under the metadata key ``optimizer``, in the form of
:mod:`flodl.checkpoint.values`. If the parameters have names, their names are part of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain, count
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint.extra_state import tensor_finder
from flodl.checkpoint.files import read_file
from flodl.checkpoint.sharded import like
from flodl.checkpoint.store import save_checkpoint_file
from flodl.checkpoint.values import decode, encode
from flodl.errors import CheckpointError

_KEY = "optimizer"
_FIELDS = {"class", "shapes", "state", "groups"}
NAMES = "names"
"""Key of the names of the parameters, by group; only if one has a name."""


@final
class NamedOptimizer:
    """An optimizer whose state follows the names of its parameters, whatever their order.

    Args:
        optimizer: Any torch optimizer.
        named: Parameters by name. Other parameters have the names that torch was given
            (``param_names``), or none: then their order counts.
    """

    def __init__(self, optimizer: Optimizer, named: Mapping[str, Tensor]) -> None:
        self.optimizer = optimizer
        self._parameters = dict(named)
        self._names: dict[int, str] = {}
        for name, parameter in named.items():
            # A shared parameter has the same name, whichever module was made first.
            known = self._names.setdefault(id(parameter), name)
            self._names[id(parameter)] = min(known, name)

    def names(self) -> list[list[str]]:
        """Return the names of the parameters, by group; ``#1``, ``#2`` … are those without one."""
        unnamed = count(1)
        found = []
        for group in self.optimizer.param_groups:
            given = group.get("param_names") or [None] * len(group["params"])
            names = [
                self._names.get(id(parameter)) or name or f"#{next(unnamed)}"
                for parameter, name in zip(group["params"], given, strict=True)
            ]
            self._parameters.update(zip(names, group["params"], strict=True))
            found.append(names)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, and the names if there are any."""
        state, names = self.optimizer.state_dict(), self.names()
        return {**state, NAMES: names} if any(map(_is_name, chain(*names))) else state

    def check(self, names: Any, where: str) -> None:
        """Check that the state of named parameters in a file fits.

        The groups may be in another order. Whole groups of the file may be missing here, because
        the program adds them while it trains.

        Raises:
            CheckpointError: The parameters, or how groups divide them, differ.
            ValueError: The names are damaged.
        """
        if not isinstance(names, list) or not all(
            isinstance(group, list) and all(isinstance(name, str) for name in group)
            for group in names
        ):
            raise ValueError("its names are not lists of texts")
        own = self.names()
        kept, held = set(chain(*names)), set(chain(*own))
        added = [group for group in names if self._can_add(group, held)]
        surplus, lacking = kept - held - set(chain(*added)), held - kept
        kind = type(self.optimizer).__name__
        if surplus or lacking:
            facts = [("the file", surplus), ("this program", lacking)]
            told = ", and ".join(f"only {who} has {_listed(some)}" for who, some in facts if some)
            raise CheckpointError(
                f"{where} does not fit the {kind}: {told}; create the optimizer with the "
                "parameters that were saved"
            )
        theirs = sorted(sorted(group) for group in names if group not in added)
        mine = sorted(map(sorted, own))
        for before, now in zip(theirs, mine, strict=False):
            if before != now:
                raise CheckpointError(
                    f"{where} does not fit the {kind}: a group of the file has {_listed(before)}, "
                    f"and one of this program {_listed(now)}; create the optimizer with the "
                    "groups that were saved"
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of :meth:`state_dict`, or from one of torch.

        Groups that the state has and the optimizer lacks are added; others are dropped.
        """
        groups, values = list(state["param_groups"]), dict(state["state"])
        if NAMES in state:
            groups, values = self._arranged(state[NAMES], groups, values)
        _move_options(groups, self.optimizer)
        scatter(values, self.optimizer)
        self.optimizer.load_state_dict({"state": values, "param_groups": groups})

    def _arranged(
        self, names: list[list[str]], groups: list[dict[str, Any]], values: dict[Any, Any]
    ) -> tuple[list[dict[str, Any]], dict[Any, Any]]:
        """Give the optimizer the groups of a state; return the state in the optimizer's order."""
        free: dict[frozenset[str], list[int]] = {}
        for place, members in enumerate(names):
            free.setdefault(frozenset(members), []).append(place)
        kept, places = [], []
        for own, group in zip(self.names(), self.optimizer.param_groups, strict=True):
            if free.get(frozenset(own)):
                kept.append(group)
                places.append(free[frozenset(own)].pop(0))
        self.optimizer.param_groups = kept
        for place in sorted(chain(*free.values())):
            self._add(names[place], groups[place])
            places.append(place)
        own_names = self.names()
        numbers = {name: number for number, name in enumerate(chain(*names))}
        order = {numbers[name]: number for number, name in enumerate(chain(*own_names))}
        fresh = iter(range(len(order)))
        arranged = []
        for place, group in zip(places, self.optimizer.param_groups, strict=True):
            options = {**groups[place], "params": [next(fresh) for _ in group["params"]]}
            options.pop("param_names", None)
            if "param_names" in group:
                options["param_names"] = list(group["param_names"])
            arranged.append(options)
        return arranged, {order.get(key, key): value for key, value in values.items()}

    def _can_add(self, group: Collection[str], held: Collection[str]) -> bool:
        return bool(group) and all(name in self._parameters and name not in held for name in group)

    def _add(self, names: list[str], options: Mapping[str, Any]) -> None:
        known = {key: value for key, value in options.items() if key != "param_names"}
        members: list[Any] = [self._parameters[name] for name in names]
        if any("param_names" in group for group in self.optimizer.param_groups):
            members = list(zip(names, members, strict=True))
        self.optimizer.add_param_group({**known, "params": members})


def parameters_by_name(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model under all their names."""
    return dict(model.named_parameters(remove_duplicate=False))


def _is_name(name: str) -> bool:
    return not name.startswith("#")


def _listed(names: Iterable[str]) -> str:
    first = sorted(names)
    return f"{', '.join(first[:3])}{' and more' if first[3:] else ''}"


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
    description = describe_optimizer(NamedOptimizer(optimizer, {}), "", tensors)
    text = json.dumps(description, separators=(",", ":"), allow_nan=False)
    save_checkpoint_file(path, tensors.items(), [], metadata={_KEY: text})


@torch.no_grad()
def load_optimizer_state(optimizer: Optimizer, path: str | os.PathLike[str]) -> None:
    """Load the state and the group options of a file into an optimizer; an error changes nothing.

    If both optimizers were made of ``model.named_parameters()``, parameters are matched by name;
    else by position, as in torch: the optimizer must have the same parameters in the same groups
    and order as the saved one. State tensors move to the device of their parameter.

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
        named = NamedOptimizer(optimizer, {})
        state = read_optimizer(json.loads(text), named, tensor_finder(container), where)
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"{where} has a damaged optimizer state: {problem}") from None
    named.load_state_dict(state)


def describe_optimizer(
    optimizer: NamedOptimizer, prefix: str, tensors: dict[str, Tensor]
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
    described = {
        "class": type(optimizer.optimizer).__name__,
        "shapes": _shapes(optimizer.optimizer),
        "state": encode(state["state"], f"{prefix}state", tensors),
        "groups": encode(state["param_groups"], f"{prefix}groups", tensors),
    }
    return {**described, NAMES: state[NAMES]} if NAMES in state else described


def read_optimizer(
    description: Any, optimizer: NamedOptimizer, tensor: Callable[[str], Tensor], where: str
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
    if not isinstance(description, dict) or description.keys() - {NAMES} != _FIELDS:
        raise ValueError("it does not consist of class, shapes, state and groups")
    _check_fit(description, optimizer, where)
    state, groups = _read_state(description, tensor)
    names = {NAMES: description[NAMES]} if NAMES in description else {}
    return {"state": state, "param_groups": groups, **names}


def _shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(p.shape) for p in group["params"]] for group in optimizer.param_groups]


def _check_fit(description: Mapping[str, Any], named: NamedOptimizer, where: str) -> None:
    optimizer = named.optimizer
    ancestors = [base.__name__ for base in type(optimizer).__mro__]
    if description["class"] not in ancestors:
        raise CheckpointError(
            f"{where} has the state of {description['class']}, which {ancestors[0]} cannot use; "
            "create the optimizer that was saved"
        )
    stored, wanted = description["shapes"], _shapes(optimizer)
    if not isinstance(stored, list) or not all(isinstance(shapes, list) for shapes in stored):
        raise ValueError("its shapes are not lists")
    if NAMES in description:
        named.check(description[NAMES], where)
        _check_shapes(description[NAMES], stored, named, where)
        return
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


def _check_shapes(
    names: list[list[str]], stored: list[list[Any]], named: NamedOptimizer, where: str
) -> None:
    own = dict(zip(chain(*named.names()), chain(*_shapes(named.optimizer)), strict=True))
    if [len(group) for group in names] != [len(group) for group in stored]:
        raise ValueError("it has not one name per shape")
    misfits = [
        f"{name}: file {shape}, optimizer {own[name]}"
        for name, shape in zip(chain(*names), chain(*stored), strict=True)
        if own.get(name, shape) != shape
    ]
    if misfits:
        raise CheckpointError(
            f"{where} has the state of parameters of other shapes:\n  " + "\n  ".join(misfits)
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
