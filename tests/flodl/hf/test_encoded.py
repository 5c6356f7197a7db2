from __future__ import annotations

import pytest
import torch

import flodl.hf
from flodl.hf.encoded import EncodedBatch
from flodl.hf.head_kind import HeadKind
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.models_material import FAMILIES, small_config
from tests.flodl.hf.predict.reference import tokenizer_of
from tests.rows import each_row

FIELDS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "sequence_ids",
    "offsets",
    "word_ids",
    "special_mask",
    "sample_index",
)


def batch(**given):
    ids = torch.tensor([[5, 6, 7, 0], [5, 8, 0, 0], [5, 9, 9, 9]])
    return EncodedBatch(ids, (ids != 0).long(), **given)


def test_what_is_not_given_has_a_default_of_the_right_shape_and_type():
    made = batch()
    assert made.token_type_ids.tolist() == [[0] * 4] * 3
    assert made.position_ids.tolist() == [[0, 1, 2, 3]] * 3
    assert made.sequence_ids.tolist() == [[0, 0, 0, -1], [0, 0, -1, -1], [0, 0, 0, 0]]
    assert made.special_mask.tolist() == [[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]]
    assert made.word_ids.tolist() == [[-1] * 4] * 3
    assert made.offsets.shape == (3, 4, 2)
    assert not made.offsets.any()
    assert made.sample_index.tolist() == [0, 1, 2]
    assert made.lengths.tolist() == [3, 2, 4]
    for name in FIELDS:
        assert getattr(made, name).dtype == torch.int64, name
        assert getattr(made, name).is_contiguous(), name
        assert getattr(made, name) is getattr(made, name), name


@each_row("dtype", [torch.bool, torch.int32, torch.float32, torch.uint8])
def test_a_mask_of_any_type_becomes_int64(dtype):
    ids = torch.tensor([[1, 2]], dtype=torch.int32)
    made = EncodedBatch(ids, torch.tensor([[1, 0]]).to(dtype))
    assert made.attention_mask.tolist() == [[1, 0]]
    assert made.attention_mask.dtype == made.input_ids.dtype == torch.int64


@each_row(
    ("name", "tensor", "message"),
    [
        ("input_ids", torch.zeros(3), r"input_ids must be \[B, S\], got \[3\]"),
        ("input_ids", torch.zeros(1, 2), "input_ids must hold integers, got torch.float32"),
        ("attention_mask", torch.ones(1, 3), r"attention_mask must be \[1, 2\], got \[1, 3\]"),
        ("token_type_ids", torch.ones(1, 2), "token_type_ids must hold integers"),
        ("offsets", torch.ones(1, 2).long(), r"offsets must be \[1, 2, 2\], got \[1, 2\]"),
        ("sample_index", torch.ones(2).long(), r"sample_index must be \[1\], got \[2\]"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(name, tensor, message):
    good = {"input_ids": torch.zeros(1, 2).long(), "attention_mask": torch.ones(1, 2)}
    with pytest.raises(ValueError, match=message):
        EncodedBatch(**{**good, name: tensor})


@each_row("name", FIELDS)
def test_fields_cannot_be_replaced(name):
    with pytest.raises(AttributeError):
        setattr(batch(), name, torch.zeros(3, 4))


def test_rows_are_picked_in_order_and_trimmed_to_the_longest():
    given = torch.arange(12).view(3, 4)
    made = batch(word_ids=given, offsets=torch.stack((given, given + 1), dim=-1))
    picked = made.rows([1, 0])
    assert picked.input_ids.tolist() == [[5, 8, 0], [5, 6, 7]]
    assert picked.attention_mask.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert picked.word_ids.tolist() == [[4, 5, 6], [0, 1, 2]]
    assert picked.offsets[0].tolist() == [[4, 5], [5, 6], [6, 7]]
    assert picked.position_ids.tolist() == [[0, 1, 2]] * 2
    assert picked.sample_index.tolist() == [1, 0]
    assert made.rows([1]).input_ids.tolist() == [[5, 8]]
    assert made.rows([-1, -1]).input_ids.tolist() == [[5, 9, 9, 9]] * 2


def test_left_padding_is_never_cut_off():
    ids = torch.tensor([[0, 0, 5], [0, 5, 6], [4, 5, 6]])
    made = EncodedBatch(ids, ids != 0)
    assert made.rows([0, 1]).input_ids.tolist() == [[0, 0, 5], [0, 5, 6]]


def test_a_row_without_any_token_keeps_one_column():
    made = EncodedBatch(torch.zeros(2, 3).long(), torch.zeros(2, 3))
    assert made.rows([0]).input_ids.shape == (1, 1)


@each_row("index", [3, -4])
def test_a_row_that_does_not_exist_is_an_index_error(index):
    with pytest.raises(IndexError, match=f"row {index} of a batch of 3"):
        batch().rows([0, index])


@each_row(
    ("index", "rows"),
    [
        (1, [1]),
        (-1, [2]),
        (slice(0, 2), [0, 1]),
        (slice(None, None, -1), [2, 1, 0]),
        (slice(3, 3), []),
        ([2, 0], [2, 0]),
        (torch.tensor([2, 0]), [2, 0]),
        (torch.tensor([True, False, True]), [0, 2]),
    ],
)
def test_indexing_keeps_the_width(index, rows):
    made = batch()
    assert made[index].input_ids.tolist() == [made.input_ids[row].tolist() for row in rows]
    assert made[index].input_ids.shape == (len(rows), 4)
    assert made[index].sample_index.tolist() == rows


def test_no_rows_of_encoded_texts_have_every_field():
    none = PreTrainedTokenizerFast.from_inner(tokenizer_of("bert").backend_tokenizer).encode(
        ["a fox"]
    )[:0]
    width = none.input_ids.shape[1]
    for field in FIELDS:
        shape = {"offsets": (0, width, 2), "sample_index": (0,)}.get(field, (0, width))
        assert getattr(none, field).shape == shape
    assert none.rows([]).word_ids.shape == (0, 1)


def test_a_mask_over_other_rows_is_refused():
    with pytest.raises(IndexError, match="a mask of 2 for a batch of 3"):
        batch()[torch.tensor([True, False])]


def test_iterating_gives_one_batch_per_row():
    assert [row.input_ids.tolist() for row in batch()] == [
        [[5, 6, 7, 0]],
        [[5, 8, 0, 0]],
        [[5, 9, 9, 9]],
    ]
    assert len(batch()) == 3


def test_moving_takes_every_field_along():
    made = batch(word_ids=torch.ones(3, 4).long())
    assert made.to("cpu") is made
    moved = made.to("meta")
    assert {getattr(moved, name).device.type for name in FIELDS} == {"meta"}
    assert moved.device == torch.device("meta")


def test_its_size_is_its_name():
    assert repr(batch()) == "EncodedBatch(3 rows of 4 tokens, cpu)"


@each_row("made_of", ["tensors", "texts"])
def test_what_is_first_read_while_predicting_may_be_trained_with(made_of):
    if made_of == "tensors":
        made = batch()
    else:
        made = PreTrainedTokenizerFast.from_inner(tokenizer_of("bert")._tokenizer).encode(
            ["a b", "c"]
        )
    with torch.inference_mode():
        assert not any(getattr(made, name).is_inference() for name in FIELDS)
    table = torch.nn.Embedding(10, 2)
    table(made.position_ids).sum().backward()
    assert table.weight.grad is not None


def test_a_batch_that_was_predicted_can_be_trained_with():
    ids = torch.tensor([[5, 6, 7]])
    enc = EncodedBatch(ids, torch.ones_like(ids))
    config = small_config("bert", HeadKind.SEQCLS)
    head = flodl.hf.BertForSequenceClassification.from_config(config, num_labels=2)
    head.classify(enc)
    head.compute_loss(enc, torch.tensor([1])).backward()
    assert all(parameter.grad is not None for parameter in head.graph.parameters())


@each_row("family", FAMILIES)
def test_a_batch_without_rows_or_tokens_is_refused_by_a_model(family):
    config = small_config(family, HeadKind.SEQCLS)
    head = getattr(flodl.hf, f"{config.class_prefix}ForSequenceClassification")
    head = head.from_config(config, num_labels=2)
    for run in (head.forward_encoded, head.classify):
        with pytest.raises(ValueError, match="the batch has no rows"):
            run(batch()[:0])
        empty = torch.zeros(2, 0, dtype=torch.int64)
        with pytest.raises(ValueError, match="row 0 of the batch has no tokens"):
            run(EncodedBatch(empty, empty))
