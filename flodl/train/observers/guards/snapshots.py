"""States of a training in host memory, to go back to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from flodl import log
from flodl.checkpoint.forms import CASTABLE, Parted
from flodl.checkpoint.sharded import become, fill
from flodl.checkpoint.snapshot import snapshot
from flodl.checkpoint.training import describe_training
from flodl.checkpoint.values import decode
from flodl.train.observers.checkpoints import numbers_in
from flodl.train.peak_memory import available_bytes
from flodl.train.run.part_states import set_states, states_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from flodl.train.run.loop_state import Position
    from flodl.train.run.part_states import Parts


@final
@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a training between two steps; a copy that the training cannot change.

    Unlike a checkpoint, it holds all buffers, also those that are not persistent.

    Attributes:
        position: Where the training was.
        tensors: Copies in host memory, by name.
        description: All other values, which name the tensors.
        kept: What the loop restores itself; it must not change.
    """

    position: Position
    tensors: dict[str, Tensor]
    description: Mapping[str, object]
    kept: object = None

    @classmethod
    def capture(
        cls,
        parts: Parts,
        position: Position,
        *,
        kept: object = None,
        reuse: Snapshot | None = None,
    ) -> Snapshot:
        """Copy the state of a training.

        Args:
            parts: The parts to copy; ``extra`` is kept, too.
            position: Their position.
            kept: What the loop restores itself.
            reuse: An older snapshot, whose memory is used again; None takes new memory.

        Raises:
            ValueError: A part holds an object that cannot be copied this way.
        """
        named = _model_tensors(parts.model)
        facts = {**states_of(parts), "extra": parts.extra}
        facts.pop("loader", None)  # the loop sets it to the position itself
        description = describe_training(facts, named)
        tensors = snapshot(named, reuse.tensors if reuse is not None else None)
        assert tensors is not None  # noqa: S101 - guards refuse a model that ranks share
        return cls(position, tensors, description, kept)

    @property
    def bytes(self) -> int:
        """Size of the tensors."""
        return sum(tensor.nbytes for tensor in Parted.of(self.tensors).tensors.values())

    @property
    def extra(self) -> dict[str, Any]:
        """What the parts held as ``extra``."""
        return dict(self._value("extra"))

    def is_finite(self, model: nn.Module) -> bool:
        """Whether all parameters of the model in it are finite."""
        named = model.named_parameters()
        names = (f"{_MODEL}{name}" for name, p in named if p.dtype in CASTABLE)
        return all(bool(numbers_in(self.tensors[name]).isfinite().all()) for name in names)

    @torch.no_grad()
    def restore(self, parts: Parts) -> None:
        """Give the parts this state; gradients are cleared. It can be used again.

        The generators of torch, Python and NumPy go back, too.
        """
        for name, parameter in parts.model.named_parameters():
            fill(parameter, self.tensors[_MODEL + name])
            parameter.grad = None
        self._restore_buffers(parts.model)
        set_states(parts, {name: self._value(name) for name in self.description if name != "extra"})

    def _restore_buffers(self, model: nn.Module) -> None:
        """Restore all buffers, also those that were set or changed their shape since."""
        home = next((one.device for one in model.parameters()), torch.device("cpu"))
        done = set[int]()
        for path, module in model.named_modules():
            for key, buffer in module._buffers.items():
                if buffer is not None and id(buffer) in done:
                    continue  # modules share it
                kept = self.tensors.get(f"{_MODEL}{path}.{key}" if path else _MODEL + key)
                if buffer is not None and kept is not None:
                    become(buffer, kept)
                    done.add(id(buffer))
                    continue
                module._buffers[key] = None if kept is None else kept.to(home, copy=True)

    def _value(self, name: str) -> Any:
        return decode(self.description[name], lambda key: self.tensors[key].clone())


@final
class SnapshotRing:
    """The newest snapshots of a training, within a limit of memory.

    Args:
        most: Number of snapshots.
        memory: Most bytes of all of them; None for half of the available memory.
    """

    def __init__(self, most: int, memory: int | None) -> None:
        self._most = most
        if memory is None:
            memory = available_bytes(torch.device("cpu")) // 2
        self._memory = memory
        self._ring: deque[Snapshot] = deque()
        self._spare: Snapshot | None = None
        self._fitting = most

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def oldest(self) -> Snapshot:
        """The oldest snapshot."""
        return self._ring[0]

    def take(self, parts: Parts, position: Position, kept: object = None) -> None:
        """Add a snapshot; the oldest is dropped if there are too many.

        Raises:
            ValueError: One snapshot needs more memory than allowed, or a part cannot be copied.
        """
        if len(self._ring) >= self._fitting:
            self._spare = self._ring.popleft()
        spare, self._spare = self._spare, None
        try:
            taken = Snapshot.capture(parts, position, kept=kept, reuse=spare)
        except ValueError as problem:
            raise ValueError(f"guards cannot keep this training in memory: {problem}") from problem
        self._fit(taken.bytes)
        while len(self._ring) >= self._fitting:
            self._ring.popleft()
        self._ring.append(taken)

    def newest(self, fits: Callable[[object], bool], model: nn.Module) -> Snapshot:
        """Return the newest snapshot that fits; later ones are dropped.

        Without any, it is the oldest one. A snapshot with parameters that are not finite is left
        out, if there is an older one.

        Args:
            fits: Asked with what a snapshot keeps for the loop.
            model: The model of the snapshots.
        """
        while len(self._ring) > 1 and not (
            fits(self._ring[-1].kept) and self._ring[-1].is_finite(model)
        ):
            self._spare = self._ring.pop()
        return self._ring[-1]

    def clear(self) -> None:
        """Drop all snapshots; the memory of one is kept for the next."""
        while self._ring:
            self._spare = self._ring.popleft()

    def _fit(self, size: int) -> None:
        fitting = min(self._most, self._memory // max(size, 1))
        if fitting < 1:
            raise ValueError(
                f"guards: a snapshot of this training takes {size:,} bytes, and "
                f"guards(memory={self._memory}) allows {self._memory:,}: allow more, or leave "
                "the guards out"
            )
        if fitting < self._fitting:
            log.warning(
                f"guards: {fitting} of {self._most} snapshots of {size:,} bytes fit into "
                f"{self._memory:,} bytes"
            )
            self._fitting = fitting


_MODEL = "model/"


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    named = chain(model.named_parameters(), model.named_buffers())
    return {f"{_MODEL}{name}": tensor for name, tensor in named}
