"""Permutations that do not fit into memory: the same as torch draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flodl.distributed import sample_order, spilled_permutation
from flodl.distributed.sample_order import Permutation
from flodl.distributed.spilled_permutation import BELOW, SpilledPermutation
from flodl.errors import RunDirectoryError

from .recorded_runs import DEFAULT


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
    assert Permutation(5000, 3).part(0, 5000).tolist() == drawn_by_torch(5000, 3)


def test_a_permutation_in_a_mapped_file_is_the_one_of_torch() -> None:
    order = Permutation(5000, 3, mapped=True)
    assert order.part(70, 5000).tolist() == drawn_by_torch(5000, 3)[70:]


def test_a_mapped_file_that_does_not_fit_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(RunDirectoryError, match=r"5,000 samples needs 20,000 bytes.*set TMPDIR"):
        Permutation(5000, 3, mapped=True)


def test_a_full_disk_names_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SpilledPermutation, "_write", full)
    with pytest.raises(RunDirectoryError, match=r"needs 4,000 bytes .* set TMPDIR"):
        SpilledPermutation(1000, 1)


@pytest.mark.parametrize(
    ("samples", "kind"),
    [(1000, "Permutation"), (2000, "SpilledPermutation"), (3000, "Permutation")],
)
def test_only_what_torch_shuffles_from_the_front_is_spilled(
    samples: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_order, "IN_MEMORY", 1000)
    monkeypatch.setattr(sample_order, "BELOW", 3000)
    facts = replace(DEFAULT, samples=samples)
    order = sample_order.drawn_order(facts, 2)
    assert order is not None
    assert type(order).__name__ == kind
    assert order.part(0, samples).tolist() == drawn_by_torch(samples, facts.seed + 2)


@pytest.mark.slow
def test_the_largest_spilled_permutation_is_the_one_of_torch() -> None:
    count = BELOW - 1
    order = SpilledPermutation(count, 3)
    generator = torch.Generator().manual_seed(3)
    torch_order = torch.randperm(count, generator=generator, dtype=torch.int32).numpy()
    for start in range(0, count, 1 << 24):
        stop = min(start + (1 << 24), count)
        assert np.array_equal(order.part(start, stop), torch_order[start:stop])
