"""How the clocks of the ranks differ, found out by what they tell each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from flodl.distributed.group import Group

ROUNDS = 16
"""Exchanges of times: a few milliseconds together, and one quick one is enough."""


class ClockOffset(NamedTuple):
    """What to add to the time of a rank to get that of rank 0."""

    ms: float
    within_ms: float
    """How far from the truth it is at most, while the clocks run equally fast."""


def clock_offsets(
    group: Group, now_ms: Callable[[], float], *, rounds: int = ROUNDS
) -> list[ClockOffset]:
    """Compare a clock of every rank with that of rank 0.

    A gather ends nowhere before it has begun everywhere. So rank ``r`` begins before rank 0 ends
    and ends after rank 0 begins: each round bounds the offset from both sides, the closer the
    shorter it took (F. Cristian, "Probabilistic clock synchronization", 1989). The result is the
    middle of what all rounds together leave open (K. Marzullo and S. Owicki, "Maintaining the time
    in a distributed system", 1983), which is at least as exact as the shortest round alone.

    Clocks of machines drift apart by some milliseconds in a minute at worst: compare them when the
    times are put together.

    Collective: all ranks call it, and get the same.

    Args:
        group: All ranks.
        now_ms: A clock of this rank that never runs backwards, such as a timeline's
            ``elapsed_ms``; its zero may be anywhere.
        rounds: Exchanges, at least 1.

    Returns:
        One per rank.

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
    # Against itself a clock is exact, and the rounds cannot know that.
    offsets[0] = ClockOffset(0.0, 0.0)
    return offsets
