"""State that a program registers: it is saved and restored together with the training."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from flodl.checkpoint.extra_state import extra_modules, extra_states, placed, set_extra_states
from flodl.checkpoint.optimizer import scatter
from flodl.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flodl.train.training_state import Parts

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
    return {name: value.state_dict() for name, value in parts.registered.items()}


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


def loadable(value: Any, state: Any) -> Any:
    """Return a state from a file in the form that ``load_state_dict`` of the object takes."""
    if isinstance(value, Optimizer):
        scatter(state["state"], value)
        return state
    current = value.state_dict()
    state = placed(state, current)
    if isinstance(value, nn.Module):
        state = OrderedDict(state)
        state._metadata = getattr(current, "_metadata", None)  # versions of the modules in it
    return state


def of_rank(parts: Parts) -> dict[str, Any]:
    """Return what differs between ranks of the program's own state."""
    return {"registered": registered_states(parts), "extra_state": extra_states(parts.model)}


def set_of_rank(parts: Parts, state: Mapping[str, Any]) -> None:
    """Restore what :func:`of_rank` returned."""
    for name, value in parts.registered.items():
        value.load_state_dict(loadable(value, state["registered"][name]))
    set_extra_states(extra_modules(parts.model), state["extra_state"])
