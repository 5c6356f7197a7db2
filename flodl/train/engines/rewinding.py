"""Random generators that a compiler in another thread puts back to where they were."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, equal

from flodl.checkpoint.generators import generator_states, set_generator_states


@final
class Rewinding:
    """Undoes the rewinding: what was drawn since the beginning is not drawn again.

    torch's compiler keeps the states it finds at its beginning, and sets them at its end.
    """

    def __init__(self) -> None:
        self._begun = generator_states()
        self._latest: dict[str, Any] = {}

    def undo(self) -> None:
        """Let every generator that stands where it began go on where it was seen last.

        Call it often: what is drawn between the last call and a rewinding may come again.
        """
        # Read once and each generator for itself: the other thread does not wait in between.
        now = generator_states()
        moved = {name: state for name, state in now.items() if not same(state, self._begun[name])}
        rewound = {name: state for name, state in self._latest.items() if name not in moved}
        self._latest |= moved
        if rewound:
            set_generator_states({**now, **rewound})


def same(one: object, other: object) -> bool:
    """Whether two states of generators, or parts of them, are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and equal(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other
