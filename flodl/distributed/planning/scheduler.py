"""Who trains which batches next: windows cut out of a queue that all ranks hold alike.

Pure functions over immutable values; the worker and the ghost cluster both call them. Batches are
numbered through all epochs: batch ``i`` of epoch ``e`` is ``e · batches_per_epoch + i``. The queue
is a tuple of half-open spans ``(start, stop)``, ascending and disjoint.

The life of a window::

    state, plan = open_window(state, config)      # leases leave the queue
    ...each rank trains its lease, or the part of it that fits into the time...
    state, outcome = close_window(state, plan, reports, config)   # what is unused returns

ASYNC opens window k+1 before window k is closed; everything else closes first. Where the ranks
could not average, ``extend_window`` makes the window longer instead of closing it: nobody knows
what the others have trained, so what is left of a lease stays with its owner. ``open_window``
gives None where nothing is left before the next *barrier*: the end of an epoch at which something
is due (a checkpoint, an evaluation), or of the training. ``pass_barrier`` goes on behind it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

from flodl.distributed.config import Policy
from flodl.distributed.planning.elche import (
    Counts,
    ElCheConfig,
    ElCheState,
    RankReport,
    clamp_total,
    communication,
    elche_step,
    initial_state,
    nudge,
    split,
)
from flodl.distributed.planning.guard import Advice, GuardState, judge
from flodl.distributed.planning.spans import Spans, front, insert, size

WARM_UP_ROOM = 8
"""How many times its count a rank may train in the first window, while others are slower."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """Everything that decides the windows, equal on all ranks."""

    elche: ElCheConfig
    policy: Policy
    """CADENCE or ASYNC; SYNC takes ``world_size`` batches per step and needs no windows."""
    epochs: int
    batches_per_epoch: int
    barrier_every: int = 0
    """An epoch ``e`` ends at a barrier if ``(e + 1) % barrier_every == 0``; 0: only the last."""
    stream_epochs: bool = True
    """False: every epoch ends at a barrier."""
    progressive: bool = True
    """False: shares are fixed at the start of each epoch."""
    partition_ratios: tuple[float, ...] | None = None
    """Fixed shares, normalised; windows then follow them and nothing is balanced."""
    timed: bool = True
    """Whether windows may end by time; False counts batches."""
    divergence_threshold: float = 0.05
    divergence_guard: bool = True
    max_overshoot: int | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.elche.world_size

    def barrier_from(self, epoch: int) -> int:
        """Return the first epoch from ``epoch`` on that ends at a barrier."""
        last = self.epochs - 1
        if not self.stream_epochs:
            return min(epoch, last)
        if not self.barrier_every:
            return last
        return min(last, (epoch // self.barrier_every + 1) * self.barrier_every - 1)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleState:
    """Where the training stands; kept in checkpoints as JSON."""

    elche: ElCheState
    guard: GuardState = field(default_factory=GuardState)
    window: int = 0
    """Windows opened so far."""
    queue: Spans = ()
    """Batches nobody has; those of epochs from :attr:`next_epoch` on are implied."""
    own: tuple[Spans, ...] = ()
    """Batches that belong to one rank."""
    leased: tuple[Spans, ...] = ()
    """Batches of each window that is open."""
    next_epoch: int = 0
    """First epoch whose batches were not handed out to the queue yet."""
    complete: int = 0
    """Epochs of which every batch has been trained."""
    barrier: int = 0
    """The epoch at whose end everybody stops and looks around."""
    position: int = 0
    """Batches consumed by all ranks together; those of an open window as planned."""
    overshoot: int = 2
    """ASYNC: batches a rank may train before an average that is under way arrives."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> ScheduleState:
        """Read what :meth:`as_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: It is something else.
        """
        elche = form["elche"]
        return cls(
            elche=ElCheState(
                int(elche["anchor"]),
                tuple(map(int, elche["counts"])),
                tuple(map(float, elche["ms"])),
                bool(elche["calibrated"]),
            ),
            guard=GuardState(tuple(map(float, form["guard"]["maxima"]))),
            queue=_spans(form["queue"]),
            own=tuple(map(_spans, form["own"])),
            leased=tuple(map(_spans, form["leased"])),
            **{
                name: int(form[name])
                for name in (
                    "window",
                    "next_epoch",
                    "complete",
                    "barrier",
                    "position",
                    "overshoot",
                )
            },
        )


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class WindowPlan:
    """One window, the same on every rank."""

    index: int
    leases: tuple[Spans, ...]
    """What each rank may train, in this order; empty for a rank that only averages."""
    counts: Counts
    """What each rank is expected to train; a timed window may give more or fewer."""
    timed: bool
    """Whether a rank stops at the batch whose end is nearest ``window_ms``."""
    window_ms: float
    start: int
    """The position at which the window begins, for learning rates."""
    warm_up: bool
    """Whether nothing was measured yet: the first batch of each rank is not, and a rank that is
    done with its count may go on while its lease lasts."""

    def lease_size(self, rank: int) -> int:
        """Batches a rank may train at most."""
        return size(self.leases[rank])

    def rate_position(self, rank: int, index: int) -> int:
        """Return the position in the learning-rate schedule of a rank's batch ``index``.

        ``start + floor(index · Σc / c[rank])``: each rank passes through the whole window. Beyond
        its count each batch is one position.
        """
        own, total = self.counts[rank], sum(self.counts)
        if index >= own:
            return self.start + (total + index - own if own else 0)
        return self.start + index * total // own


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class WindowReport:
    """What one rank tells about a window."""

    wall_ms: float
    """Time of the batches that were measured."""
    batches: int
    """Trained."""
    sync_ms: float = 0.0
    divergence: float = 0.0
    measured: int | None = None
    """Batches that ``wall_ms`` covers; None: all."""

    def for_elche(self) -> RankReport:
        """Return the part that decides the next counts."""
        measured = self.batches if self.measured is None else self.measured
        return RankReport(self.wall_ms, measured, self.sync_ms)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class WindowOutcome:
    """What closing a window brought to light."""

    comm_ms: float
    waits_ms: tuple[float, ...]
    advice: Advice
    anchor: tuple[int, int]
    """Before and after."""
    complete: range
    """Epochs of which every batch has been trained now."""


def initial_schedule(
    config: ScheduleConfig, speeds: Sequence[float] | None = None
) -> ScheduleState:
    """Return the state at the beginning of a training.

    Args:
        config: Settings.
        speeds: Relative speed of each rank, where it is known.
    """
    state = ScheduleState(
        elche=initial_state(config.elche, speeds),
        own=((),) * config.world_size,
        barrier=config.barrier_from(0),
        overshoot=_first_overshoot(config),
    )
    return replace(state, elche=_with_ratios(state.elche, config))


def open_window(
    state: ScheduleState, config: ScheduleConfig
) -> tuple[ScheduleState, WindowPlan | None]:
    """Lease batches for the next window; None where the barrier comes first.

    With windows still open, what they return may have to be trained before the barrier: close
    them, then ask again.
    """
    state = _filled(state, config)
    leases, counts, tail = _leases(state, config)
    if not any(leases):
        return state, None
    elche = state.elche
    timed = config.timed and elche.calibrated and not tail and config.policy is Policy.CADENCE
    queue, own, given = state.queue, list(state.own), list[Spans]()
    for rank, wanted in enumerate(leases):
        first, own[rank] = front(own[rank], wanted)
        rest, queue = front(queue, wanted - size(first))
        given.append(first + rest)
    plan = WindowPlan(
        index=state.window,
        leases=tuple(given),
        counts=counts,
        timed=timed,
        window_ms=elche.window_ms,
        start=state.position,
        warm_up=_is_warm_up(state),
    )
    opened = replace(
        state,
        window=state.window + 1,
        queue=queue,
        own=tuple(own),
        leased=(*state.leased, insert((), *given)),
        position=state.position + sum(counts),
    )
    return opened, plan


def extend_window(
    state: ScheduleState, plan: WindowPlan, config: ScheduleConfig
) -> tuple[ScheduleState, WindowPlan]:
    """Make the only open window longer, because the ranks could not average at its end."""
    opened, more = open_window(state, config)
    if more is None:
        return state, replace(plan, timed=False)
    longer = replace(
        plan,
        leases=tuple(a + b for a, b in zip(plan.leases, more.leases, strict=True)),
        counts=tuple(a + b for a, b in zip(plan.counts, more.counts, strict=True)),
        timed=more.timed,
        window_ms=more.window_ms,
    )
    leased = (*state.leased[:-1], insert((), *longer.leases))
    return replace(opened, leased=leased), longer


def close_window(
    state: ScheduleState,
    plan: WindowPlan,
    reports: Sequence[WindowReport],
    config: ScheduleConfig,
) -> tuple[ScheduleState, WindowOutcome]:
    """Take in what was really trained; unused batches return to the front of the queue.

    Args:
        state: Now; the window is the oldest open one.
        plan: The window, as opened.
        reports: One per rank.
        config: Settings.
    """
    queue, own = state.queue, list(state.own)
    for rank, report in enumerate(reports):
        _, unused = front(plan.leases[rank], report.batches)
        if config.progressive:
            queue = insert(queue, unused)
        else:
            own[rank] = insert(own[rank], unused)
    guard, advice = state.guard, Advice.STABLE
    if config.divergence_guard:
        found = [report.divergence for report in reports]
        guard, advice = judge(guard, found, config.divergence_threshold)
    measured = [report.for_elche() for report in reports]
    comm, waits = communication(measured)
    elche = elche_step(
        state.elche, measured, config.elche, suppress=advice is Advice.SUPPRESS_GROWTH
    )
    if advice is Advice.NUDGE_DOWN:
        elche = nudge(elche, 0.5, config.elche)
    trained = sum(report.batches for report in reports)
    closed = replace(
        state,
        elche=_with_ratios(elche, config),
        guard=guard,
        queue=queue,
        own=tuple(own),
        leased=state.leased[1:],
        position=state.position + trained - sum(plan.counts),
        overshoot=_next_overshoot(state.overshoot, advice, config),
    )
    closed = replace(closed, complete=_complete(closed, config))
    outcome = WindowOutcome(
        comm_ms=comm,
        waits_ms=waits,
        advice=advice,
        anchor=(state.elche.anchor, elche.anchor),
        complete=range(state.complete, closed.complete),
    )
    return closed, outcome


def take_step(state: ScheduleState, config: ScheduleConfig) -> tuple[ScheduleState, Spans]:
    """SYNC: take a batch per rank; fewer at the end of an epoch, none at a barrier."""
    if state.complete > state.barrier:
        return state, ()
    state = _filled(state, config)
    epoch_end = (state.complete + 1) * config.batches_per_epoch
    own = insert(state.queue, *state.own)
    taken, rest = front(own, config.world_size, before=epoch_end)
    stepped = replace(
        state,
        queue=rest,
        own=((),) * config.world_size,
        position=state.position + size(taken),
    )
    return replace(stepped, complete=_complete(stepped, config)), taken


def pass_barrier(state: ScheduleState, config: ScheduleConfig) -> ScheduleState:
    """Go on behind the barrier; where training ends there is nothing more to open."""
    return replace(state, barrier=config.barrier_from(state.complete))


def stops_here(plan: WindowPlan, rank: int, done: int, elapsed_ms: float, latest_ms: float) -> bool:
    """Whether a rank that has trained ``done`` batches of a window goes to the rendezvous now.

    In the first window it may go on where it sees that slower ranks are not there yet.

    Args:
        plan: The window.
        rank: Who asks.
        done: Batches it has trained in the window.
        elapsed_ms: Since its first batch of the window (or of its extension) began.
        latest_ms: Duration of its latest batch.
    """
    if done >= plan.lease_size(rank) or (plan.warm_up and done >= plan.counts[rank]):
        return True
    # The batch whose end is nearest to the end of the window is the last.
    return plan.timed and done > 0 and elapsed_ms + latest_ms / 2 >= plan.window_ms


def digest(state: ScheduleState) -> float:
    """Return a number that differs where two ranks have planned differently; exact in float64."""
    form = json.dumps(state.as_json(), separators=(",", ":"))
    return float(int.from_bytes(hashlib.blake2b(form.encode(), digest_size=6).digest(), "big"))


def redistributed(
    state: ScheduleState, config: ScheduleConfig, ms: Sequence[float | None]
) -> ScheduleState:
    """Carry a state over to another set of ranks: what belonged to somebody is for all again.

    Args:
        state: At a moment when no window was open.
        config: Of the new ranks.
        ms: What is known of each new rank from before, in milliseconds per batch.
    """
    known = [value for value in ms if value]
    elche = initial_state(config.elche)
    if known and len(known) == len(ms):
        elche = initial_state(config.elche, [1.0 / value for value in known])
        elche = replace(elche, ms=tuple(known), calibrated=True)
    moved = replace(
        state,
        elche=_with_ratios(elche, config),
        guard=GuardState(),
        queue=insert(state.queue, *state.own),
        own=((),) * config.world_size,
        barrier=config.barrier_from(state.complete),
        overshoot=_first_overshoot(config),
    )
    if config.progressive:
        return moved
    shares = _shares(size(moved.queue), moved, config)
    queue, own = moved.queue, list[Spans]()
    for share in shares:
        mine, queue = front(queue, share)
        own.append(mine)
    return replace(moved, queue=queue, own=tuple(own))


# --- What is left, and who may have it -------------------------------------------------------


def _filled(state: ScheduleState, config: ScheduleConfig) -> ScheduleState:
    """Add epochs up to the barrier, but at most one beyond the one that is under way."""
    length = config.batches_per_epoch
    wanted = sum(state.elche.counts)
    while state.next_epoch <= min(state.barrier, state.complete + 1, config.epochs - 1):
        if config.progressive and size(state.queue) >= 2 * wanted:
            break
        if not config.progressive and _all_supplied(state):
            break
        start = state.next_epoch * length
        if config.progressive:
            state = replace(state, queue=insert(state.queue, ((start, start + length),)))
        else:
            rest: Spans = ((start, start + length),)
            own = list(state.own)
            for rank, share in enumerate(_shares(length, state, config)):
                mine, rest = front(rest, share)
                own[rank] = insert(own[rank], mine)
            state = replace(state, own=tuple(own))
        state = replace(state, next_epoch=state.next_epoch + 1)
    return state


def _rest(free: int, state: ScheduleState, config: ScheduleConfig) -> Counts:
    """Share out what is less than a window: whoever would be done with it first, where known."""
    counts, ms, lead = state.elche.counts, state.elche.ms, config.elche.max_batch_diff
    shares = split(free, ms) if all(ms) else clamp_total(counts, free)
    if lead is not None and max(shares) - min(shares) > lead:
        world = config.world_size
        return tuple(free // world + (rank < free % world) for rank in range(world))
    return shares


def _all_supplied(state: ScheduleState) -> bool:
    """Whether every rank has a window's batches of its own."""
    pairs = zip(state.own, state.elche.counts, strict=True)
    return all(size(spans) >= count for spans, count in pairs)


def _is_warm_up(state: ScheduleState) -> bool:
    """Whether the next window is the first of a training, or of ranks that replaced others."""
    elche = state.elche
    return not elche.calibrated and (state.window == 0 or not any(elche.ms))


def _leases(state: ScheduleState, config: ScheduleConfig) -> tuple[list[int], Counts, bool]:
    """Return how many batches each rank gets at most and is expected to train.

    The last value tells whether what is left is less than a window.
    """
    counts = state.elche.counts
    own = [size(spans) for spans in state.own]
    free = size(state.queue)
    if not config.progressive:
        counts = tuple(map(min, counts, own))
        return list(counts), counts, False
    if free + sum(own) < sum(counts):
        shares = _rest(free, state, config)
        counts = tuple(map(sum, zip(shares, own, strict=True)))
        return list(counts), counts, True
    slack = [0] * len(counts)
    if config.timed and config.policy is Policy.CADENCE:
        if state.elche.calibrated:
            slack = [max(1, -(-count // 4)) for count in counts]
        elif not any(state.elche.ms):
            slack = [(WARM_UP_ROOM - 1) * count for count in counts]
    # Whoever still has batches of its own needs fewer of the others.
    needed = sum(max(0, count - had) for count, had in zip(counts, own, strict=True))
    extra = clamp_total(slack, max(0, free - needed))
    leases = [count + more for count, more in zip(counts, extra, strict=True)]
    return leases, counts, False


def _shares(total: int, state: ScheduleState, config: ScheduleConfig) -> Counts:
    """Cut ``total`` batches into fixed shares: by ratios, by known speeds, or equally."""
    world, ms = config.world_size, state.elche.ms
    weights = [1.0] * world
    if config.partition_ratios is not None:
        weights = list(config.partition_ratios)
    elif all(ms):
        weights = [1.0 / value for value in ms]
    shares = [int(total * weight / sum(weights) + 1e-9) for weight in weights]
    # The remainder goes to the fastest, among equals to the first.
    fastest = sorted(range(world), key=lambda rank: -weights[rank])
    for rank in fastest[: total - sum(shares)]:
        shares[rank] += 1
    return tuple(shares)


def _complete(state: ScheduleState, config: ScheduleConfig) -> int:
    """Number of epochs of which nothing is left anywhere."""
    left = [spans[0][0] for spans in (state.queue, *state.own, *state.leased) if spans]
    return min(left) // config.batches_per_epoch if left else state.next_epoch


def _with_ratios(elche: ElCheState, config: ScheduleConfig) -> ElCheState:
    """Let windows follow fixed shares, where there are any."""
    ratios = config.partition_ratios
    if ratios is None:
        return elche
    counts = tuple(max(1, int(elche.anchor * ratio / min(ratios) + 0.5)) for ratio in ratios)
    return replace(elche, counts=counts)


def _first_overshoot(config: ScheduleConfig) -> int:
    if config.max_overshoot is not None:
        return config.max_overshoot
    return min(max(config.batches_per_epoch // 100, 2), 5)


def _next_overshoot(now: int, advice: Advice, config: ScheduleConfig) -> int:
    if config.max_overshoot is not None or advice is Advice.SUPPRESS_GROWTH:
        return now
    if advice is Advice.NUDGE_DOWN:
        return _first_overshoot(config)
    return min(now + 1, max(config.batches_per_epoch // 50, 3), 10)


def _spans(form: Sequence[Sequence[int]]) -> Spans:
    return tuple((int(start), int(stop)) for start, stop in form)
