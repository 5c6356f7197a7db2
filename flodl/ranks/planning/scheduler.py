"""Plan which rank trains which batches next: take windows from a queue that all ranks share.

These are pure functions over immutable values; the worker and the ghost cluster both call them.
Every rank has the same queue. Batches are numbered through all epochs: batch ``i`` of epoch ``e``
is ``e · batches_per_epoch + i``. The queue is a tuple of half-open spans ``(start, stop)``,
ascending and disjoint.

The life of a window::

    state, plan = open_window(state, config)      # leases leave the queue
    ...each rank trains its lease, or the part of it that fits into the time...
    state, outcome = close_window(state, plan, reports, config)   # unused batches return

ASYNC opens window k+1 before window k is closed; all other policies close first.

If the ranks could not average, ``extend_window`` makes the window longer instead of closing it. No
rank knows then which batches the others trained, so the rest of a lease stays with its rank.

``open_window`` returns None if nothing is left before the next *barrier*. A barrier is the end of
an epoch at which something is due (a checkpoint, an evaluation), or the end of the training.
``pass_barrier`` continues after it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from flodl.ranks.planning.elche import (
    Counts,
    ElCheState,
    clamp_total,
    communication,
    elche_step,
    initial_state,
    nudge,
    split,
)
from flodl.ranks.planning.schedule import (
    Advice,
    GuardState,
    ScheduleConfig,
    ScheduleState,
    Spans,
    WindowOutcome,
    WindowPlan,
    WindowReport,
    deal,
    front,
    insert,
    judge,
    size,
    without,
)
from flodl.ranks.settings import Policy

WARM_UP_ROOM = 8
"""A rank may train this many times its count in the first window, while others are slower."""


def initial_schedule(
    config: ScheduleConfig, speeds: Sequence[float] | None = None
) -> ScheduleState:
    """Return the state at the start of a training.

    Args:
        config: Settings.
        speeds: Relative speed of each rank, if known.
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
    """Lease batches for the next window; return no plan if nothing is left before the barrier.

    Windows that are still open may return batches that must be trained before the barrier. In this
    case close them and call this again.
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
    """Make the only open window longer because the ranks could not average at its end."""
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
    """Close a window with the reports of all ranks; unused batches return to the queue.

    Without progressive dispatch, unused batches stay with their rank.

    Args:
        state: The current state; the window must be the oldest open one.
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
    """SYNC: take one batch per rank; fewer at the end of an epoch, none at a barrier."""
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


def leave_out(
    state: ScheduleState, config: ScheduleConfig, numbers: Iterable[int]
) -> ScheduleState:
    """Let no rank train some batches, as far as none has begun with them.

    Args:
        state: A state without open windows.
        config: Settings.
        numbers: The batches, counted through all epochs.
    """
    length = config.batches_per_epoch
    left = (number for number in set(numbers) if state.is_left(number, length))
    added = insert((), *(((number, number + 1),) for number in left))
    return replace(
        state,
        queue=without(state.queue, added),
        own=tuple(without(spans, added) for spans in state.own),
        left_out=insert(state.left_out, added),
    )


def pass_left_out(state: ScheduleState, config: ScheduleConfig) -> tuple[ScheduleState, Spans]:
    """Go past the batches that come next and are left out; return them, too."""
    if not state.left_out:
        return state, ()
    state = _filled(state, config)
    next_epoch = state.next_epoch * config.batches_per_epoch
    left = [spans[0][0] for spans in (state.queue, *state.own, *state.leased) if spans]
    passed, rest = front(state.left_out, size(state.left_out), before=min(left, default=next_epoch))
    state = replace(state, left_out=rest, position=state.position + size(passed))
    return replace(state, complete=_complete(state, config)), passed


def pass_barrier(state: ScheduleState, config: ScheduleConfig) -> ScheduleState:
    """Continue after the barrier; at the end of the training no window can be opened."""
    return replace(state, barrier=config.barrier_from(state.complete))


def stops_here(plan: WindowPlan, rank: int, done: int, elapsed_ms: float, latest_ms: float) -> bool:
    """Whether a rank that has trained ``done`` batches of a window goes to the average now.

    In the first window the rank may train on while slower ranks have not arrived.

    Args:
        plan: The window.
        rank: The rank.
        done: Batches that it has trained in the window.
        elapsed_ms: Time since its first batch of the window (or of its extension) began.
        latest_ms: Duration of its latest batch.
    """
    if done >= plan.lease_size(rank) or (plan.warm_up and done >= plan.counts[rank]):
        return True
    # The last batch is the one whose end is nearest to the end of the window.
    return plan.timed and done > 0 and elapsed_ms + latest_ms / 2 >= plan.window_ms


def digest(state: ScheduleState) -> float:
    """Return a hash of the state to compare the plans of two ranks; exact in float64."""
    form = json.dumps(state.as_json(), separators=(",", ":"))
    return float(int.from_bytes(hashlib.blake2b(form.encode(), digest_size=6).digest(), "big"))


def redistributed(
    state: ScheduleState, config: ScheduleConfig, ms: Sequence[float | None]
) -> ScheduleState:
    """Return the state for another set of ranks; batches of single ranks are shared out again.

    Args:
        state: A state without open windows.
        config: Settings of the new ranks.
        ms: Earlier milliseconds per batch of each new rank; None if unknown.
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
    own = deal(moved.queue, _shares(size(moved.queue), moved, config))
    return replace(moved, queue=(), own=tuple(own))


# --- The remaining batches, and which rank gets them -----------------------------------------


def _filled(state: ScheduleState, config: ScheduleConfig) -> ScheduleState:
    """Add epochs to the queue up to the barrier, but at most one beyond the current epoch."""
    length = config.batches_per_epoch
    wanted = sum(state.elche.counts)
    while state.next_epoch <= min(state.barrier, state.complete + 1, config.epochs - 1):
        if config.progressive and size(state.queue) >= 2 * wanted:
            break
        if not config.progressive and _all_supplied(state):
            break
        start = state.next_epoch * length
        rest = without(((start, start + length),), state.left_out)
        if config.progressive:
            state = replace(state, queue=insert(state.queue, rest))
        else:
            shares = deal(rest, _shares(size(rest), state, config))
            state = replace(state, own=tuple(map(insert, state.own, shares)))
        state = replace(state, next_epoch=state.next_epoch + 1)
    return state


def _rest(free: int, state: ScheduleState, config: ScheduleConfig) -> Counts:
    """Share out the last batches, fewer than a window, so that all are done as early as possible.

    While the speeds are unknown, share them in proportion to the counts.
    """
    counts, ms, lead = state.elche.counts, state.elche.ms, config.elche.max_batch_diff
    shares = split(free, ms) if all(ms) else clamp_total(counts, free)
    if lead is not None and max(shares) - min(shares) > lead:
        world = config.world_size
        return tuple(free // world + (rank < free % world) for rank in range(world))
    return shares


def _all_supplied(state: ScheduleState) -> bool:
    """Whether every rank has enough batches of its own for a window."""
    pairs = zip(state.own, state.elche.counts, strict=True)
    return all(size(spans) >= count for spans, count in pairs)


def _is_warm_up(state: ScheduleState) -> bool:
    """Whether the next window is the first of a training, or the first of new ranks."""
    elche = state.elche
    return not elche.calibrated and (state.window == 0 or not any(elche.ms))


def _leases(state: ScheduleState, config: ScheduleConfig) -> tuple[list[int], Counts, bool]:
    """Return the most batches each rank gets, and the batches it is expected to train.

    The last value says whether fewer batches than a window are left.
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
    # A rank that still has batches of its own needs fewer from the queue.
    needed = sum(max(0, count - had) for count, had in zip(counts, own, strict=True))
    extra = clamp_total(slack, max(0, free - needed))
    leases = [count + more for count, more in zip(counts, extra, strict=True)]
    return leases, counts, False


def _shares(total: int, state: ScheduleState, config: ScheduleConfig) -> Counts:
    """Divide ``total`` batches into fixed shares: by ratios, by known speeds, or equally."""
    world, ms = config.world_size, state.elche.ms
    weights = [1.0] * world
    if config.partition_ratios is not None:
        weights = list(config.partition_ratios)
    elif all(ms):
        weights = [1.0 / value for value in ms]
    shares = [int(total * weight / sum(weights) + 1e-9) for weight in weights]
    # The remainder goes to the fastest ranks, among equals to the lowest.
    fastest = sorted(range(world), key=lambda rank: -weights[rank])
    for rank in fastest[: total - sum(shares)]:
        shares[rank] += 1
    return tuple(shares)


def _complete(state: ScheduleState, config: ScheduleConfig) -> int:
    """Return the number of epochs of which no batch is left in any place."""
    left = [spans[0][0] for spans in (state.queue, *state.own, *state.leased) if spans]
    return min(left) // config.batches_per_epoch if left else state.next_epoch


def _with_ratios(elche: ElCheState, config: ScheduleConfig) -> ElCheState:
    """Let windows follow the fixed shares, if there are any."""
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
