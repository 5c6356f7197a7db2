"""The random generators of torch, Python and NumPy: their states are copied and set again."""

import random

import numpy as np
import pytest
import torch

from flodl.checkpoint.generators import (
    check_generator_states,
    generator_states,
    set_generator_states,
)
from tests.rows import each_row


def draw():
    return (
        random.random(),
        random.gauss(),
        np.random.rand(),
        np.random.randn(),
        torch.rand(()).item(),
    )


def test_every_generator_draws_again_what_it_drew():
    states = generator_states()
    check_generator_states(states)
    drawn = draw()
    assert draw() != drawn
    set_generator_states(states)
    assert draw() == drawn


def test_half_of_a_pair_of_normal_numbers_is_kept():
    random.gauss(), np.random.randn()  # each makes two and returns one
    states = generator_states()
    drawn = draw()
    set_generator_states(states)
    assert draw() == drawn


@each_row("part", ["torch", "cuda", "python", "numpy"])
def test_states_of_another_form_are_refused(part):
    with pytest.raises(ValueError, match="it does not hold the states of torch's, Python's and"):
        check_generator_states(generator_states() | {part: torch.zeros(3)})


@each_row("state", [torch.zeros(3), b"state"])
def test_the_state_of_one_gpu_of_another_form_is_refused(state):
    here = generator_states()
    check_generator_states(here | {"cuda": [here["torch"]]})
    with pytest.raises(ValueError, match="it does not hold the states of torch's, Python's and"):
        check_generator_states(here | {"cuda": [here["torch"], state]})
