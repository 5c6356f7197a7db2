"""The order of an epoch, drawn again: the same as torch draws."""

from __future__ import annotations

import pytest
import torch

from flodl.errors import RunDirectoryError
from flodl.ranks import epoch_check
from flodl.ranks.epoch_check import permutation
from tests.rows import each_row


def drawn_by_torch(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=generator).tolist()


@each_row("seed", [0, 42, -3, 2**40 + 9])
@each_row("count", [1, 2, 64, 5000])
def test_numbers_of_32_bits_come_in_the_same_order(count: int, seed: int) -> None:
    assert permutation(count, seed).tolist() == drawn_by_torch(count, seed)


def test_a_permutation_in_a_mapped_file_is_the_one_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(epoch_check, "IN_MEMORY", 1000)
    assert permutation(5000, 3).tolist() == drawn_by_torch(5000, 3)


def test_a_mapped_file_that_does_not_fit_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    monkeypatch.setattr(epoch_check, "IN_MEMORY", 1000)
    with pytest.raises(RunDirectoryError, match=r"5,000 samples needs 20,000 bytes.*set TMPDIR"):
        permutation(5000, 3)
