"""Configurations no model can be built from: each is refused by file, field and value."""

from __future__ import annotations

import pytest

from flodl.hf.build import build
from flodl.hf.errors import ConfigError, UnsupportedModelError
from flodl.hf.families import (
    AutoConfig,
    BertConfig,
)
from flodl.hf.head_kind import HeadKind
from tests.flodl.hf.config_samples import (
    FAMILIES,
    RATES,
    SHAPE,
    SMALLEST,
    read,
    refused,
    text_of,
)
from tests.rows import each_row

SIZES = {
    family: [key for key in SMALLEST[family] if key not in ("model_type", "pad_token_id")]
    for family in FAMILIES
}


@each_row(("family", "key"), [(f, key) for f in FAMILIES if f != "distilbert" for key in SIZES[f]])
def test_a_missing_size_is_named(family, key):
    assert f"config.json: '{key}' is missing; it must be a whole number" in refused(family, key)


@each_row(("family", "key"), [(f, key) for f in FAMILIES for key in SIZES[f]])
@each_row("value", [True, 8.0, "8", None, 0, -3, 2**31, [], {}])
def test_a_size_that_is_no_whole_number_is_named(family, key, value):
    message = refused(family, **{key: value})
    assert f"config.json: '{key}' is {value!r}; it must be a whole number from 1" in message


@each_row(("family", "key"), [(f, key) for f in FAMILIES for key in RATES[f]])
@each_row("value", [True, "0.1", None, -0.1, 1.5, float("nan"), 10**400])
def test_a_dropout_that_is_no_probability_is_named(family, key, value):
    message = refused(family, **{key: value})
    assert f"'{key}' is " in message
    assert "it must be a number from 0 to 1" in message


@each_row("family", [name for name in FAMILIES if name != "distilbert"])
@each_row("value", [True, "1e-12", None, -1e-12, float("inf")])
def test_an_epsilon_that_is_no_amount_is_named(family, value):
    key = "norm_eps" if family == "modernbert" else "layer_norm_eps"
    assert f"'{key}' is " in refused(family, **{key: value})


@each_row(
    ("fields", "said"),
    [
        ({"hidden_act": "GELU"}, "'hidden_act' is 'GELU'; it must be one of gelu, gelu_python"),
        ({"hidden_act": ["gelu"]}, "'hidden_act' is ['gelu']"),
        ({"pad_token_id": -1}, "'pad_token_id' is -1; it must be a whole number from 0"),
        ({"pad_token_id": True}, "'pad_token_id' is True"),
        ({"pad_token_id": 40}, "'pad_token_id' is 40; it must be below 'vocab_size', which is 4"),
        ({"type_vocab_size": 0}, "'type_vocab_size' is 0; it must be a whole number from 1"),
        ({"num_attention_heads": 5}, "'hidden_size' is 16, which 'num_attention_heads' 5 does not"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' is 1; it must be true or false"),
        ({"problem_type": "soft"}, "'problem_type' is 'soft'; it must be one of regression, "),
        ({"dtype": 32}, "'dtype' is 32; it must be a text, or null"),
        ({"torch_dtype": 16}, "'torch_dtype' is 16"),
        ({"architectures": "BertModel"}, "'architectures' is 'BertModel'; it must be a list"),
        ({"architectures": [1]}, "'architectures' is [1]"),
        ({"num_labels": 0}, "'num_labels' is 0; it must be a whole number from 1"),
        ({"initializer_range": "0.02"}, "'initializer_range' is '0.02'"),
        ({"classifier_dropout": 2}, "'classifier_dropout' is 2; it must be a number from 0 to 1"),
        (
            {"position_embedding_type": "relative_key"},
            "'position_embedding_type' is 'relative_key'; it must be 'absolute'",
        ),
        (
            {"position_embedding_type": "relative_key_query"},
            "'position_embedding_type' is 'relative_key_query'",
        ),
        ({"is_decoder": True}, "'is_decoder' is True; it must be false"),
        ({"add_cross_attention": True}, "'add_cross_attention' is True; it must be false"),
        ({"pruned_heads": {"1": [0]}}, "'pruned_heads' is {'1': [0]}; it must be empty"),
        ({"quantization_config": {"bits": 8}}, "'quantization_config' is {'bits': 8}; it must"),
        ({"quantization_config": {}}, "'quantization_config' is {}"),
    ],
)
def test_an_impossible_value_is_refused_by_file_field_and_value(fields, said):
    assert f"config.json: {said}" in refused("bert", **fields)


@each_row("family", FAMILIES)
def test_harmless_spellings_of_nothing_are_accepted(family):
    config = read(
        family,
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
        pruned_heads={},
        quantization_config=None,
        id2label=None,
        label2id=None,
        num_labels=None,
        architectures=None,
        problem_type=None,
        torch_dtype=None,
    )
    assert config == read(family)


@each_row("family", ["roberta", "xlm-roberta"])
def test_roberta_needs_padding_to_count_positions_from(family):
    assert "'pad_token_id' is None; it must be a word id" in refused(family, pad_token_id=None)
    assert "'max_position_embeddings' is 20" in refused(family, pad_token_id=19)
    assert read(family, pad_token_id=18).pad_token_id == 18


@each_row("family", ["bert", "distilbert", "albert", "deberta-v2"])
def test_others_may_have_no_padding_row(family):
    config = read(family, pad_token_id=None)
    assert config.pad_token_id is None
    assert AutoConfig.from_json_str(config.to_json_string()).pad_token_id is None


def test_values_from_python_are_checked_like_those_of_a_file():
    with pytest.raises(ConfigError, match=r"^BertConfig: 'hidden_size' is 16\.0; it must be"):
        BertConfig(**SHAPE | {"hidden_size": 16.0})
    with pytest.raises(ConfigError, match="'hidden_dropout_prob' is 2"):
        BertConfig(**SHAPE).replace(hidden_dropout_prob=2)
    with pytest.raises(TypeError, match="BertConfig has no field hidden_sise to set"):
        BertConfig(**SHAPE).replace(hidden_sise=3)


def test_a_long_value_is_cut_short_in_messages():
    assert len(refused("bert", hidden_size="x" * 10_000)) < 250


# --- The family ---------------------------------------------------------------------------------


@each_row("named", ["gpt2", "BERT", "deberta", "", None, 3, ["bert"], "x" * 10_000])
def test_an_unknown_family_lists_the_six(named):
    with pytest.raises(UnsupportedModelError, match="'model_type' is ") as caught:
        AutoConfig.from_json_str(text_of("bert", model_type=named), origin="a/config.json")
    assert str(caught.value).startswith("a/config.json: ")
    assert str(caught.value).endswith(", ".join(FAMILIES))
    assert len(str(caught.value)) < 250


def test_a_missing_family_lists_the_six():
    with pytest.raises(UnsupportedModelError, match="'model_type' is missing") as caught:
        AutoConfig.from_json_str(text_of("bert", "model_type"))
    assert str(caught.value).endswith(", ".join(FAMILIES))


def test_a_class_reads_its_own_family_only():
    with pytest.raises(ConfigError, match="'model_type' is 'roberta', and BertConfig reads 'bert'"):
        BertConfig.from_json_str(text_of("roberta"))
    config = BertConfig.from_json_str(text_of("bert", "model_type"))
    assert config == read("bert")
    assert config.source["model_type"] == "bert"


@each_row(
    ("text", "said"),
    [
        ("", "here: line 1, column 1: not valid JSON"),
        ('{"a": 1,\n  b}', "here: line 2, column 3: not valid JSON"),
        ("[1]", "here: a JSON object is needed, this is list"),
        ("null", "here: a JSON object is needed, this is NoneType"),
        ("9" * 5000, "here: JSON that cannot be used"),
        ("[" * 100_000, "here: nested more than"),
        ('{"a": ' + "[" * 150 + "]" * 150 + "}", "here: nested more than"),
        ("\ufeff{}", "here: line 1, column 1: not valid JSON"),
    ],
)
def test_text_that_is_no_json_object_is_refused(text, said):
    for reader in (AutoConfig, BertConfig):
        with pytest.raises(ConfigError) as caught:
            reader.from_json_str(text, origin="here")
        assert str(caught.value).startswith(said)


@each_row(
    ("family", "key", "most"),
    [
        ("bert", "num_hidden_layers", 4096),
        ("bert", "num_labels", 2**20),
        ("bert", "hidden_size", 2**20),
        ("bert", "intermediate_size", 2**20),
        ("distilbert", "n_layers", 4096),
        ("distilbert", "dim", 2**20),
        ("albert", "num_hidden_groups", 4096),
        ("albert", "inner_group_num", 4096),
        ("albert", "embedding_size", 2**20),
        ("deberta-v2", "conv_kernel_size", 2**20),
    ],
)
def test_what_would_take_hours_to_build_is_refused(family, key, most):
    message = refused(family, **{key: most + 1})
    assert f"'{key}' is {most + 1}; it must be a whole number from " in message
    assert f" to {most}" in message


def test_albert_counts_the_layers_of_all_groups():
    assert "'num_hidden_groups' is 3000" in refused(
        "albert", num_hidden_groups=3000, inner_group_num=2
    )
    assert read("albert", num_hidden_groups=2048, inner_group_num=2).inner_group_num == 2


def test_the_largest_shapes_can_be_described():
    most = 2**20
    config = read(
        "bert", vocab_size=2**31 - 1, hidden_size=most, intermediate_size=most, num_hidden_layers=1
    )
    graph = build(config, HeadKind.BASE)
    assert graph.state_dict()["embeddings.word_embeddings.weight"].shape == (2**31 - 1, most)
