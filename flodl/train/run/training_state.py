"""A training's state between two steps: copied while it runs, written later, resumed exactly."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, final

import torch
from torch import Tensor, nn

from flodl.checkpoint import persistent_buffers
from flodl.checkpoint.buffer_sizes import sized_as_stored
from flodl.checkpoint.container import TRAINING_PREFIX
from flodl.checkpoint.extra_state import (
    describe_extra,
    extra_modules,
    extra_states,
    restored_on_error,
    set_extra_states,
)
from flodl.checkpoint.forms import check_storable
from flodl.checkpoint.generators import (
    check_generator_states,
    generator_states,
    set_generator_states,
)
from flodl.checkpoint.optimizer import NamedOptimizer, describe_optimizer, read_optimizer
from flodl.checkpoint.sharded import become, reshard
from flodl.checkpoint.snapshot import snapshot
from flodl.checkpoint.store import tensors_by_name
from flodl.checkpoint.training import TrainingFile, describe_training, save_training_file
from flodl.errors import CheckpointError
from flodl.graph import Graph
from flodl.train.run.own_state import (
    check_registered,
    loadable,
    named_optimizer,
    of_rank,
    registered_states,
)
from flodl.train.run.resume_checks import (
    SAME_DATA,
    check_same_data,
    check_same_order,
    without_order,
)
from flodl.train.run.sharded_state import (
    OWN,
    RANKS,
    part_of_rank,
    ranks_generators,
    ranks_own,
    with_own,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping


REGISTERED = "registered"
"""Key in a training's description: the states that the program registered."""


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
    optimizer: torch.optim.Optimizer
    loader: HasState | None = None
    scaler: HasState | None = None
    average: HasState | None = None
    schedule: object | None = None
    registered: Mapping[str, HasState] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def named_optimizer(self) -> NamedOptimizer:
        """Return the optimizer with the names of its parameters."""
        return named_optimizer(self, self.optimizer)


@final
@dataclass(frozen=True, slots=True)
class Position:
    """The position of a training.

    Attributes:
        epoch: Number of complete epochs, which is the number of the current epoch, counted from 0.
        step: Steps done in that epoch.
        global_step: Optimizer steps done in the whole run.
    """

    epoch: int
    step: int
    global_step: int


@final
@dataclass(frozen=True, slots=True)
class TrainingState:
    """A copy of a training's state in host memory; the training cannot change it.

    Attributes:
        position: The position when it was copied.
        metrics: The latest metrics.
        tensors: Tensors of the model by qualified name, and all other tensors.
        description: All other values, as JSON data; None if only the model could be copied.
        structural_hash: The hash of the model, if it has one.
        label: Name of the model.
    """

    position: Position
    metrics: Mapping[str, float]
    tensors: dict[str, Tensor]
    description: Mapping[str, object] | None
    structural_hash: str | None
    label: str
    extra_state: Mapping[str, object]
    """What modules return from ``get_extra_state``, as JSON data."""

    @classmethod
    def capture(
        cls,
        parts: Parts,
        position: Position,
        metrics: Mapping[str, float] | None = None,
        *,
        reuse: TrainingState | None = None,
    ) -> TrainingState | None:
        """Copy the state of a training; call it between two steps, on the training thread.

        If the model is sharded, call it in all processes that share it: they gather the tensors,
        and the lowest rank gets the state. The others get None.

        Args:
            parts: The parts to copy.
            position: Their position.
            metrics: The latest metrics, kept for people who read the file.
            reuse: A state that is no longer needed: its memory is overwritten.

        Raises:
            ValueError: A part holds an object that a checkpoint cannot keep.
        """
        named, description, extra = _described(parts, position)
        return cls._of(parts.model, named, description, extra, position, metrics, reuse)

    @classmethod
    def capture_model(
        cls,
        model: nn.Module,
        position: Position,
        metrics: Mapping[str, float] | None = None,
        *,
        reuse: TrainingState | None = None,
    ) -> TrainingState | None:
        """Copy only the model, as :meth:`capture` does.

        The file can be loaded, but no training can be resumed from it.
        """
        named = _model_tensors(model)
        extra = describe_extra(extra_states(model), named)
        return cls._of(model, named, None, extra, position, metrics, reuse)

    @staticmethod
    def check(parts: Parts) -> None:
        """Check that the parts, as they are now, can be saved; nothing is copied.

        If the model is sharded, call it in all processes that share it.

        Raises:
            ValueError: A part holds an object or a tensor that a checkpoint cannot keep.
        """
        named, _, _ = _described(parts, Position(0, 0, 0))
        for name, tensor in named.items():
            check_storable(name, tensor)

    @classmethod
    def _of(
        cls,
        model: nn.Module,
        named: dict[str, Tensor],
        description: Mapping[str, object] | None,
        extra: Mapping[str, object],
        position: Position,
        metrics: Mapping[str, float] | None,
        reuse: TrainingState | None,
    ) -> TrainingState | None:
        tensors = snapshot(named, reuse.tensors if reuse is not None else None)
        if tensors is None:
            return None
        label, hash = label_and_hash(model)
        return cls(position, dict(metrics or {}), tensors, description, hash, label, extra)

    def write(
        self, path: str | os.PathLike[str], *, config: Mapping[str, Any] | None = None
    ) -> None:
        """Write the state to one file, atomically; any thread may call it.

        Raises:
            CheckpointError: The file cannot be written.
        """
        save_training_file(
            path,
            self.tensors,
            self.description,
            self.structural_hash,
            label=self.label,
            config=config,
            epoch=self.position.epoch,
            metrics=self.metrics,
            metadata={"step": str(self.position.step)},
            extra_state=self.extra_state,
        )

    @staticmethod
    @torch.no_grad()
    def restore(path: str | os.PathLike[str], parts: Parts) -> Restored:
        """Restore new parts from a file; an error leaves the parts unchanged.

        The generators of torch, Python and NumPy are restored, too. So the next step is the same
        one as in an uninterrupted training.

        Args:
            path: A file of :meth:`write`.
            parts: Made in the same way as those in the file; ``extra`` is ignored.

        Raises:
            ArchitectureMismatch: The model is another one.
            ShapeMismatch: A tensor of the model has another shape.
            CheckpointError: The file is damaged or holds no training, or another part differs from
                the saved one: optimizer, parameter groups, data, scaler, average, schedule.
        """
        file = TrainingFile.open(path)
        try:
            with sized_as_stored(parts.model, file.container.header):
                position, extra, carried = _restored(file, parts)
        except CheckpointError:
            raise
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            RuntimeError,
            OverflowError,
        ) as problem:
            raise CheckpointError(
                f"{file.where} has a damaged training state: {problem}"
            ) from problem
        for graph, state in carried:
            graph.set_carried_state(state)
        return Restored(position, extra)


@final
@dataclass(frozen=True, slots=True)
class Restored:
    """Where a training continues.

    Attributes:
        position: Its saved position.
        extra: The values of :attr:`Parts.extra` in the file.
    """

    position: Position
    extra: dict[str, Any]


def _restored(
    file: TrainingFile, parts: Parts
) -> tuple[Position, dict[str, Any], list[tuple[Graph, tuple[Tensor | None, ...]]]]:
    """Check all of a file, then give it to the parts, except for what graphs carry."""
    model = parts.model
    position = _position(file.value("position"))
    hash = label_and_hash(model)[1]
    values = file.model_values(_model_tensors(model), hash)
    modules = extra_modules(model)
    extra_state = file.extra_states(modules)
    described = file.description["optimizer"]
    optimizer = read_optimizer(described, parts.named_optimizer(), file.tensor, file.where)
    random = part_of_rank(RANKS, file, model) or file.value("random")
    check_generator_states(random)
    carried = _checked_carried(file.value("carried"), model)
    observed = file.value("observed")
    if not isinstance(observed, dict) or observed.keys() != _graphs(model).keys():
        raise ValueError("it has observations of graphs that are not in the model")
    states = _checked_states(file, parts)
    registered = file.value(REGISTERED) if REGISTERED in file.description else {}
    check_registered(file.where, registered, parts)
    if (own := part_of_rank(OWN, file, model)) is not None:
        registered = with_own(registered, own["registered"])
        extra_state = with_own(extra_state, own["extra_state"])
    extra = file.value("extra")
    if not isinstance(extra, dict):
        raise ValueError("extra is not a mapping")
    with ExitStack() as undo:
        for name, part in stateful(parts).items():
            _load(part, states[name], undo)
        _load(parts.named_optimizer(), optimizer, undo)
        for name, part in parts.registered.items():
            _load(*loadable(part, registered[name], parts), undo)
        undo.callback(set_observed_states, model, observed_states(model))
        set_observed_states(model, observed)
        undo.callback(set_generator_states, generator_states())
        set_generator_states(random)
        with restored_on_error([tensor for tensor, _ in values] if modules else ()):
            for tensor, value in values:
                become(tensor, value)
            set_extra_states(modules, extra_state)
        undo.pop_all()
    return position, extra, carried


def _described(
    parts: Parts, position: Position
) -> tuple[dict[str, Tensor], dict[str, object], dict[str, object]]:
    """Return all tensors by name, the rest as JSON data, and the extra states of modules."""
    named = _model_tensors(parts.model)
    extra = describe_extra(extra_states(parts.model), named)
    facts = {
        "position": [position.epoch, position.step, position.global_step],
        "random": generator_states(),
        "carried": carried_state(parts.model),
        "observed": observed_states(parts.model),
        "states": {name: part.state_dict() for name, part in stateful(parts).items()},
        REGISTERED: registered_states(parts),
        "extra": parts.extra,
    }
    if ranks := ranks_generators(parts.model):
        if facts["carried"]:
            raise ValueError("a graph that carries state is sharded over several processes")
        facts[RANKS] = ranks
        facts[OWN] = ranks_own(of_rank(parts), parts.model)
    description = describe_training(facts, named)
    prefix = f"{TRAINING_PREFIX}optimizer/"
    description["optimizer"] = describe_optimizer(parts.named_optimizer(), prefix, named)
    return named, description, extra


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    reshard(model)
    return tensors_by_name(
        model.named_parameters(remove_duplicate=False), persistent_buffers(model, tied=True)
    )


def label_and_hash(model: nn.Module) -> tuple[str, str | None]:
    """Return the name and the structural hash of a model, if it has them."""
    identify = getattr(model, "structural_hash", None)
    hash = str(identify()) if callable(identify) else None
    return str(getattr(model, "label", None) or ""), hash


def stateful(parts: Parts) -> dict[str, Any]:
    """Return the parts besides model and optimizer that have a state."""
    named = {
        "loader": parts.loader,
        "scaler": parts.scaler,
        "average": parts.average,
        "schedule": parts.schedule,
    }
    return {name: p for name, p in named.items() if callable(getattr(p, "state_dict", None))}


def _load(part: Any, state: Any, undo: ExitStack) -> None:
    former = copy.deepcopy(part.state_dict())
    undo.callback(part.load_state_dict, former)
    part.load_state_dict(state)


def _position(value: Any) -> Position:
    match value:
        case [int(epoch), int(step), int(global_step)] if min(value) >= 0:
            return Position(epoch, step, global_step)
    raise ValueError("its position has no epoch and steps")


# --- State that graphs carry from one call to the next ---------------------------------------


def _graphs(model: nn.Module) -> dict[str, Graph]:
    """The graphs in a model, by path; each of them may carry state between calls."""
    return {path: m for path, m in model.named_modules() if isinstance(m, Graph)}


def carried_state(model: nn.Module) -> dict[str, list[Tensor | None]]:
    """Return the state that the graphs of a model carry from one call to the next, by path."""
    carried = {path: list(graph.carried_state()) for path, graph in _graphs(model).items()}
    return {path: values for path, values in carried.items() if any(v is not None for v in values)}


def observed_states(model: nn.Module) -> dict[str, Any]:
    """Return the metrics and counters of the graphs of a model, by path."""
    return {path: graph.observed_state() for path, graph in _graphs(model).items()}


def set_observed_states(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Restore the metrics and counters that :func:`observed_states` returned."""
    for path, graph in _graphs(model).items():
        graph.set_observed_state(saved[path])


def set_carried_state(model: nn.Module, saved: Mapping[str, list[Tensor | None]]) -> None:
    """Restore the state of graphs that :func:`carried_state` returned.

    Raises:
        ValueError: It belongs to another model.
    """
    for graph, state in _checked_carried(dict(saved), model):
        graph.set_carried_state(state)


def _checked_carried(saved: Any, model: nn.Module) -> list[tuple[Graph, tuple[Tensor | None, ...]]]:
    graphs = _graphs(model)
    if not isinstance(saved, dict) or not saved.keys() <= graphs.keys():
        raise ValueError("it has values of graphs that are not in the model")
    checked = []
    for path, graph in graphs.items():
        slots = len(graph.carried_state())
        values = saved.get(path, [None] * slots)
        if len(values) != slots or not all(v is None or isinstance(v, Tensor) for v in values):
            raise ValueError(f"what graph {path or 'at the top'} carries is not one tensor per tag")
        home = next((p.device for p in graph.parameters()), torch.device("cpu"))
        checked.append((graph, tuple(v if v is None else v.to(home) for v in values)))
    return checked


# --- Parts with a state_dict ----------------------------------------------------------------

_REMEDIES = {
    "loader": SAME_DATA,
    "scaler": "use a gradient scaler exactly where the saved training did",
    "average": "average the weights (ema) exactly where the saved training did",
    "schedule": "use the scheduler of the saved training",
}


def _checked_states(file: TrainingFile, parts: Parts) -> dict[str, Any]:
    """Return the states in the file, one per part with a state, after checking their form."""
    states = file.value("states")
    moving = stateful(parts)
    if not isinstance(states, dict):
        raise ValueError("its states are not a mapping")
    for name, remedy in _REMEDIES.items():
        if (name in states) != (name in moving):
            verb = ("has", "this training has none") if name in states else ("lacks", "it has one")
            raise CheckpointError(
                f"{file.where} {verb[0]} the state of a {name} and {verb[1]}: {remedy}"
            )
    for name, part in moving.items():
        current = part.state_dict()
        if name == "loader":
            check_same_data(file.where, states[name], current)
            check_same_order(file.where, states[name], part)
        saved, current = without_order(states[name]), without_order(current)
        if name == "average":  # it checks its tensors itself: buffers may change their form
            saved, current = ({**one, "tensors": {}} for one in (saved, current))
        if problem := _difference(saved, current, name):
            raise CheckpointError(
                f"{file.where} does not fit this training: {problem}; {_REMEDIES[name]}"
            )
    return states


def _difference(saved: Any, current: Any, path: str) -> str | None:
    """Return how two states differ in form; None if one can replace the other."""
    if isinstance(current, dict) and isinstance(saved, dict):
        if saved.keys() != current.keys():
            odd = sorted(map(str, saved.keys() ^ current.keys()))
            return f"only one of the file and the {path} has {', '.join(odd[:3])}"
        problems = (_difference(saved[key], current[key], f"{path}.{key}") for key in current)
        return next((problem for problem in problems if problem), None)
    if isinstance(current, Tensor) and isinstance(saved, Tensor):
        if saved.shape == current.shape and saved.dtype == current.dtype:
            return None
        return (
            f"{path} is {saved.dtype} {list(saved.shape)} in the file and "
            f"{current.dtype} {list(current.shape)} here"
        )
    if saved is None or current is None or _kind(saved) == _kind(current):
        return None
    return f"{path} is a {type(saved).__name__} in the file and a {type(current).__name__} here"


def _kind(value: object) -> object:
    return float if isinstance(value, bool | int | float) else type(value)
