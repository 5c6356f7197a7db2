"""A training's state between two steps: copied while it runs, written later, resumed exactly."""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from flodl.checkpoint.buffer_sizes import sized_as_stored
from flodl.checkpoint.container import TRAINING_PREFIX
from flodl.checkpoint.extra_state import (
    describe_extra,
    extra_modules,
    extra_states,
    restored_on_error,
    set_extra_states,
    tensor_finder,
)
from flodl.checkpoint.files import read_stream
from flodl.checkpoint.forms import check_storable
from flodl.checkpoint.generators import check_generator_states
from flodl.checkpoint.names import persistent_buffers
from flodl.checkpoint.optimizer import describe_optimizer, read_optimizer
from flodl.checkpoint.sharded import become, collected, is_sharded, reshard, sharing_ranks
from flodl.checkpoint.snapshot import snapshot
from flodl.checkpoint.store import save_checkpoint, tensors_by_name
from flodl.checkpoint.training import TrainingFile, describe_training, save_training_file
from flodl.checkpoint.values import decode, encode
from flodl.data.structure import changed
from flodl.errors import CheckpointError
from flodl.train.run.loop_state import BEGINNING, Position
from flodl.train.run.part_states import (
    check_registered,
    checked_carried,
    graphs,
    set_states,
    states_of,
)
from flodl.train.run.resume_checks import (
    SAME_DATA,
    check_same_data,
    check_same_order,
    without_order,
)

if TYPE_CHECKING:
    import os

    from flodl.train.run.part_states import Parts


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
        named, _, _ = _described(parts, BEGINNING)
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
                restored = _restored(file, parts)
        except CheckpointError:
            raise
        except (
            ValueError,
            TypeError,
            AttributeError,
            KeyError,
            IndexError,
            RuntimeError,
            OverflowError,
        ) as problem:
            raise CheckpointError(
                f"{file.where} has a damaged training state: {problem}"
            ) from problem
        return restored


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


def _restored(file: TrainingFile, parts: Parts) -> Restored:
    """Check all of a file, then give it to the parts."""
    model = parts.model
    position = _position(file.value("position"))
    values = file.model_values(_model_tensors(model), label_and_hash(model)[1])
    modules = extra_modules(model)
    states = _checked_states(file, parts) | {"extra_state": file.extra_states(modules)}
    for name, own in _part_of_rank(file, model).items():
        states[name] = _with_own(states[name], own)
    check_generator_states(states["random"])
    extra_state = states.pop("extra_state")
    extra = file.value("extra")
    if not isinstance(extra, dict):
        raise ValueError("extra is not a mapping")
    with ExitStack() as undo:
        former = states_of(parts)
        del former["extra_state"]  # modules take it last, and none of them keeps half of it
        undo.callback(set_states, parts, copy.deepcopy(former))
        set_states(parts, states)
        with restored_on_error([tensor for tensor, _ in values] if modules else ()):
            for tensor, value in values:
                become(tensor, value)
            set_extra_states(modules, extra_state)
        undo.pop_all()
    return Restored(position, extra)


def _described(
    parts: Parts, position: Position
) -> tuple[dict[str, Tensor], dict[str, object], dict[str, object]]:
    """Return all tensors by name, the rest as JSON data, and the extra states of modules."""
    named = _model_tensors(parts.model)
    states = states_of(parts)
    extra = describe_extra(states["extra_state"], named)
    if ranks := _ranks_own(states, parts.model):
        if states["carried"]:
            raise ValueError("a graph that carries state is sharded over several processes")
        states[_RANKS] = ranks
    place = [position.epoch, position.step, position.global_step]
    facts = {"position": place, **states, "extra": parts.extra}
    del facts["extra_state"], facts["optimizer"]  # both have a form of their own
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


def _position(value: Any) -> Position:
    match value:
        case [int(epoch), int(step), int(global_step)] if min(value) >= 0:
            return Position(epoch, step, global_step)
    raise ValueError("its position has no epoch and steps")


# --- Parts with a state_dict ----------------------------------------------------------------

_REMEDIES = {
    "loader": SAME_DATA,
    "scaler": "use a gradient scaler exactly where the saved training did",
    "average": "average the weights (ema) exactly where the saved training did",
    "schedule": "use the scheduler of the saved training",
}


def _checked_states(file: TrainingFile, parts: Parts) -> dict[str, Any]:
    """Return the states in a file for the parts, after checking their form."""
    moving, where = parts.stateful(), file.where
    for name, remedy in _REMEDIES.items():
        if (name in file.description) != (name in moving):
            there = name in file.description
            verb = ("has", "this training has none") if there else ("lacks", "it has one")
            raise CheckpointError(
                f"{where} {verb[0]} the state of the {name}, and {verb[1]}: {remedy}"
            )
    names = (*moving, "registered", "carried", "observed", "random")
    states = {name: file.value(name) for name in names}
    for name, part in moving.items():
        current = part.state_dict()
        if name == "loader":
            check_same_data(where, states[name], current)
            check_same_order(where, states[name], part)
        saved, current = without_order(states[name]), without_order(current)
        if name == "average":  # it checks its tensors itself: buffers may change their form
            saved, current = ({**one, "tensors": {}} for one in (saved, current))
        if problem := _difference(saved, current, name):
            raise CheckpointError(
                f"{where} does not fit this training: {problem}; {_REMEDIES[name]}"
            )
    check_registered(where, states["registered"], parts)
    checked_carried(states["carried"], parts.model)
    observed = states["observed"]
    if not isinstance(observed, dict) or observed.keys() != graphs(parts.model).keys():
        raise ValueError("it has observations of graphs that are not in the model")
    described = file.description["optimizer"]
    read = read_optimizer(described, parts.named_optimizer(), file.tensor, where)
    return states | {"optimizer": read}


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


# --- State that each process of a sharded model has for itself -------------------------------

_RANKS = "ranks"
"""Key in a training's description; present only if the model is sharded over ranks."""
_OWN = ("random", "registered", "extra_state")
"""The states in which ranks that share a model can differ."""


def _ranks_own(states: Mapping[str, Any], model: nn.Module) -> list[dict[str, Any]]:
    """Return the own states of all ranks, without sharded tensors; collective.

    It is empty if one process holds the whole model. A state that is the same on all ranks is left
    out.

    Args:
        states: Those of this rank.
        model: The model that the ranks share.

    Raises:
        CheckpointError: Other ranks did not join the call.
        ValueError: A state contains an object that a checkpoint cannot keep.
    """
    parameters = list(model.parameters())
    if not sharing_ranks(parameters):
        return []
    packed = {name: _packed(_local(states[name])) for name in _OWN}
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in packed.items()}
    what = "what the program and its modules keep on each rank"
    told = collected(digests, parameters, what)
    own = {name: packed[name] for name in _OWN if len({one[name] for one in told}) > 1}
    return [
        {name: _unpacked(text) for name, text in one.items()}
        for one in collected(own, parameters, what)
    ]


def _with_own(shared: Any, own: Any) -> Any:
    """Return the own state of a rank, with sharded tensors from the shared state."""
    if own is None:
        return shared
    if isinstance(own, Mapping) and isinstance(shared, Mapping):
        return {key: _with_own(shared.get(key), value) for key, value in own.items()}
    if isinstance(own, list | tuple) and isinstance(shared, list | tuple):
        padded = [*shared, *[None] * (len(own) - len(shared))]
        return type(own)(map(_with_own, padded, own))
    return own


def _part_of_rank(file: TrainingFile, model: nn.Module) -> dict[str, Any]:
    """Return this rank's own states in a file; empty if that has another number of ranks."""
    ranks = sharing_ranks(model.parameters())
    states = file.value(_RANKS) if _RANKS in file.description else []
    if not ranks or not isinstance(states, list) or len(states) != len(ranks):
        return {}
    own: dict[str, Any] = states[ranks.index(torch.distributed.get_rank())]
    return own


def _local(value: Any) -> Any:
    """Return a value with None in place of the tensors that ranks share."""
    return changed(value, lambda one: None if is_sharded(one) else one)


def _packed(value: Any) -> str:
    """Return a value as text: a container, which keeps every type of tensor."""
    tensors: dict[str, Tensor] = {}
    form = json.dumps(encode(value, _RANKS, tensors))
    stream = io.BytesIO()
    save_checkpoint(stream, [], tensors.items(), metadata={_RANKS: form})
    return base64.b64encode(stream.getvalue()).decode()


def _unpacked(text: str) -> Any:
    container = read_stream(io.BytesIO(base64.b64decode(text)))
    return decode(json.loads(container.header.metadata[_RANKS]), tensor_finder(container))
