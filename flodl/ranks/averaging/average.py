"""Average values over the ranks, weighted by the samples that each rank has trained.

    p̄ = Σ (n[r] / Σn) · p[r]

One buffer per dtype holds ``n · value`` for all averaged values and, at its end, ``n`` itself. The
sum over the ranks is divided by the summed weight. So a rank without samples, or with values that
are not finite, takes part with zeros and weight 0. The other ranks need no message about it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from flodl.errors import DivergedError, StateError
from flodl.ranks.averaging.backends import Exchange, Sums, wire_for
from flodl.ranks.averaging.buckets import Buckets, Slot, as_real, summed_as
from flodl.ranks.averaging.buffers import SharedBuffers
from flodl.ranks.averaging.optimizer_tensors import OptimizerTensors

if TYPE_CHECKING:
    from flodl.ranks.averaging.outer_optimizer import OuterOptimizer
    from flodl.ranks.group import Group
    from flodl.ranks.settings import Backend

_TINY = 1e-10
"""Norm below which parameters count as zero; the divergence is 0 then."""


@final
@dataclass(frozen=True, slots=True)
class Averaged:
    """The result of one average."""

    divergence: float
    """‖before - after‖ / ‖after‖ of this rank's parameters; 0 if ‖after‖ < 1e-10 or if this rank's
    own parameters were not finite."""
    finite: bool
    """Whether this rank's own parameters were finite, so that they counted."""
    samples: float
    """Sum of the weights of all ranks."""


@final
class Round:
    """An average in progress while training continues."""

    def __init__(self, averager: ParameterAverager, exchange: Exchange) -> None:
        self._averager, self._exchange = averager, exchange

    def done(self) -> bool:
        """Whether :meth:`apply` would return without waiting for another rank."""
        return self._exchange.done()

    def apply(self) -> Averaged:
        """Wait for the average and update the parameters: ``p ← p + (average - snapshot)``.

        Local progress since the snapshot is kept. Buffers and the optimizer's state are running
        averages themselves, so they take the new value: adding a difference could make a variance
        negative.

        Raises:
            DivergedError: No rank had finite parameters.
            StateError: The round was applied before.
        """
        return self._averager._land(self, self._exchange)


@final
class ParameterAverager:
    """Averages parameters and buffers (floating: weighted; integer: maximum) of a model.

    Args:
        model: A model on the device of the group. Its tensors are looked up for every average.
        group: The ranks.
        backend: How values are exchanged.
        optimizer: An optimizer whose floating state is averaged with the same weights. Of its
            step counters the maximum is taken.
        outer: Steps from the last average to the new one. The first "last average" is the current
            parameters, equal on all ranks.

    Raises:
        ValueError: The model has no parameters, or the state of the optimizer cannot be averaged.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        backend: Backend,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        outer: OuterOptimizer | None = None,
    ) -> None:
        self._model, self._group = model, group
        self._wire = wire_for(group, backend)
        self._buffers = SharedBuffers(model, group, backend)
        self._optimizer = None if optimizer is None else OptimizerTensors(optimizer)
        self._snapshot: tuple[list[Slot], Buckets] | None = None
        self._round: Round | None = None
        parameters = self._parameters()
        if not parameters:
            raise ValueError(f"{type(model).__name__} has no parameters: there is nothing to share")
        self._outer = outer
        double = any(parameter.dtype == torch.float64 for parameter in parameters)
        self._flat_dtype = torch.float64 if double else torch.float32
        self._last = None if outer is None else self._flat(parameters)

    @torch.no_grad()
    def average(self, samples: int) -> Averaged:
        """Average now and wait for the result; collective.

        Args:
            samples: Samples this rank has trained since its last average (:meth:`average`, or the
                :meth:`start` that took a snapshot). With 0 the rank does not count.

        Raises:
            DivergedError: No rank had finite parameters.
            StateError: A round is in progress.
        """
        self._check_free()
        parameters = self._parameters()
        if self._group.world_size == 1 and self._outer is None:
            return _alone(parameters, samples)
        slots, tensors, changed = self._load(parameters)
        exchange = self._wire.send(slots, tensors, samples, [changed], waits=True)
        sums = exchange.wait()
        if not _counts(sums):
            return Averaged(0.0, sums.finite, sums.weight)
        averages = exchange.averages()
        targets = averages[: len(parameters)]
        after = _norm(targets)
        # The parameters are overwritten below, so their memory can hold the difference until then.
        torch._foreach_sub_(parameters, _narrowed(targets, parameters))
        averaged = _averaged(sums, _norm(parameters), after)
        torch._foreach_copy_(parameters, self._stepped(targets))
        self._replace_others(averages[len(parameters) :], sums, samples)
        return averaged

    @torch.no_grad()
    def start(self, samples: int) -> Round:
        """Take a snapshot and start to average it; one round at a time.

        Args:
            samples: As for :meth:`average`.

        Raises:
            StateError: A round is in progress.
        """
        self._check_free()
        parameters = self._parameters()
        slots, tensors, changed = self._load(parameters)
        snapshot = self._room_for(slots[: len(parameters)])
        snapshot.fill(parameters)
        tensors[: len(parameters)] = snapshot.views
        sent = self._wire.send(slots, tensors, samples, [changed])
        self._round, self._samples = Round(self, sent), samples
        return self._round

    @torch.no_grad()
    def _land(self, landing: Round, exchange: Exchange) -> Averaged:
        """Apply a round."""
        if landing is not self._round or self._snapshot is None:
            raise StateError("this round was applied before: start another one")
        self._round = None
        sums = exchange.wait()
        if not _counts(sums):
            return Averaged(0.0, sums.finite, sums.weight)
        averages = exchange.averages()
        parameters, snapshot = self._parameters(), self._snapshot[1].views
        targets = averages[: len(parameters)]
        after = _norm(targets)
        torch._foreach_sub_(snapshot, targets)
        averaged = _averaged(sums, _norm(snapshot), after)
        stepped = self._stepped(targets)
        if not averaged.finite:
            torch._foreach_copy_(parameters, stepped)
        else:
            torch._foreach_sub_(parameters, _narrowed(snapshot, parameters))
            if stepped is not targets:
                further = torch._foreach_sub(stepped, _narrowed(targets, stepped))
                torch._foreach_add_(parameters, list(further))
        self._replace_others(averages[len(parameters) :], sums, self._samples)
        return averaged

    def begin_again(self) -> None:
        """Forget an average under way: the parameters are those of an earlier average again."""
        self._round = None
        if self._outer is not None:
            self._last = self._flat(self._parameters())

    def _check_free(self) -> None:
        if self._round is not None:
            raise StateError("an average is under way: apply it before another one begins")

    def _parameters(self) -> list[Tensor]:
        """Return the live floating parameters, tied ones once."""
        found = [as_real(parameter) for parameter in self._model.parameters()]
        return [parameter for parameter in found if parameter.is_floating_point()]

    def _load(self, parameters: list[Tensor]) -> tuple[list[Slot], list[Tensor | None], bool]:
        """Return all values to average: parameters, then buffers, then the optimizer's state.

        Also return whether the ranks have to agree on the buffers again.
        """
        trained = [p.requires_grad for p in self._model.parameters() if _is_inexact(p)]
        buffers, changed = self._buffers.tensors()
        slots = [
            # Frozen parameters are summed exactly, so that rounding does not change them.
            Slot(p.shape, summed_as(p, exact=not moves), checked=True)
            for p, moves in zip(parameters, trained, strict=True)
        ]
        slots += self._buffers.slots
        tensors: list[Tensor | None] = [*parameters, *buffers]
        if self._optimizer is not None:
            slots += self._optimizer.slots
            tensors += self._optimizer.tensors()
        return slots, tensors, changed

    def _room_for(self, slots: list[Slot]) -> Buckets:
        if self._snapshot is None or self._snapshot[0] != slots:
            self._snapshot = slots, Buckets(slots, self._group.device)
        return self._snapshot[1]

    def _stepped(self, targets: list[Tensor]) -> list[Tensor]:
        """Return the new parameters: the averages, or the step of the outer optimizer."""
        if self._outer is None or self._last is None:
            return targets
        self._last = self._outer.step(self._last, self._flat(targets))
        parts = torch.split(self._last, [target.numel() for target in targets])
        return [part.view(target.shape) for part, target in zip(parts, targets, strict=True)]

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1).to(self._flat_dtype) for tensor in tensors])

    def _replace_others(self, averages: list[Tensor], sums: Sums, samples: int) -> None:
        """Write the averages to the buffers, and to the optimizer if it takes part."""
        count = len(self._buffers.slots)
        if self._optimizer is not None:
            self._optimizer.take(averages[count:])
        if sums.extra[0]:  # a rank has other buffers than before
            self._buffers.average_again(samples if sums.finite else 0)
        else:
            self._buffers.take(averages[:count])


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _alone(parameters: list[Tensor], samples: int) -> Averaged:
    """Return the result for a single rank: its parameters stay, and are only checked."""
    # In half precision the sum itself would overflow.
    sums = [p.sum(dtype=torch.promote_types(p.dtype, torch.float32)) for p in parameters]
    finite = samples == 0 or bool(torch.stack([one.isfinite() for one in sums]).all())
    _counts(Sums(float(samples) if finite else 0.0, int(not finite), finite, []))
    return Averaged(0.0, finite, float(samples))


def _counts(sums: Sums) -> bool:
    """Whether there is an average; without one all ranks keep their values.

    Raises:
        DivergedError: No rank had finite parameters.
    """
    if sums.weight == 0 and sums.broken:
        raise DivergedError(
            "no rank has finite parameters left: lower the learning rate, or limit the gradients "
            "with max_grad_norm",
            epoch=0,
            step=0,
        )
    return sums.weight > 0


def _averaged(sums: Sums, distance: float, after: float) -> Averaged:
    divergence = 0.0 if after < _TINY else distance / after
    if not sums.finite or not math.isfinite(divergence):
        return Averaged(0.0, False, sums.weight)
    return Averaged(divergence, True, sums.weight)


def _norm(tensors: list[Tensor]) -> float:
    """Return the norm of all values together."""
    norm = _norm_in(tensors, torch.float32)
    return norm if math.isfinite(norm) else _norm_in(tensors, torch.float64)


def _norm_in(tensors: list[Tensor], least: torch.dtype) -> float:
    """Return the norm, computed in float64 for float64 and in at least ``least`` for others."""
    total: Tensor | float = 0.0
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        within = torch.promote_types(dtype, least)
        norms = torch._foreach_norm(alike, 2, dtype=None if within == dtype else within)
        total = total + torch.stack(list(norms)).double().square().sum()
    return math.sqrt(float(total))


def _narrowed(values: list[Tensor], like: list[Tensor]) -> list[Tensor]:
    """Convert float64 values to the other tensors' dtype: mixed dtypes are far slower."""
    return [
        value.to(other.dtype) if value.dtype == torch.float64 else value
        for value, other in zip(values, like, strict=True)
    ]
