"""What modules return from ``get_extra_state``: saved with the model and given back to them.

It is stored in two places: tensors whose names begin with ``.extra/``, and the metadata string
``extra_state``. That string is a JSON object of module paths, in the form of
:mod:`flodl.checkpoint.values`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from flodl.checkpoint.container import EXTRA, EXTRA_PREFIX, Container
from flodl.checkpoint.names import qualify
from flodl.checkpoint.sharded import become, like
from flodl.checkpoint.values import decode, encode
from flodl.errors import CheckpointError


def extra_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that have extra state, by path; a shared one appears once.

    Raises:
        ValueError: A module can return its extra state but not take it back.
    """
    found = {}
    for path, module in model.named_modules():
        kind = type(module)
        if kind.get_extra_state is nn.Module.get_extra_state:
            continue
        if kind.set_extra_state is nn.Module.set_extra_state:
            raise ValueError(
                f"{_named(path, module)} has get_extra_state and no set_extra_state: write both, "
                "so that a checkpoint can give the state back"
            )
        found[path] = module
    return found


def extra_states(model: nn.Module) -> dict[str, Any]:
    """Return what the modules of a model return from ``get_extra_state``, by path."""
    return {path: module.get_extra_state() for path, module in extra_modules(model).items()}


def describe_extra(states: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, object]:
    """Return extra states as JSON data; their tensors are collected under names of their own.

    Raises:
        ValueError: A state contains an object that a checkpoint cannot keep.
    """
    described = {}
    for path, state in states.items():
        try:
            described[path] = encode(state, f"{EXTRA_PREFIX}{path}", tensors)
        except ValueError as problem:
            told = str(problem).removeprefix(f"{EXTRA_PREFIX}{path}")
            raise ValueError(
                f"get_extra_state of the module {path or 'at the top'}: what it returns{told}"
            ) from None
    return described


def extra_text(described: Mapping[str, object]) -> dict[str, str]:
    """Return the metadata string of described states; empty if there are none."""
    if not described:
        return {}
    return {EXTRA: json.dumps(described, separators=(",", ":"), allow_nan=False)}


def extra_name(path: str) -> str:
    """Return the name of a module's extra state, as in a ``state_dict``."""
    return qualify(f"{path}._extra_state" if path else "_extra_state")


def stored_extra(container: Container) -> dict[str, Any]:
    """Return the extra states in a file, by path; their tensors are copies.

    Raises:
        CheckpointError: They are damaged.
    """
    try:
        described = json.loads(container.header.metadata.get(EXTRA, "{}"))
        if not isinstance(described, dict):
            raise ValueError("it is not a mapping")
        tensor = tensor_finder(container)
        return {path: decode(value, tensor) for path, value in described.items()}
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"the extra state in the file is damaged: {problem}") from None


def tensor_finder(container: Container, prefix: str = "") -> Callable[[str], Tensor]:
    """Return a function that copies a stored tensor, so that the file need not stay mapped.

    The function raises ``ValueError`` if the container has no tensor with the name, or the name
    does not begin with the prefix.
    """
    entries = {entry.name: entry for entry in container.header.entries}
    aliases = container.header.aliases

    def tensor(name: str) -> Tensor:
        entry = entries.get(aliases.get(name, name))
        if entry is None or not name.startswith(prefix):
            raise ValueError(f"the tensor {name!r} is not in the file")
        return container.tensor(entry).clone()

    return tensor


def set_extra_states(modules: Mapping[str, nn.Module], states: Mapping[str, Any]) -> None:
    """Give modules their extra state; an error changes none of them.

    Raises:
        CheckpointError: A module refuses its state.
    """
    with ExitStack() as undo:
        for path, module in modules.items():
            former = copy.deepcopy(module.get_extra_state())
            undo.callback(module.set_extra_state, former)
            try:
                module.set_extra_state(placed(states[path], former))
            except Exception as problem:
                raise CheckpointError(
                    f"{_named(path, module)} refuses the extra state of the checkpoint: "
                    f"{type(problem).__name__}: {problem}"
                ) from problem
        undo.pop_all()


@contextmanager
def restored_on_error(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Give tensors their values back if the block fails."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, value in kept:
                become(tensor, value)
        raise


def placed(value: Any, current: Any) -> Any:
    """Return a value whose tensors are where those of the present value are.

    Args:
        value: Read from a file: its tensors are whole, and on the CPU.
        current: The present value; where it has another form, the tensors stay as they are.
    """
    if isinstance(value, Tensor) and isinstance(current, Tensor):
        own = like(value, current) if value.shape == current.shape else value
        return own.to(current.device)
    if isinstance(value, dict) and isinstance(current, Mapping):
        return {key: placed(item, current.get(key)) for key, item in value.items()}
    if isinstance(value, list | tuple) and isinstance(current, list | tuple):
        padded = [*current, *[None] * (len(value) - len(current))]
        return type(value)(map(placed, value, padded))
    return value


def _named(path: str, module: nn.Module) -> str:
    return f"the module {path or 'at the top'} ({type(module).__name__})"
