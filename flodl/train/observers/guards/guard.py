"""What a guard knows: which losses are good, which batches are left out, how often it went back.

A rule says which loss is a spike. Callbacks learn when a training has gone back.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import TYPE_CHECKING, Any, Self, final

from flodl.checkpoint.generators import generators_kept
from flodl.setting import Settings, UnfitError, Whole, setting
from flodl.train.callbacks import Rewind

if TYPE_CHECKING:
    from flodl.data import DataLoader
    from flodl.train.callbacks import Hooks, TrainingRun
    from flodl.train.observers.journal import Act


VARIABLE = "FLODL_GUARDS"
"""The ``guards:`` of a manifest as JSON; settings that the program makes itself take precedence."""


def _spike(spike: Any) -> float | None:
    if spike is None:
        return None
    if not (_is_number(spike) and 1 < spike < math.inf):
        raise UnfitError("it must be a number above 1, or None")
    return float(spike)


def _factor(lower_lr: Any) -> float:
    if not (_is_number(lower_lr) and 0 < lower_lr <= 1):
        raise UnfitError("it must be above 0 and at most 1")
    return float(lower_lr)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(least: int) -> Whole:
    return Whole(least, "a whole number")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Guards(Settings):
    """When a training goes back, and how far it may go.

    Raises:
        ValueError: A value is out of its range.
    """

    spoken = "guards({}={!r})"

    spike: float | None = setting(30.0, _spike, key="spike", form="Annotated[float, Field(gt=1)]")
    """Distance of a spike from the median of the last losses, in multiples of their spread."""
    window: int = setting(64, _whole(16), key="window")
    """Most losses that the median is taken of; the first 16 are not judged."""
    snapshots: int = setting(2, _whole(1), key="snapshots")
    """States kept in host memory."""
    every: int | None = setting(
        None, _whole(1), key="every", usual="so that they take at most 0.25 % of the time"
    )
    """Optimizer steps between two snapshots. Several ranks use 100 unless this is set."""
    memory: int | None = setting(
        None, _whole(1), key="memory", usual="half of the available memory"
    )
    """Most bytes of all snapshots of a process."""
    attempts: int = setting(3, _whole(1), key="attempts")
    """How often it goes back for one place in the data before it gives up."""
    lower_lr: float = setting(0.5, _factor, key="lower_lr", form="Factor")
    """Factor of the learning rate from the second attempt at one place on; 1 keeps the rate."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings of a mapping, such as the ``guards:`` of a manifest.

        Raises:
            ValueError: A key is unknown, or a value is out of its range.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"guards({name}=…): use one of {', '.join(known)}")
        return cls(**values)


def guards_outside(environ: Mapping[str, str] = os.environ) -> Guards | None:
    """Return the guards that a manifest asks for; None for none.

    Raises:
        ValueError: The variable that hands them down is malformed.
    """
    text = environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        value = json.loads(text)
        if isinstance(value, bool):
            return Guards() if value else None
        return Guards.of(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{VARIABLE}={text!r} in the environment does not describe guards: {error}"
        ) from error


@final
class Setback(Exception):  # noqa: N818 - the loop handles it; no program sees it
    """A training must go back: a loss or a parameter is bad.

    Args:
        what: What was found, for people.
        epoch: Counted from 0.
        batch: The batch that showed it, counted from 0 in its epoch.
        broken: Whether the parameters were not finite before that batch, so that the step before it
            is part of the cause.
    """

    def __init__(self, what: str, epoch: int, batch: int, *, broken: bool = False) -> None:
        super().__init__(what)
        self.what, self.epoch, self.batch, self.broken = what, epoch, batch, broken


@final
@dataclass(frozen=True, slots=True)
class Decision:
    """How a training continues after a setback.

    Attributes:
        epoch: Counted from 0.
        batches: The batches that are left out, ascending; if ranks share steps, whole steps.
        attempt: How often it goes back for this place, counted from 1.
        factor: Of the learning rate from these batches on; 1 keeps it.
    """

    epoch: int
    batches: Sequence[int]
    attempt: int
    factor: float

    def as_json(self, samples: Sequence[int]) -> dict[str, Any]:
        """Return what the journal keeps, with the numbers of the samples."""
        form: dict[str, Any] = {
            "epoch": self.epoch,
            "batches": list(self.batches),
            "samples": list(samples),
        }
        return form if self.factor == 1 else form | {"lr_factor": self.factor}


@final
class Guard:
    """Judges the losses of a training, and decides what to leave out.

    Args:
        settings: The limits.
        batches_per_step: Batches of all ranks in one optimizer step.
        batches_per_epoch: Batches of all ranks in one epoch.

    Attributes:
        rule: Tells spikes from good losses.
        attempt: How often the training went back for the latest place.
    """

    def __init__(self, settings: Guards, *, batches_per_step: int, batches_per_epoch: int) -> None:
        self.settings = settings
        self._group, self._length = batches_per_step, batches_per_epoch
        self.rule = SpikeRule(settings.spike, settings.window)
        self._skips: defaultdict[int, set[int]] = defaultdict(set)
        self._factors: dict[tuple[int, int], float] = {}
        self._place: tuple[int, int, int] | None = None
        """Epoch, first and last batch that the last decision left out."""
        self.attempt = 0

    def skips(self, epoch: int) -> set[int]:
        """Return the batches of an epoch that are left out; it grows with :meth:`decide`."""
        return self._skips[epoch]

    def all_skips(self) -> list[tuple[int, int]]:
        """Return epoch and number of all batches that are left out, as far as they are known."""
        return sorted((epoch, batch) for epoch, all_ in self._skips.items() for batch in all_)

    def factor(self, epoch: int, batch: int) -> float:
        """Return the factor of the learning rate when a batch is left out."""
        return self._factors.get((epoch, batch), 1.0)

    def told(self, loss: float) -> str:
        """Return what is wrong with a bad loss, for people."""
        limit = self.rule.limit
        above = f", above the limit of {limit:.6g}" if loss > limit else ""
        return f"the loss is {loss:.6g}{above}"

    def decide(self, setback: Setback, still: Callable[[int, int], bool]) -> Decision | None:
        """Decide which batches are left out; None if the training must end.

        It must end after too many attempts, and if the damage is older than every snapshot.

        Args:
            setback: What happened.
            still: Whether a batch of an epoch can still be left out.
        """
        size, known, epoch = self._group, self._place, setback.epoch
        start = setback.batch // size * size
        stop = min(start + size, self._length)
        again = known is not None and known[0] == epoch and start - known[2] <= _NEAR * size
        attempt = self.attempt + 1 if again else 1
        if attempt > self.settings.attempts:
            return None
        if again and known is not None:
            start = min(start, known[1]) - size * 2 ** (attempt - 2)
        elif setback.broken:
            start -= size
        batches = [batch for batch in range(max(start, 0), stop) if still(epoch, batch)]
        if not batches:
            return None
        factor = self.settings.lower_lr if attempt > 1 else 1.0
        self.attempt, self._place = attempt, (epoch, batches[0], batches[-1])
        decision = Decision(epoch, batches, attempt, factor)
        self._leave_out(decision)
        return decision

    def farewell(self, setback: Setback, found: str) -> str:
        """Return why the training ends.

        Args:
            setback: What happened.
            found: A sentence about the first value that is not finite.
        """
        return (
            f"{setback.what} in epoch {setback.epoch}, batch {setback.batch} (both counted from "
            f"0), and the guards give up after {self.attempt} of {self.settings.attempts} attempts "
            f"at this place. {found}"
        )

    def _leave_out(self, decision: Decision) -> None:
        self._skips[decision.epoch].update(decision.batches)
        if decision.factor != 1:
            self._factors[decision.epoch, decision.batches[0]] = decision.factor

    # --- State ---------------------------------------------------------------------------------

    def state(self, epoch: int) -> dict[str, Any]:
        """Return the state for a checkpoint in this epoch, as JSON values."""
        return {
            "rule": self.rule.state(),
            "skips": {str(one): sorted(b) for one, b in self._skips.items() if b and one >= epoch},
            "factors": [[*at, factor] for at, factor in self._factors.items() if at[0] >= epoch],
            "place": list(self._place) if self._place is not None else None,
            "attempt": self.attempt,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of :meth:`state`; an empty one changes nothing."""
        if not state:
            return
        self.rule.load(state["rule"])
        for epoch, batches in state["skips"].items():
            self._skips[int(epoch)].update(map(int, batches))
        for epoch, batch, factor in state["factors"]:
            self._factors[int(epoch), int(batch)] = float(factor)
        place = state["place"]
        self._place = (int(place[0]), int(place[1]), int(place[2])) if place else None
        self.attempt = int(state["attempt"])

    def replay(self, acts: Iterable[Act], epoch: int, batch: int) -> list[Act]:
        """Leave out what a journal says from a position on.

        Args:
            acts: The journal of the training that is continued.
            epoch: Complete epochs.
            batch: Batches of the next epoch that are done.

        Returns:
            The acts that have an effect after the position.
        """
        found = []
        for act in acts:
            if act.by != NAME or act.act != "skip" or not isinstance(act.value, Mapping):
                continue
            at, batches = int(act.value["epoch"]), [int(one) for one in act.value["batches"]]
            if not batches or (at, batches[-1]) < (epoch, batch):
                continue
            factor = float(act.value.get("lr_factor", 1.0))
            self._leave_out(Decision(at, batches, 1, factor))
            found.append(act)
        return found


_NEAR = 16
"""Steps after the batches that were left out in which another setback belongs to them."""

NAME = "guard"
"""Who acts, in the journal."""


_RENEWED = 16
"""Losses after which the limit is computed again, the first time after so many. Counted, so that it
does not depend on when the losses are read."""

_NORMAL = 1.4826
"""The standard deviation of a normal distribution by its median absolute deviation."""

_LEAST_SPREAD = 0.05
"""Least spread, as a part of the median: losses that are nearly equal are not spikes."""

_ABOVE_LARGEST = 2.0
"""A spike is more than so many times the largest of the last losses."""

_LEAST_OF_FIRST = 0.001
"""Least spread, as a part of the first median."""


@final
class SpikeRule:
    """Compares each loss with those before it: ``loss > m + spike · max(1.4826 · d, 0.05 · |m|)``.

    ``m`` is the median of the last losses and ``d`` the median of their distances from it. A spike
    is also more than twice the largest of them, because some losses have rare large values. And the
    spread is at least a thousandth of the first median: near the end of a good training, losses are
    so small that their outliers do no harm. The limit is computed again after every 16 losses. A
    loss that is not finite always counts.

    Args:
        spike: Factor of the spread; None: only losses that are not finite count.
        window: Most losses that are compared with.
    """

    def __init__(self, spike: float | None, window: int) -> None:
        self._spike = spike
        self._losses: deque[float] = deque(maxlen=window)
        self._count = 0
        self._first: float | None = None
        self._limit = math.inf

    def first_bad(self, losses: Iterable[float]) -> int | None:
        """Take losses up to the first bad one; return its place, None if all are good."""
        keep, spike = self._losses.append, self._spike
        for place, loss in enumerate(losses):
            # False for nan, too.
            if not loss <= self._limit or loss - loss != 0.0:
                return place
            if spike is None:
                continue
            keep(loss)
            self._count += 1
            if self._count % _RENEWED == 0:
                self._renew(spike)
        return None

    @property
    def limit(self) -> float:
        """The largest loss that is not a spike now."""
        return self._limit

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        limit = self._limit if math.isfinite(self._limit) else None
        losses = list(self._losses)
        return {"losses": losses, "count": self._count, "first": self._first, "limit": limit}

    def load(self, state: Mapping[str, Any]) -> Self:
        """Continue from the result of :meth:`state`."""
        self._losses = deque(map(float, state["losses"]), maxlen=self._losses.maxlen)
        self._count = int(state["count"])
        self._first = None if state["first"] is None else float(state["first"])
        self._limit = math.inf if state["limit"] is None else float(state["limit"])
        return self

    def _renew(self, spike: float) -> None:
        middle = median(self._losses)
        if self._first is None:
            self._first = middle
        spread = _NORMAL * median(abs(loss - middle) for loss in self._losses)
        least = max(_LEAST_SPREAD * abs(middle), _LEAST_OF_FIRST * abs(self._first))
        spiking = middle + spike * max(spread, least)
        self._limit = max(spiking, _ABOVE_LARGEST * max(self._losses))


def rewind_of(
    setback: Setback, decision: Decision, loader: DataLoader, step: int, restored: int
) -> Rewind:
    """Describe a decision for callbacks.

    Args:
        setback: What happened.
        decision: What follows from it.
        loader: The data.
        step: Optimizer steps when it happened.
        restored: Optimizer steps of the restored state.
    """
    rows = (loader.rows(decision.epoch, batch) for batch in decision.batches)
    return Rewind(
        step=step,
        restored_step=restored,
        epoch=decision.epoch,
        batches=tuple(decision.batches),
        samples=tuple(int(one) for numbers in rows for one in numbers),
        attempt=decision.attempt,
        reason=setback.what,
    )


def tell_callbacks(hooks: Hooks, run: TrainingRun, rewind: Rewind) -> None:
    """Call ``on_rewind``; random numbers that a callback draws do not change the next steps."""
    with generators_kept():
        hooks.call("on_rewind", run, rewind)
