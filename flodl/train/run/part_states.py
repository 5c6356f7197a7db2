"""The parts of a training, and the one list of their states besides the tensors of the model.

Checkpoints, the snapshots of guards, and the states that ranks exchange are all made of it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flodl.checkpoint.extra_state import extra_modules, extra_states, placed, set_extra_states
from flodl.checkpoint.generators import generator_states, set_generator_states
from flodl.checkpoint.optimizer import NAMES, NamedOptimizer, parameters_by_name
from flodl.errors import CheckpointError
from flodl.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class HasState(Protocol):
    """An object with a ``state_dict``, like torch's optimizers and schedulers."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state: tensors, numbers, strings, and lists, tuples and mappings of them."""

    def load_state_dict(self, state: Any) -> object:
        """Continue from such a state."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """All objects of a training that change from step to step.

    Attributes:
        model: A checkpoint keeps its parameters, persistent buffers and what its modules return
            from ``get_extra_state``. Of its graphs, it keeps the state, the metrics and the
            counters.
        optimizer: Any optimizer that :func:`flodl.save_optimizer_state` can save.
        loader: The source of the batches; its position is kept.
        scaler: The gradient scaler of fp16.
        average: The running average of the weights.
        schedule: The learning-rate schedule; kept if it has a ``state_dict``.
        registered: Objects of the program, by name.
        extra: Other values of the loop: numbers, strings, tensors, and lists, tuples and mappings
            of them.
    """

    model: nn.Module
    optimizer: Optimizer
    loader: HasState | None = None
    scaler: HasState | None = None
    average: HasState | None = None
    schedule: object | None = None
    registered: Mapping[str, HasState] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def named_optimizer(self) -> NamedOptimizer:
        """Return the optimizer with the names of its parameters."""
        return self._named(self.optimizer)

    def stateful(self) -> dict[str, Any]:
        """Return the parts besides model and optimizer that have a state, by name."""
        named = {
            "loader": self.loader,
            "scaler": self.scaler,
            "average": self.average,
            "schedule": self.schedule,
        }
        return {name: p for name, p in named.items() if callable(getattr(p, "state_dict", None))}

    def loading(self, name: str) -> Any:
        """Return what loads and returns the state of a registered object."""
        value = self.registered[name]
        return self._named(value) if isinstance(value, Optimizer) else value

    def _named(self, optimizer: Optimizer) -> NamedOptimizer:
        """Return an optimizer with the names of parameters in model and registered modules."""
        named = parameters_by_name(self.model)
        for name, value in self.registered.items():
            if isinstance(value, nn.Module):
                inside = parameters_by_name(value)
                named |= {f"{name}: {key}": parameter for key, parameter in inside.items()}
        return NamedOptimizer(optimizer, named)


def states_of(parts: Parts) -> dict[str, Any]:
    """Return all states of a training besides parameters and buffers, by name."""
    model = parts.model
    return {
        **{name: part.state_dict() for name, part in parts.stateful().items()},
        "optimizer": parts.named_optimizer().state_dict(),
        "registered": {name: parts.loading(name).state_dict() for name in parts.registered},
        "extra_state": extra_states(model),
        "carried": carried_state(model),
        "observed": observed_states(model),
        "random": generator_states(),
    }


def set_states(parts: Parts, states: Mapping[str, Any]) -> None:
    """Restore states of :func:`states_of`; what is not among them stays as it is.

    Raises:
        CheckpointError: A part refuses its state.
        ValueError: A state belongs to another training.
    """
    model = parts.model
    for name, part in (parts.stateful() | {"optimizer": parts.named_optimizer()}).items():
        if name in states:
            part.load_state_dict(states[name])
    for name, state in states.get("registered", {}).items():
        parts.loading(name).load_state_dict(_in_form(parts.registered[name], state))
    if "extra_state" in states:
        set_extra_states(extra_modules(model), states["extra_state"])
    for graph, carried in checked_carried(states.get("carried"), model):
        graph.set_carried_state(carried)
    if "observed" in states:
        for path, graph in graphs(model).items():
            graph.set_observed_state(states["observed"][path])
    if "random" in states:
        set_generator_states(states["random"])


# --- Objects that a program registers --------------------------------------------------------

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
            parts.loading(name).check(saved[name][NAMES], f"{where}: state({name!r})")


def _in_form(value: Any, state: Any) -> Any:
    """Return a state from a file in the form that a registered object loads."""
    if isinstance(value, Optimizer):
        return state
    current = value.state_dict()
    state = placed(state, current)
    if isinstance(value, nn.Module):
        state = OrderedDict(state)
        state._metadata = getattr(current, "_metadata", None)  # versions of the modules in it
    return state


# --- State of graphs and modules -------------------------------------------------------------


def graphs(model: nn.Module) -> dict[str, Graph]:
    """Return the graphs in a model, by path; each of them may carry state between calls."""
    return {path: m for path, m in model.named_modules() if isinstance(m, Graph)}


def carried_state(model: nn.Module) -> dict[str, list[Tensor | None]]:
    """Return the state that the graphs of a model carry from one call to the next, by path."""
    carried = {path: list(graph.carried_state()) for path, graph in graphs(model).items()}
    return {path: values for path, values in carried.items() if any(v is not None for v in values)}


def observed_states(model: nn.Module) -> dict[str, Any]:
    """Return the metrics and counters of the graphs of a model, by path."""
    return {path: graph.observed_state() for path, graph in graphs(model).items()}


def checked_carried(saved: Any, model: nn.Module) -> list[tuple[Graph, tuple[Tensor | None, ...]]]:
    """Return each graph with its state among those of :func:`carried_state`; None for nothing.

    Raises:
        ValueError: They belong to another model.
    """
    if saved is None:
        return []
    known = graphs(model)
    if not isinstance(saved, dict) or not saved.keys() <= known.keys():
        raise ValueError("it has values of graphs that are not in the model")
    checked = []
    for path, graph in known.items():
        slots = len(graph.carried_state())
        values = saved.get(path, [None] * slots)
        if len(values) != slots or not all(v is None or isinstance(v, Tensor) for v in values):
            raise ValueError(f"what graph {path or 'at the top'} carries is not one tensor per tag")
        home = next((p.device for p in graph.parameters()), torch.device("cpu"))
        checked.append((graph, tuple(v if v is None else v.to(home) for v in values)))
    return checked


def modes(model: nn.Module) -> dict[str, list[str]]:
    """Return which parts of a model are frozen, and which are in eval mode."""
    return {
        "frozen": [name for name, p in model.named_parameters() if not p.requires_grad],
        "evaluating": [name for name, module in model.named_modules() if not module.training],
    }


def set_modes(model: nn.Module, saved: Mapping[str, Sequence[str]]) -> None:
    """Restore the result of :func:`modes`."""
    frozen, evaluating = set(saved["frozen"]), set(saved["evaluating"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    for name, module in model.named_modules():
        module.training = name not in evaluating
