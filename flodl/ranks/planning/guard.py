"""The guard: shorten windows when the ranks drift apart. A pure function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import final

KEPT = 5
"""Number of rounds whose largest divergence is kept."""

RISING = 3
"""Number of rounds in a row whose divergence must rise before the guard acts."""


class Advice(Enum):
    """The action that the guard requests."""

    STABLE = "stable"
    SUPPRESS_GROWTH = "suppress_growth"
    """Keep the anchor and the overshoot from growing."""
    NUDGE_DOWN = "nudge_down"
    """Halve the anchor and reset the overshoot."""


@final
@dataclass(frozen=True, slots=True)
class GuardState:
    """The largest divergences of the last rounds, oldest first; at most five."""

    maxima: tuple[float, ...] = ()


def judge(
    state: GuardState, divergences: Sequence[float], threshold: float
) -> tuple[GuardState, Advice]:
    """Return the next state and an advice from the divergence of every rank in a round.

    The divergence of a rank is ‖before - after‖ / ‖after‖. The guard acts when three maxima in a
    row rise and the last is above the threshold. Above twice the threshold it advises NUDGE_DOWN,
    else SUPPRESS_GROWTH.

    Values that are not finite come from ranks with such parameters. They do not measure a
    distance, so they are left out.

    Args:
        state: State after the previous rounds.
        divergences: One per rank.
        threshold: Divergence above which the guard acts.
    """
    finite = [value for value in divergences if math.isfinite(value)]
    if not finite:
        return state, Advice.STABLE
    maxima = (*state.maxima, max(finite))[-KEPT:]
    after = GuardState(maxima)
    if len(maxima) < RISING or not _rises(maxima[-RISING:]) or maxima[-1] <= threshold:
        return after, Advice.STABLE
    if maxima[-1] > 2 * threshold:
        return after, Advice.NUDGE_DOWN
    return after, Advice.SUPPRESS_GROWTH


def growth_rate(state: GuardState, batches: int) -> float | None:
    """Return λ = ln(D[t] / D[t-1]) / k: how fast the ranks drift apart per batch, for the log.

    Args:
        state: State after the round.
        batches: k, the batches of the window.

    Returns:
        The rate; None if the last two maxima do not give one.
    """
    if batches < 1 or len(state.maxima) < 2 or min(state.maxima[-2:]) <= 0:
        return None
    before, now = state.maxima[-2:]
    return math.log(now / before) / batches


def _rises(values: Sequence[float]) -> bool:
    return all(before < after for before, after in pairwise(values))
