"""What models and losses need to know of a batch that was not made from texts here."""

from __future__ import annotations

import pytest
import torch

import flodl.hf
from flodl.hf.batch_encoding import BatchEncoding, mask_of, samples_of
from flodl.hf.collators import align_labels
from flodl.hf.head_kind import HeadKind
from flodl.hf.predict.batching import running
from tests.flodl.hf.batches import batch_of_ids
from tests.flodl.hf.models_material import FAMILIES, small_config
from tests.rows import each_row

IDS = torch.tensor([[5, 6, 7, 0], [5, 8, 0, 0], [5, 9, 9, 9]])


@each_row("dtype", [torch.bool, torch.int32, torch.float32, torch.uint8])
def test_of_ids_only_padding_is_known_and_no_word_gets_a_label(dtype):
    made = batch_of_ids(IDS, (IDS != 0).to(dtype))
    assert mask_of(made).tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert align_labels([[1]] * 3, made).tolist() == [[-100] * 4] * 3
    assert align_labels([[1]] * 3, made, all_pieces=True).tolist() == [[-100] * 4] * 3
    assert samples_of(made) == [0, 1, 2]


def test_without_a_mask_every_position_is_a_token():
    assert mask_of({"input_ids": IDS}).tolist() == [[1] * 4] * 3


def test_a_batch_that_was_predicted_can_be_trained_with():
    ids = torch.tensor([[5, 6, 7]])
    enc = batch_of_ids(ids, torch.ones_like(ids))
    config = small_config("bert", HeadKind.SEQCLS)
    head = flodl.hf.BertForSequenceClassification.from_config(config, num_labels=2)
    with running(head.graph):
        head.forward_encoded(enc)
    head.compute_loss(enc, torch.tensor([1])).backward()
    assert all(parameter.grad is not None for parameter in head.graph.parameters())


@each_row("family", FAMILIES)
def test_a_batch_without_rows_or_tokens_is_refused_by_a_model(family):
    config = small_config(family, HeadKind.SEQCLS)
    head = getattr(flodl.hf, f"{config.class_prefix}ForSequenceClassification")
    head = head.from_config(config, num_labels=2)
    with pytest.raises(ValueError, match="the batch has no rows"):
        head.forward_encoded(batch_of_ids(IDS[:0], IDS[:0]))
    empty = torch.zeros(2, 0, dtype=torch.int64)
    with pytest.raises(ValueError, match="row 0 of the batch has no tokens"):
        head.forward_encoded(batch_of_ids(empty, empty))
    for batch in (BatchEncoding({"input_ids": [[1, 2]]}), {"ids": IDS}):
        with pytest.raises(TypeError, match=r"needs input_ids as a tensor \[B, S\]"):
            head.forward_encoded(batch)
