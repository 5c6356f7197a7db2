"""States of random generators: compared, and kept while something runs beside the training."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor, equal

from flodl.checkpoint.generators import generator_states, set_generator_states

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the generators of torch, Python and NumPy at the end of the context."""
    states = generator_states()
    try:
        yield
    finally:
        set_generator_states(states)


def same(one: object, other: object) -> bool:
    """Whether two states of generators, or parts of them, are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and equal(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other
