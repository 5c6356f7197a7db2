"""Masks and positions that few people give."""

from __future__ import annotations

import pytest
import torch

from flodl.hf.head_kind import HeadKind
from tests.flodl.hf.models_material import small_model, some_ids


@pytest.fixture(scope="module")
def averaging():
    """A classifier that averages the tokens that count."""
    return small_model("modernbert", HeadKind.SEQCLS, classifier_pooling="mean")


def test_a_mean_of_tokens_takes_both_forms_of_a_mask_and_none(averaging):
    ids, mask = some_ids()
    with torch.no_grad():
        two = averaging(input_ids=ids, attention_mask=mask)
        four = averaging(input_ids=ids, attention_mask=mask[:, None, None].bool())
        none = averaging(input_ids=ids)
        ones = averaging(input_ids=ids, attention_mask=torch.ones_like(mask))
    assert torch.allclose(two, four, atol=1e-6)
    assert torch.allclose(none, ones, atol=1e-6)
    assert not torch.allclose(two[1::2], none[1::2], atol=1e-4)


def test_a_mean_of_tokens_needs_a_mask_of_tokens(averaging):
    ids, mask = some_ids()
    square = mask[:, None, None].bool().expand(-1, 1, ids.shape[1], -1)
    with pytest.raises(ValueError, match=r"takes \[B, S\], 0 for padding"):
        averaging(input_ids=ids, attention_mask=square)


def test_rows_that_are_longer_than_the_table_may_repeat_positions():
    model = small_model("bert", max_position_embeddings=6)
    ids, _ = some_ids(rows=1, length=9)
    with torch.no_grad():
        made = model(input_ids=ids, position_ids=torch.arange(9)[None] % 6)
    assert made.shape[:2] == (1, 9)
    with pytest.raises(ValueError, match="rows of 9 tokens are longer than the 6 positions"):
        model(input_ids=ids, position_ids=torch.arange(9)[None])
