"""Random generators that a compiler in another thread rewinds."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, equal

from flodl.checkpoint.generators import generator_states, set_generator_states


@final
class Rewinding:
    """Undoes a rewind of the generators, so that no random number is drawn twice.

    torch's compiler saves the states of the generators when it starts, and restores them when it
    ends.
    """

    def __init__(self) -> None:
        self._begun = generator_states()
        self._latest: dict[str, Any] = {}

    def undo(self) -> None:
        """Give every rewound generator the state in which it was last seen.

        Call it often: numbers drawn between the last call and a rewind may come again.
        """
        # Read once, and compare each generator on its own: the other thread does not wait in
        # between.
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
