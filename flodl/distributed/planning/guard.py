"""The guard: shorter windows when the ranks drift apart. A pure function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import final

KEPT = 5
"""Rounds whose largest divergence is remembered."""

RISING = 3
"""Rounds in a row that must rise before anything is done."""


class Advice(Enum):
    """What the guard asks for."""

    STABLE = "stable"
    SUPPRESS_GROWTH = "suppress_growth"
    """Hold the anchor and the overshoot."""
    NUDGE_DOWN = "nudge_down"
    """Halve the anchor, reset the overshoot."""


@final
@dataclass(frozen=True, slots=True)
class GuardState:
    """The largest divergences of the last rounds, oldest first; at most five."""

    maxima: tuple[float, ...] = ()


def judge(
    state: GuardState, divergences: Sequence[float], threshold: float
) -> tuple[GuardState, Advice]:
    """Take in the divergence ‖before - after‖ / ‖after‖ of every rank in a round.

    Args:
        state: Of the rounds before.
        divergences: One per rank.
        threshold: Three rising maxima of which the last is above this are too much; above twice
            this, far too much.

    Values that are not finite, of ranks whose parameters are not, tell nothing about the distance
    and are left out.
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
    """Return λ = ln(D[t] / D[t-1]) / k: how fast the ranks drift apart per batch, for the records.

    Args:
        state: After the round.
        batches: k, the batches of the window.

    Returns:
        None where the last two maxima give no rate.
    """
    if batches < 1 or len(state.maxima) < 2 or min(state.maxima[-2:]) <= 0:
        return None
    before, now = state.maxima[-2:]
    return math.log(now / before) / batches


def _rises(values: Sequence[float]) -> bool:
    return all(before < after for before, after in pairwise(values))
