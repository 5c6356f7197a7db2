"""Where the ranks of a training are when another rank joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

from flodl.ranks.planning.schedule import WindowPlan


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """The window that the ranks train, and who they are.

    Attributes:
        members: The ranks that share the current batches, by name.
        window: The window that they exchange; None before the first.
        offers: What each rank has told about it, if they have agreed on that already.
        barrier_every: After how many epochs all ranks have the same model.
    """

    members: tuple[str, ...]
    window: WindowPlan | None
    offers: Sequence[Mapping[str, Any]]
    barrier_every: int

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Self:
        """Read the form that ``asdict`` returns."""
        window = form["window"]
        if window is not None:
            leases = tuple(
                tuple((int(start), int(stop)) for start, stop in lease)
                for lease in window["leases"]
            )
            window = WindowPlan(**{**window, "leases": leases, "counts": tuple(window["counts"])})
        return cls(
            members=tuple(form["members"]),
            window=window,
            offers=form["offers"],
            barrier_every=int(form["barrier_every"]),
        )
