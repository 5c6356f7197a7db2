"""The names of weights: what is the same tensor, what may be left over, what was meant."""

from __future__ import annotations

import pytest

from flodl.hf.errors import CheckpointFormatError
from flodl.hf.weights.keys import (
    arrange,
    is_encoder_key,
    is_harmless,
    keys_have_pooler,
    modern_key,
    other_names,
    reconciling,
    suggestions,
)
from tests.rows import each_row

HEAD_MODEL = {
    "bert.embeddings.word_embeddings.weight",
    "bert.encoder.layer.0.output.LayerNorm.weight",
    "cls.predictions.bias",
}
BASE_MODEL = {"embeddings.word_embeddings.weight", "encoder.layer.0.output.LayerNorm.weight"}


# Older and second names


@each_row(
    ("old", "new"),
    [
        ("bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"),
        ("bert.embeddings.LayerNorm.beta", "bert.embeddings.LayerNorm.bias"),
        ("sa_layer_norm.gamma", "sa_layer_norm.gamma"),
        ("LayerNorm.gamma.weight", "LayerNorm.gamma.weight"),
    ],
)
def test_gamma_and_beta_of_a_layer_norm_are_its_weight_and_bias(old, new):
    assert modern_key(old) == new


def test_the_word_table_has_other_names_only_while_it_is_tied():
    key = "bert.embeddings.word_embeddings.weight"
    assert "cls.predictions.decoder.weight" in other_names(key, tied=True)
    assert other_names(key, tied=False) == ()
    assert other_names("lm_head.bias", tied=False) == ("lm_head.decoder.bias",)
    assert other_names("lm_head.decoder.bias", tied=False) == ("lm_head.bias",)
    assert other_names("bert.embeddings.position_embeddings.weight", tied=True) == ()


# Prefixes


@each_row(
    "key", ["bert.encoder.layer.0.output.LayerNorm.gamma", "encoder.layer.0.output.LayerNorm.gamma"]
)
def test_the_prefix_is_given_or_taken_as_the_model_wants_it(key):
    wanted = "encoder.layer.0.output.LayerNorm.weight"
    assert reconciling(HEAD_MODEL, "bert")(key) == "bert." + wanted
    assert reconciling(BASE_MODEL, "bert")(key) == wanted


def test_a_mistyped_key_gets_the_prefix_too():
    assert reconciling(HEAD_MODEL, "bert")("embeddings.word_embedding.weight") == (
        "bert.embeddings.word_embedding.weight"
    )


@each_row("key", ["cls.predictions.decoder.weight", "classifier.weight", "other"])
def test_keys_of_heads_get_no_prefix(key):
    assert reconciling(HEAD_MODEL, "bert")(key) == key
    assert reconciling(BASE_MODEL, "bert")(key) == key


def test_a_part_that_the_encoder_lacks_keeps_its_name():
    key = "bert.pooler.dense.weight"
    assert reconciling(BASE_MODEL, "bert")(key) == key


def test_two_keys_with_one_name_are_both_named():
    with pytest.raises(CheckpointFormatError) as caught:
        arrange(["LayerNorm.weight", "LayerNorm.gamma"], modern_key)
    assert "LayerNorm.weight and LayerNorm.gamma" in str(caught.value)


# What may be left over


@each_row(
    "key",
    [
        "bert.embeddings.position_ids",
        "roberta.embeddings.token_type_ids",
        "cls.seq_relationship.weight",
        "sop_classifier.classifier.bias",
        "mask_predictions.dense.weight",
        "bert.pooler.dense.weight",
        "albert.pooler.bias",
        "qa_outputs.weight",
        "lm_head.dense.bias",
        "deberta.embeddings.position_embeddings.weight",
    ],
)
def test_what_files_usually_hold_in_excess_is_harmless(key):
    assert is_harmless(key, BASE_MODEL)


@each_row(
    "key",
    [
        "bert.encoder.layer.9.output.dense.weight",
        "cls.predictions.extra",
        "position_ids.weight",
        "my_pooler.weight",
    ],
)
def test_anything_else_is_not(key):
    assert not is_harmless(key, HEAD_MODEL)


def test_a_pooler_is_harmless_where_the_model_has_none():
    assert is_harmless("bert.pooler.dense.wieght", HEAD_MODEL)
    assert not is_harmless("bert.pooler.dense.wieght", {"bert.pooler.dense.weight"})


def test_positions_are_needed_by_a_model_that_has_some():
    model = {"bert.embeddings.position_embeddings.weight"}
    assert not is_harmless("x.position_embeddings.weight", model)


def test_a_pooler_belongs_to_the_head():
    assert is_encoder_key("bert.encoder.layer.0.output.dense.weight", "bert")
    assert not is_encoder_key("bert.pooler.dense.weight", "bert")
    assert not is_encoder_key("classifier.weight", "bert")
    assert is_encoder_key("embeddings.LayerNorm.weight", "")
    assert not is_encoder_key("pooler.weight", "")


@each_row(
    ("key", "is_pooler"),
    [
        ("bert.pooler.dense.weight", True),
        ("bert.pooler.dense/bias", True),
        ("albert.pooler.weight", True),
        ("pooler.bias", True),
        ("bert.mypooler.dense.weight", False),
        ("pooler.dense.weight.extra", False),
        ("pooler.norm.weight", False),
        ("pooler.dense", False),
    ],
)
def test_a_pooler_is_seen_by_whole_segments(key, is_pooler):
    assert keys_have_pooler(["bert.embeddings.LayerNorm.weight", key]) is is_pooler


# What was meant


def test_the_nearest_unused_key_is_suggested_under_its_name_in_the_file():
    unused = {"bert.qury.weight": "qury.weight", "bert.quer.weight": "quer.weight"}
    assert suggestions(["bert.query.weight", "bert.value.weight"], unused) == [
        ("bert.query.weight", "quer.weight")
    ]
