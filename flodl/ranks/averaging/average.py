"""Average values over the ranks, weighted by the samples that each rank has trained.

    p̄ = Σ (n[r] / Σn) · p[r]

One buffer per dtype holds ``n · value`` for all averaged values and, at its end, ``n`` itself. The
sum over the ranks is divided by the summed weight. So a rank without samples, or with values that
are not finite, takes part with zeros and weight 0. The other ranks need no message about it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar, final

import torch
from torch import Tensor, nn

from flodl.errors import DivergedError, StateError
from flodl.ranks.averaging.backends import Exchange, Sums, wire_for
from flodl.ranks.averaging.buckets import SUMMED, Buckets, Slot, as_real, summed_as
from flodl.ranks.averaging.rounded import wire_in
from flodl.ranks.averaging.state_tensors import FrozenParameters, OptimizerTensors, SharedBuffers
from flodl.ranks.settings import ExchangeFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flodl.ranks.averaging.outer_optimizer import OuterOptimizer
    from flodl.ranks.group import Group
    from flodl.ranks.settings import Backend

    T = TypeVar("T")

_CHANGED, _WRITTEN = range(2)
"""Places of the extra numbers: ranks with other buffers, and ranks with other frozen parameters."""

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
@dataclass(frozen=True, slots=True)
class _Sent:
    """What a rank brings to an average.

    Attributes:
        slots: Trained parameters, buffers, and the state of the optimizer.
        tensors: A tensor per slot.
        told: The extra numbers.
        bases: For each trained parameter, from which value the change is sent; None if it is sent
            itself.
        trained: For each parameter, whether it is trained.
        frozen_slots: Slots of the other parameters, which only travel if a rank has written to one.
        frozen: Their values.
        samples: The weight of this rank.
    """

    slots: list[Slot]
    tensors: list[Tensor | None]
    told: tuple[float, float]
    bases: list[Tensor | None]
    trained: list[bool]
    frozen_slots: list[Slot]
    frozen: list[Tensor]
    samples: int


@final
@dataclass(frozen=True, slots=True)
class _Received:
    """What an average has brought.

    Attributes:
        places: Places of the parameters that were averaged.
        targets: Their averages.
        norms: The norms of the others.
        others: The averages of buffers, and of the state of the optimizer.
        sums: The sums.
    """

    places: list[int]
    targets: list[Tensor]
    norms: list[Tensor]
    others: list[Tensor]
    sums: Sums


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
        format: How parameters are written. If they are rounded, the ranks send what has changed
            since the last average.

    Attributes:
        wire: Exchanges the parameters.

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
        format: ExchangeFormat = ExchangeFormat.FLOAT32,
    ) -> None:
        self._model, self._group = model, group
        self.wire = wire_in(format, group, backend)
        self._buffers = SharedBuffers(model, group, backend)
        self._optimizer = None if optimizer is None else OptimizerTensors(optimizer)
        self._frozen_wire = wire_for(group, backend)
        self._snapshot: tuple[list[Slot], Buckets] | None = None
        self._round: Round | None = None
        parameters = self._parameters()
        if not parameters:
            raise ValueError(f"{type(model).__name__} has no parameters: there is nothing to share")
        self._outer = outer
        double = any(parameter.dtype == torch.float64 for parameter in parameters)
        self._flat_dtype = torch.float64 if double else torch.float32
        self._last = None if outer is None else self._flat(parameters)
        self._rounds = format is not ExchangeFormat.FLOAT32
        trained = self._trained()
        self._frozen = FrozenParameters(_chosen(parameters, trained, of=False))
        self._base = self._new_base(parameters, trained)

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
            self._base = self._new_base(parameters, self._trained())
            return _alone(parameters, samples)
        sent = self._load(parameters, samples)
        exchange = self.wire.send(sent.slots, sent.tensors, samples, sent.told, waits=True)
        sums = exchange.wait()
        if not _counts(sums):
            return Averaged(0.0, sums.finite, sums.weight)
        got = self._received(sent, exchange, sums)
        own = [parameters[place] for place in got.places]
        after = _norm(got.targets, got.norms)
        # The parameters are overwritten below, so their memory can hold the difference until then.
        torch._foreach_sub_(own, _narrowed(got.targets, own))
        averaged = _averaged(got.sums, _norm(own), after)
        torch._foreach_copy_(own, self._stepped(got.targets))
        self._base = self._new_base(parameters, sent.trained)
        if sums.extra[_WRITTEN]:
            self._frozen.settle(_chosen(parameters, sent.trained, of=False))
        self._replace_others(got.others, got.sums, samples)
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
        snapshot = self._room_for(self._slots(parameters, self._trained()))
        snapshot.fill(parameters)
        self._sent = sent = self._load(snapshot.views, samples)
        self._round = Round(self, self.wire.send(sent.slots, sent.tensors, samples, sent.told))
        return self._round

    @torch.no_grad()
    def _land(self, landing: Round, exchange: Exchange) -> Averaged:
        """Apply a round."""
        if landing is not self._round or self._snapshot is None:
            raise StateError("this round was applied before: start another one")
        self._round, sent = None, self._sent
        sums = exchange.wait()
        if not _counts(sums):
            return Averaged(0.0, sums.finite, sums.weight)
        got = self._received(sent, exchange, sums)
        live, snapshot = self._parameters(), self._snapshot[1].views
        parameters = [live[place] for place in got.places]
        passed = [snapshot[place] for place in got.places]
        after = _norm(got.targets, got.norms)
        torch._foreach_sub_(passed, got.targets)
        averaged = _averaged(got.sums, _norm(passed), after)
        stepped = self._stepped(got.targets)
        if not averaged.finite:
            torch._foreach_copy_(parameters, stepped)
        else:
            torch._foreach_sub_(parameters, _narrowed(passed, parameters))
            if stepped is not got.targets:
                further = torch._foreach_sub(stepped, _narrowed(got.targets, stepped))
                torch._foreach_add_(parameters, list(further))
        common = dict(zip(got.places, stepped, strict=True))
        self._base = self._new_base(
            [common.get(at, one) for at, one in enumerate(live)], sent.trained
        )
        if sums.extra[_WRITTEN]:
            self._frozen.unsettle()
        self._replace_others(got.others, got.sums, sent.samples)
        return averaged

    def begin_again(self) -> None:
        """Forget an average under way: the parameters are those of an earlier average again."""
        self._round = None
        parameters = self._parameters()
        if self._outer is not None:
            self._last = self._flat(parameters)
        self._base = self._new_base(parameters, self._trained())
        self.wire.load_state({})

    def base(self) -> dict[str, Tensor]:
        """Return the values to which the ranks send changes, for a rank that joins."""
        return {str(at): one for at, one in enumerate(self._base) if one is not None}

    def load_base(self, base: Mapping[str, Tensor]) -> None:
        """Continue with the result of :meth:`base` of another rank."""
        for name, values in base.items():
            self._base[int(name)] = values.to(self._group.device, copy=True)

    def _check_free(self) -> None:
        if self._round is not None:
            raise StateError("an average is under way: apply it before another one begins")

    def _parameters(self) -> list[Tensor]:
        """Return the live floating parameters, tied ones once."""
        found = [as_real(parameter) for parameter in self._model.parameters()]
        return [parameter for parameter in found if parameter.is_floating_point()]

    def _trained(self) -> list[bool]:
        """Return for each of the floating parameters whether it is trained."""
        return [p.requires_grad for p in self._model.parameters() if _is_inexact(p)]

    def _new_base(self, parameters: list[Tensor], trained: list[bool]) -> list[Tensor | None]:
        """Return copies of values that all ranks have now; None where changes are not sent."""
        return [
            one.to(summed_as(one), copy=True) if self._rounds and moves else None
            for one, moves in zip(parameters, trained, strict=True)
        ]

    def _slots(self, parameters: list[Tensor], trained: list[bool]) -> list[Slot]:
        """Return a slot per parameter."""
        bases = zip(parameters, trained, self._base, strict=True)
        return [
            # Frozen parameters are summed exactly, so that rounding does not change them.
            Slot(
                one.shape,
                summed_as(one, exact=not moves),
                checked=True,
                rounds=moves and base is not None,
            )
            for one, moves, base in bases
        ]

    def _load(self, parameters: list[Tensor], samples: int) -> _Sent:
        """Return all values to average: parameters, then buffers, then the optimizer's state.

        Args:
            parameters: The parameters, or a snapshot of them.
            samples: The weight of this rank.
        """
        trained = self._trained()
        buffers, changed = self._buffers.tensors()
        slots = self._slots(parameters, trained)
        frozen = _chosen(slots, trained, of=False), _chosen(parameters, trained, of=False)
        bases = _chosen(self._base, trained)
        if self._group.world_size == 1:
            bases = [None] * len(bases)  # the sum of a change and its base may be another value
        tensors: list[Tensor | None] = [
            one if base is None else one - base
            for one, base in zip(_chosen(parameters, trained), bases, strict=True)
        ]
        slots = _chosen(slots, trained) + self._buffers.slots
        tensors += buffers
        if self._optimizer is not None:
            slots += self._optimizer.slots
            tensors += self._optimizer.tensors()
        if not any(trained):
            slots, tensors = [*slots, SUMMED], [*tensors, None]
        live = _chosen(self._parameters(), trained, of=False)  # a snapshot has another type
        told = float(changed), float(self._frozen.changed(live))
        return _Sent(slots, tensors, told, bases, trained, *frozen, samples)

    def _received(self, sent: _Sent, exchange: Exchange, sums: Sums) -> _Received:
        """Return what an exchange has brought; if a rank has written to frozen ones, them too."""
        averages, count = exchange.averages(), sum(sent.trained)
        moving = [
            average if base is None else base + average
            for average, base in zip(averages[:count], sent.bases, strict=True)
        ]
        others = averages[count : len(averages) - (count == 0)]
        places = [place for place, moves in enumerate(sent.trained) if moves]
        if sums.extra[_WRITTEN] and sent.frozen:
            weight = sent.samples if sums.finite else 0
            again = self._frozen_wire.send(sent.frozen_slots, sent.frozen, weight, waits=True)
            further = again.wait()
            _counts(further)
            sums = replace(sums, finite=sums.finite and further.finite)
            frozen = again.averages()
        elif self._outer is not None:
            frozen = [one.double() for one in sent.frozen]
        else:
            return _Received(places, moving, self._frozen.norms(sent.frozen), others, sums)
        every = list(range(len(sent.trained)))
        rest = iter(frozen)
        mixed = iter(moving)
        targets = [next(mixed if moves else rest) for moves in sent.trained]
        return _Received(every, targets, [], others, sums)

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
        if sums.extra[_CHANGED]:  # a rank has other buffers than before
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


def _chosen(items: Sequence[T], flags: Sequence[bool], *, of: bool = True) -> list[T]:
    """Return the items whose flag is ``of``."""
    return [item for item, flag in zip(items, flags, strict=True) if flag is of]


def _norm(tensors: list[Tensor], further: Sequence[Tensor] = ()) -> float:
    """Return the norm of all values together, with further ones of which the norms are known."""
    norm = _norm_in(tensors, torch.float32, further)
    return norm if math.isfinite(norm) else _norm_in(tensors, torch.float64, further)


def _norm_in(tensors: list[Tensor], least: torch.dtype, further: Sequence[Tensor]) -> float:
    """Return the norm, computed in float64 for float64 and in at least ``least`` for others."""
    total: Tensor | float = 0.0
    if further:
        total = torch.stack(list(further)).square().sum()
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
