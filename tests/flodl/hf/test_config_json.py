"""Configurations: the families, the reference's defaults and spellings, the presets."""

from __future__ import annotations

import json

import pytest

from flodl.hf.families import (
    AutoConfig,
    DistilBertConfig,
)
from flodl.hf.head_kind import HeadKind
from flodl.hf.layers.activations import ACTIVATIONS
from tests.flodl.hf.config_samples import (
    CLASSES,
    DISTILBERT,
    FAMILIES,
    RATES,
    SHAPE,
    SMALLEST,
    read,
    reference_of,
    refused,
    text_of,
)
from tests.later import transformers
from tests.rows import each_row

COMMON_DEFAULTS = (
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "type_vocab_size",
    "layer_norm_eps",
    "pad_token_id",
    "initializer_range",
    "tie_word_embeddings",
    "problem_type",
    "dtype",
)


@each_row("family", FAMILIES)
def test_each_family_is_read_by_its_class(family):
    config = read(family)
    assert type(config) is CLASSES[family]
    assert config == CLASSES[family].from_json_str(text_of(family))
    assert (
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.intermediate_size,
        config.max_position_embeddings,
    ) == (40, 16, 2, 4, 24, 20)


def test_names_follow_the_family():
    assert {family: (c.model_type, c.prefix, c.class_prefix) for family, c in CLASSES.items()} == {
        "bert": ("bert", "bert", "Bert"),
        "roberta": ("roberta", "roberta", "Roberta"),
        "xlm-roberta": ("xlm-roberta", "roberta", "XLMRoberta"),
        "distilbert": ("distilbert", "distilbert", "DistilBert"),
        "albert": ("albert", "albert", "Albert"),
        "deberta-v2": ("deberta-v2", "deberta", "DebertaV2"),
        "modernbert": ("modernbert", "model", "ModernBert"),
    }
    assert read("xlm-roberta").class_name(HeadKind.BASE) == "XLMRobertaModel"
    assert read("deberta-v2").class_name(HeadKind.BASE) == "DebertaV2Model"


@each_row("family", [f for f in FAMILIES if f not in ("distilbert", "modernbert")])
def test_what_a_file_leaves_out_is_the_references_default(family):
    config, reference = read(family), reference_of(family)()
    for name in COMMON_DEFAULTS:
        assert getattr(config, name) == getattr(reference, name), name
    assert config.architectures == ()
    assert config.num_labels == reference.num_labels == 2
    assert config.id2label == reference.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    assert config.label2id == reference.label2id


def test_distilbert_has_the_references_defaults_even_for_sizes():
    config = AutoConfig.from_json_str('{"model_type": "distilbert"}')
    reference = transformers.DistilBertConfig()
    for name in (*SHAPE, *COMMON_DEFAULTS, *RATES["distilbert"], "sinusoidal_pos_embds"):
        if name in {"type_vocab_size", "layer_norm_eps"} or name in DISTILBERT.values():
            continue
        assert getattr(config, name) == getattr(reference, DISTILBERT.get(name, name)), name
    assert config == DistilBertConfig()


def test_albert_and_deberta_have_the_references_defaults_for_their_own_fields():
    albert, reference = read("albert"), transformers.AlbertConfig()
    assert albert.num_hidden_groups == reference.num_hidden_groups == 1
    assert albert.inner_group_num == reference.inner_group_num == 1
    assert albert.classifier_dropout == reference.classifier_dropout_prob == 0.1

    deberta, reference = read("deberta-v2"), transformers.DebertaV2Config()
    for name in (
        "relative_attention",
        "position_biased_input",
        "pooler_dropout",
        "pooler_hidden_act",
        "legacy",
    ):
        assert getattr(deberta, name) == getattr(reference, name), name
    assert deberta.pos_att_type == ()
    assert deberta.position_buckets == -1
    assert deberta.share_att_key is False
    assert deberta.norm_rel_ebd == ("none",)
    assert (deberta.conv_kernel_size, deberta.conv_groups, deberta.conv_act) == (0, 1, "tanh")


@each_row("family", FAMILIES)
def test_a_file_the_reference_saved_means_the_same_here(family):
    theirs = reference_of(family).from_dict(SMALLEST[family])
    config = AutoConfig.from_json_str(theirs.to_json_string(use_diff=False))
    assert config.replace(num_labels=None, id2label=None) == read(family)


@each_row("family", FAMILIES)
def test_the_reference_reads_what_we_write_and_writes_it_alike(family):
    theirs = reference_of(family).from_dict(
        SMALLEST[family] | {"id2label": {str(n): f"name {n}" for n in range(12)}, "note": "é"}
    )
    text = theirs.to_json_string(use_diff=False)
    ours = AutoConfig.from_json_str(text).to_json_string()
    assert ours == text
    again = reference_of(family).from_dict(json.loads(ours))
    assert again.to_json_string(use_diff=False) == text


# --- Spellings ----------------------------------------------------------------------------------


def test_distilbert_takes_berts_spellings_of_three_sizes():
    text = text_of(
        "distilbert",
        "dim",
        "n_layers",
        "n_heads",
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=8,
    )
    config = AutoConfig.from_json_str(text)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (32, 3, 8)
    assert config.replace(hidden_size=64).source["hidden_size"] == 64
    assert "dim" not in config.replace(hidden_size=64).source


def test_distilbert_spellings_that_contradict_each_other_are_refused():
    assert read("distilbert", hidden_size=16).hidden_size == 16
    message = refused("distilbert", hidden_size=32)
    assert "'dim' is 16, but 'hidden_size'" in message
    assert "is 32" in message


def test_distilbert_ignores_an_epsilon_in_the_file_but_keeps_it():
    config = read("distilbert", layer_norm_eps=1e-3, type_vocab_size=7)
    assert (config.layer_norm_eps, config.type_vocab_size) == (1e-12, 0)
    assert json.loads(config.to_json_string())["layer_norm_eps"] == 1e-3
    with pytest.raises(TypeError, match="DistilBertConfig has no field layer_norm_eps to set"):
        config.replace(layer_norm_eps=1e-3)


@each_row(
    ("fields", "dtype"),
    [
        ({}, None),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": None, "torch_dtype": "float16"}, "float16"),
        ({"dtype": "float32", "torch_dtype": "float16"}, "float32"),
    ],
)
def test_the_dtype_is_read_under_both_names(fields, dtype):
    config = read("bert", **fields)
    assert config.dtype == dtype
    changed = config.replace(dtype="float64")
    assert changed.dtype == "float64"
    assert {key: changed.source[key] for key in fields} == dict.fromkeys(fields, "float64")


@each_row(
    ("family", "key"),
    [
        ("bert", "classifier_dropout"),
        ("roberta", "classifier_dropout"),
        ("xlm-roberta", "classifier_dropout"),
        ("deberta-v2", "cls_dropout"),
    ],
)
def test_a_classifier_dropout_of_null_follows_the_hidden_one(family, key):
    assert read(family, hidden_dropout_prob=0.3).classifier_dropout == 0.3
    config = read(family, hidden_dropout_prob=0.3, **{key: None})
    assert config.classifier_dropout == 0.3
    assert config.replace(hidden_dropout_prob=0.2).classifier_dropout == 0.2
    assert read(family, hidden_dropout_prob=0.3, **{key: 0.0}).classifier_dropout == 0.0


def test_alberts_classifier_dropout_is_its_own():
    config = read("albert", hidden_dropout_prob=0.3)
    assert config.classifier_dropout == 0.1
    assert read("albert", classifier_dropout_prob=0.5).classifier_dropout == 0.5


@each_row("name", tuple(ACTIVATIONS))
def test_the_exact_name_of_an_activation_is_kept(name):
    assert read("bert", hidden_act=name).hidden_act == name
    config = read("distilbert", activation=name)
    assert config.hidden_act == name
    assert config.source["activation"] == name
