"""Measure how the clocks of the ranks differ, by exchanging times."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from flodl.ranks.group import Group

ROUNDS = 16
"""Exchanges of times. Together they take a few milliseconds, and one quick exchange is enough."""


class ClockOffset(NamedTuple):
    """The offset that turns a time of a rank into a time of rank 0 when added."""

    ms: float
    within_ms: float
    """Largest possible error in milliseconds, as long as the clocks run equally fast."""


def clock_offsets(
    group: Group, now_ms: Callable[[], float], *, rounds: int = ROUNDS
) -> list[ClockOffset]:
    """Compare a clock of every rank with that of rank 0.

    A gather ends on a rank only after it has begun on all ranks. So rank ``r`` begins before
    rank 0 ends, and ends after rank 0 begins. Each round therefore bounds the offset from both
    sides; a shorter round gives closer bounds (F. Cristian, "Probabilistic clock
    synchronization", 1989). The result is the middle of the interval that fits all rounds
    (K. Marzullo and S. Owicki, "Maintaining the time in a distributed system", 1983). It is at
    least as exact as the shortest round alone.

    Clocks of hosts drift apart by a few milliseconds per minute at worst. So compare them when the
    times are merged.

    Collective: all ranks call it and get the same result.

    Args:
        group: All ranks.
        now_ms: A clock of this rank that never runs backwards, such as a timeline's
            ``elapsed_ms``. It may start at any value.
        rounds: Exchanges, at least 1.

    Returns:
        One offset per rank.

    Raises:
        ValueError: ``rounds`` is below 1.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: comparing clocks needs at least one exchange")
    begun: list[list[float]] = []
    ended: list[float] = []
    for _ in range(rounds):
        begun.append([row[0] for row in group.gather([now_ms()])])
        ended.append(now_ms())
    ends = group.gather(ended)
    offsets = []
    for rank in range(group.world_size):
        lowest = max(begun[i][0] - ends[rank][i] for i in range(rounds))
        highest = min(ends[0][i] - begun[i][rank] for i in range(rounds))
        offsets.append(ClockOffset((lowest + highest) / 2, abs(highest - lowest) / 2))
    # The offset of rank 0 to itself is exactly 0, which the rounds cannot show.
    offsets[0] = ClockOffset(0.0, 0.0)
    return offsets
