"""Permutations that do not fit into memory: the same as torch draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flodl.distributed import spilled_permutation
from flodl.distributed.drawn_order import _Permutation
from flodl.distributed.spilled_permutation import WIDE_FROM, SpilledPermutation
from flodl.errors import RunDirectoryError


def drawn_by_torch(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator).tolist()


@pytest.mark.parametrize("seed", [0, 42, -3, 2**40 + 9])
@pytest.mark.parametrize("count", [1, 2, 3, 64, 1000, 4097])
@pytest.mark.parametrize("block", [1, 2, 63, 1000, 5000])
def test_a_spilled_permutation_is_the_one_of_torch(count: int, seed: int, block: int) -> None:
    order = SpilledPermutation(count, seed, block=block).part(0, count)
    assert order.tolist() == drawn_by_torch(count, seed)


def test_parts_come_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled_permutation, "_CHUNK", 37)
    order = SpilledPermutation(1000, 5, block=128)
    parts = [order.part(at, min(at + 90, 1000)) for at in range(0, 1000, 90)]
    assert np.concatenate(parts).tolist() == drawn_by_torch(1000, 5)


def test_numbers_of_32_bits_come_in_the_same_order() -> None:
    assert _Permutation(5000, 3).part(0, 5000).tolist() == drawn_by_torch(5000, 3)


def test_draws_of_64_bits_take_the_first_half_as_the_upper_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spilled_permutation, "WIDE_FROM", 10)
    order = SpilledPermutation(11, 7, block=4).part(0, 11).tolist()
    raw = np.random.RandomState(7).randint(0, 2**32, size=20, dtype=np.uint64).tolist()
    wanted = list(range(11))
    for step in range(10):
        drawn = (raw[2 * step] << 32 | raw[2 * step + 1]) % (11 - step)
        wanted[step], wanted[step + drawn] = wanted[step + drawn], wanted[step]
    assert order == wanted


def test_a_full_disk_names_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SpilledPermutation, "_write", full)
    with pytest.raises(RunDirectoryError, match=r"needs 4,000 bytes .* set TMPDIR"):
        SpilledPermutation(1000, 1)


@pytest.mark.slow
def test_torch_draws_64_bits_from_a_certain_number_on() -> None:
    order = SpilledPermutation(WIDE_FROM, 3)
    torch_order = torch.randperm(
        WIDE_FROM, generator=torch.Generator().manual_seed(3), dtype=torch.int32
    ).numpy()
    for start in range(0, WIDE_FROM, 1 << 24):
        stop = min(start + (1 << 24), WIDE_FROM)
        assert np.array_equal(order.part(start, stop), torch_order[start:stop])
