from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flodl.data import DataLoader, RandomSampler, Sampler, SequentialSampler, TensorDataSet
from flodl.errors import DataError
from tests.rows import each_row


class Fixed(Sampler):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def indices(self, epoch: int) -> Tensor | Sequence[int]:  # noqa: ARG002
        return self.answer


def seen(sampler: Sampler, epoch: int = 0) -> list[int]:
    data = TensorDataSet(torch.arange(4))
    return [int(b[0]) for b in DataLoader(data, 1, sampler=sampler).epoch(epoch)]


@pytest.mark.case("runtime", 63)
def test_the_order_is_a_permutation_that_seed_and_epoch_decide() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return RandomSampler(50, seed).indices(epoch).tolist()

    assert order(7, 3) == order(7, 3)
    assert order(7, 3) != order(7, 4)
    assert all(sorted(order(7, epoch)) == list(range(50)) for epoch in range(20))


def test_the_loader_has_the_same_order_for_the_same_seed_and_epoch() -> None:
    data = TensorDataSet(torch.arange(50))

    def visited(seed: int, epoch: int) -> list[int]:
        return [int(i) for b in DataLoader(data, 5, seed=seed).epoch(epoch) for i in b[0]]

    assert visited(1, 0) == visited(1, 0)
    assert visited(1, 0) != visited(1, 1)
    assert visited(1, 0) != visited(5, 0)
    assert sorted(visited(1, 0)) == list(range(50))


def test_the_global_generator_takes_no_part_in_the_order() -> None:
    torch.manual_seed(1)
    first = RandomSampler(50, 7).indices(0).tolist()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert RandomSampler(50, 7).indices(0).tolist() == first
    assert torch.equal(torch.get_rng_state(), before)


def test_without_shuffling_samples_come_first_to_last() -> None:
    data = TensorDataSet(torch.arange(4))
    loader = DataLoader(data, 2, shuffle=False)
    for epoch in (0, 5):
        assert [b[0].tolist() for b in loader.epoch(epoch)] == [[0, 1], [2, 3]]
    assert seen(SequentialSampler(4)) == [0, 1, 2, 3]


def test_a_sampler_of_ones_own_decides_the_order() -> None:
    assert seen(Fixed([3, 1, 1, 0])) == [3, 1, 1, 0]
    assert seen(Fixed(torch.tensor([2, 3, 0, 1]))) == [2, 3, 0, 1]
    assert seen(Fixed(np.arange(4)[::-1])) == [3, 2, 1, 0]
    assert seen(Fixed(np.array([2, 0, 3, 1], dtype=">u2"))) == [2, 0, 3, 1]
    assert seen(Fixed(torch.tensor([2, 0, 3, 1], dtype=torch.uint16))) == [2, 0, 3, 1]
    assert seen(Fixed(range(4))) == [0, 1, 2, 3]


@each_row(
    ("answer", "complaint"),
    [
        ([0, 1, 2], r"shape \[3\] for a data set of 4 samples; return exactly 4"),
        ([0, 1, 2, 3, 0], r"shape \[5\] for a data set of 4 samples"),
        (torch.zeros(2, 2, dtype=torch.int64), r"shape \[2, 2\]"),
        ([0, 1, 2, 4], "gave index 4; a data set of 4 samples has 0 to 3"),
        ([0, -1, 2, 3], "gave index -1"),
        ([0, None, 2, 3], "gave a list that is not a list or tensor of indices"),
        (["a", "b", "c", "d"], "gave a list that is not a list or tensor of indices"),
        ([0, 1j, 2, 3], "complex64 values; indices are integers"),
        ([0.0, 1.0, 2.0, 3.0], "float32 values; indices are integers"),
        ([True, False, True, True], "bool values; indices are integers"),
    ],
)
def test_a_sampler_that_answers_nonsense_is_refused(
    answer: Tensor | Sequence[int], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint) as refusal:
        seen(Fixed(answer), epoch=3)
    assert "Fixed.indices(3) gave" in str(refusal.value)


def test_a_sampler_without_indices_is_refused() -> None:
    with pytest.raises(TypeError, match=r"no indices\(epoch\) method"):
        DataLoader(TensorDataSet(torch.arange(4)), 1, sampler=[0, 1, 2, 3])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [RandomSampler, SequentialSampler])
def test_a_sampler_over_nothing_is_refused(kind: type) -> None:
    with pytest.raises(ValueError, match="n=0"):
        kind(0)
