"""State that a program registers: it is saved and restored together with the training."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from flodl.checkpoint.extra_state import extra_modules, extra_states, placed, set_extra_states
from flodl.checkpoint.optimizer import NAMES, NamedOptimizer, parameters_by_name
from flodl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flodl.train.run.training_state import Parts

_METHODS = ("state_dict", "load_state_dict")


def lacking(value: object) -> list[str]:
    """Return the methods that an object lacks to have its state saved."""
    return [name for name in _METHODS if not callable(getattr(value, name, None))]


def made(registered: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Return registered objects; a function is called with the model and returns its object.

    Raises:
        ValueError: A function returned an object without the methods.
    """
    found = {}
    for name, value in registered.items():
        found[name] = value(model) if lacking(value) else value
        if missing := lacking(found[name]):
            raise ValueError(
                f"state({name!r}): the function returned a {type(found[name]).__name__}, which has "
                f"no method {', '.join(missing)}: write both"
            )
    return found


def registered_states(parts: Parts) -> dict[str, Any]:
    """Return the states of the registered objects, by name."""
    return {name: _by_name(value, parts).state_dict() for name, value in parts.registered.items()}


def named_optimizer(parts: Parts, optimizer: Optimizer) -> NamedOptimizer:
    """Return an optimizer with the names of parameters in the model and in registered modules."""
    named = parameters_by_name(parts.model)
    for name, value in parts.registered.items():
        if isinstance(value, nn.Module):
            inside = parameters_by_name(value)
            named |= {f"{name}: {key}": parameter for key, parameter in inside.items()}
    return NamedOptimizer(optimizer, named)


def _by_name(value: Any, parts: Parts) -> Any:
    return named_optimizer(parts, value) if isinstance(value, Optimizer) else value


def check_registered(where: str, saved: Any, parts: Parts) -> None:
    """Compare the names in a file with the registered ones.

    Raises:
        CheckpointError: One side has a name that the other lacks.
    """
    if not isinstance(saved, dict):
        raise ValueError("its registered states are not a mapping")
    for name in parts.registered.keys() - saved.keys():
        raise CheckpointError(
            f"{where} lacks the state {name!r}, which this program registers: resume with the "
            f"program that wrote it, or leave .state({name!r}, …) out"
        )
    for name in saved.keys() - parts.registered.keys():
        raise CheckpointError(
            f"{where} has the state {name!r}, and this program registers none of that name: "
            f"call .state({name!r}, object) with the object that continues from it"
        )
    for name, value in parts.registered.items():
        if isinstance(value, Optimizer) and isinstance(saved[name], dict) and NAMES in saved[name]:
            named_optimizer(parts, value).check(saved[name][NAMES], f"{where}: state({name!r})")


def loadable(value: Any, state: Any, parts: Parts) -> tuple[Any, Any]:
    """Return what loads the state of a registered object, and a state from a file in its form."""
    if isinstance(value, Optimizer):
        return named_optimizer(parts, value), state
    current = value.state_dict()
    state = placed(state, current)
    if isinstance(value, nn.Module):
        state = OrderedDict(state)
        state._metadata = getattr(current, "_metadata", None)  # versions of the modules in it
    return value, state


def of_rank(parts: Parts) -> dict[str, Any]:
    """Return what differs between ranks of the program's own state."""
    return {"registered": registered_states(parts), "extra_state": extra_states(parts.model)}


def set_of_rank(parts: Parts, state: Mapping[str, Any]) -> None:
    """Restore what :func:`of_rank` returned."""
    for name, value in parts.registered.items():
        loader, own = loadable(value, state["registered"][name], parts)
        loader.load_state_dict(own)
    set_extra_states(extra_modules(parts.model), state["extra_state"])
