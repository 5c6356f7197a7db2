"""Digests of single samples: what they depend on, and how they are taken in parts."""

from __future__ import annotations

import torch

from flodl.train.observers.digests import SAMPLE_BYTES, SampleDigests, row_digests
from tests.rows import each_row


class Clock:
    """Each reading is a millisecond later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


def test_each_row_has_a_digest_of_its_values_alone() -> None:
    x, y = torch.randn(5, 3), torch.arange(5)
    found = row_digests([x, y])
    assert len(found) == 5 * SAMPLE_BYTES
    turned = row_digests([x.flip(0), y.flip(0)])
    assert turned[:SAMPLE_BYTES] == found[-SAMPLE_BYTES:]
    assert row_digests([x.t().contiguous().t(), y]) == found
    x[3, 1] += 1e-6
    changed = row_digests([x, y])
    assert [at for at in range(5) if changed[8 * at :][:8] != found[8 * at :][:8]] == [3]


@each_row(
    "rows",
    [torch.ones(3, 2, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bool), torch.ones(3, 0),
     torch.ones(3, 2, dtype=torch.complex64).conj(), torch.ones(3, 2).requires_grad_()],
)  # fmt: skip
def test_every_kind_of_tensor_has_digests(rows: torch.Tensor) -> None:
    assert len(row_digests([rows])) == 3 * SAMPLE_BYTES


def test_tensors_without_common_rows_have_none() -> None:
    assert row_digests([torch.ones(3), torch.ones(2)]) == b""
    assert row_digests([torch.tensor(1.0)]) == b""
    assert row_digests([]) == b""


def test_parts_follow_each_other_and_end() -> None:
    x = torch.randn(1000, 2)
    digests = SampleDigests([x], Clock())
    parts = []
    while (part := digests.take(2e-3))[1]:
        parts.append(part)
    assert len(parts) > 2
    assert [first for first, _ in parts] == [
        sum(len(found) for _, found in parts[:at]) // SAMPLE_BYTES for at in range(len(parts))
    ]
    assert b"".join(found for _, found in parts) == row_digests([x])
    assert digests.take(1.0) == (1000, b"")


def test_data_that_is_not_in_memory_has_none() -> None:
    assert SampleDigests(()).take(1.0) == (0, b"")
