"""Generators that another thread puts back while the training continues."""

from __future__ import annotations

import random

import numpy as np
import torch

from flodl.checkpoint.generators import generator_states, set_generator_states
from flodl.train.engines.random_state import Rewinding, same


def drawn() -> list[float]:
    return [*torch.rand(2).tolist(), random.random(), float(np.random.rand())]


def test_what_was_drawn_before_a_rewinding_is_not_drawn_again() -> None:
    begun = generator_states()
    rewinding = Rewinding()
    first = drawn()
    rewinding.undo()
    set_generator_states(begun)  # as the compiler does
    rewinding.undo()
    second = drawn()
    rewinding.undo()
    set_generator_states(begun)
    rewinding.undo()
    numbers = [*first, *second, *drawn()]
    set_generator_states(begun)
    assert numbers == [*drawn(), *drawn(), *drawn()]


def test_each_generator_goes_on_for_itself() -> None:
    begun = generator_states()
    rewinding = Rewinding()
    torch.rand(5)
    rewinding.undo()
    set_generator_states(begun)
    other = random.random()
    rewinding.undo()
    number, following = torch.rand(1), random.random()
    set_generator_states(begun)
    torch.rand(5)
    assert torch.equal(number, torch.rand(1))
    assert [other, following] == [random.random(), random.random()]


def test_generators_that_nobody_touched_stay() -> None:
    begun = generator_states()
    rewinding = Rewinding()
    rewinding.undo()
    assert same(generator_states(), begun)
