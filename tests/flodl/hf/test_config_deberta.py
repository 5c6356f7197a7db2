"""DeBERTa's own fields: what they mean, and the combinations no model has."""

from __future__ import annotations

import pytest

from flodl.hf.errors import ConfigError
from flodl.hf.families import AutoConfig, DebertaV2Config
from tests.flodl.hf.config_samples import SMALLEST, text_of
from tests.later import transformers
from tests.rows import each_row


def read(**fields: object) -> DebertaV2Config:
    config = AutoConfig.from_json_str(text_of("deberta-v2", **fields))
    assert isinstance(config, DebertaV2Config)
    return config


@each_row(
    ("written", "types"),
    [
        (None, ()),
        ("p2c|c2p", ("p2c", "c2p")),
        ("C2P | p2c", ("c2p", "p2c")),
        ("c2p|c2p", ("c2p",)),
        ("none", ()),
        ("", ()),
        (["c2p"], ("c2p",)),
        (["C2P", "p2c"], ("p2c",)),
        ([" c2p"], ()),
        ([], ()),
    ],
)
def test_attention_types_act_as_in_the_reference(written, types):
    assert read(pos_att_type=written).pos_att_type == types
    reference = transformers.DebertaV2Config.from_dict(
        SMALLEST["deberta-v2"] | {"pos_att_type": written}
    )
    acting = {"c2p", "p2c"} & set(reference.pos_att_type or ())
    assert set(types) == acting


@each_row(
    ("written", "norms"),
    [("none", ("none",)), ("layer_norm", ("layer_norm",)), ("Layer_Norm | x", ("layer_norm", "x"))],
)
def test_norms_of_the_table_are_split_and_lowered(written, norms):
    config = read(norm_rel_ebd=written)
    assert config.norm_rel_ebd == norms
    assert config.source["norm_rel_ebd"] == written


def test_lists_from_python_are_written_in_the_files_form():
    config = read().replace(norm_rel_ebd=("layer_norm", "x"), pos_att_type=("c2p",))
    assert config.source["norm_rel_ebd"] == "layer_norm|x"
    assert config.source["pos_att_type"] == ["c2p"]
    assert config == read(norm_rel_ebd="layer_norm|x", pos_att_type="c2p")


@each_row("written", [-1, 0, -7])
def test_a_largest_distance_below_one_is_the_number_of_positions(written):
    config = read(max_relative_positions=written)
    assert config.max_relative_positions == 20
    assert config.source["max_relative_positions"] == written
    assert config.replace(max_position_embeddings=30).max_relative_positions == 30
    assert read(max_relative_positions=5).max_relative_positions == 5


def test_widths_follow_the_hidden_size():
    config = read()
    assert (config.embedding_size, config.pooler_hidden_size) == (16, 16)
    assert read(embedding_size=None, pooler_hidden_size=None) == config
    assert read(embedding_size=8).embedding_size == 8
    assert config.replace(hidden_size=32).embedding_size == 32
    assert read(attention_head_size=4) == config


@each_row(
    ("fields", "said"),
    [
        ({"attention_head_size": 8}, "'attention_head_size' is 8; it must be 4: 16 / 4"),
        ({"attention_head_size": "4"}, "'attention_head_size' is '4'"),
        ({"attention_head_size": 4.0}, "'attention_head_size' is 4.0"),
        ({"pooler_hidden_size": 8}, "'pooler_hidden_size' is 8; it must be 16, equal to 'hidden"),
        ({"conv_kernel_size": 2}, "'conv_kernel_size' is 2; it must be odd"),
        ({"conv_kernel_size": -1}, "'conv_kernel_size' is -1"),
        ({"conv_kernel_size": 3, "conv_groups": 3}, "'conv_groups' is 3; it must be a divisor"),
        ({"conv_act": "Tanh"}, "'conv_act' is 'Tanh'; it must be one of"),
        ({"pooler_hidden_act": "?"}, "'pooler_hidden_act' is '?'; it must be one of"),
        ({"position_buckets": 1}, "'position_buckets' is 1; it must be at least 2"),
        (
            {"position_buckets": 8, "max_relative_positions": 5},
            "'max_relative_positions' is 5; it must be other than 5 with 'position_buckets' 8",
        ),
        (
            {"position_buckets": 38},
            "'max_relative_positions' is 20; it must be other than 20 with 'position_buckets' 38",
        ),
        ({"pos_att_type": 3}, "'pos_att_type' is 3; it must be null, a text like"),
        ({"pos_att_type": ["c2p", 1]}, "'pos_att_type' is ['c2p', 1]"),
        ({"norm_rel_ebd": ["layer_norm"]}, "'norm_rel_ebd' is ['layer_norm']; it must be a text"),
        ({"norm_rel_ebd": None}, "'norm_rel_ebd' is None"),
        ({"relative_attention": "true"}, "'relative_attention' is 'true'; it must be true or"),
        ({"share_att_key": 1}, "'share_att_key' is 1"),
        ({"legacy": None}, "'legacy' is None"),
        ({"cls_dropout": -1}, "'cls_dropout' is -1"),
        ({"embedding_size": 0}, "'embedding_size' is 0"),
        ({"type_vocab_size": -1}, "'type_vocab_size' is -1; it must be a whole number from 0"),
    ],
)
def test_impossible_values_and_combinations_are_refused(fields, said):
    with pytest.raises(ConfigError) as caught:
        read(**fields)
    assert str(caught.value).startswith(f"config.json: {said}")


@each_row(
    "fields",
    [
        {"conv_kernel_size": 3, "conv_groups": 4},
        {"conv_kernel_size": 0, "conv_groups": 3},
        {"position_buckets": 8, "max_relative_positions": 4},
        {"position_buckets": 8, "max_relative_positions": 6},
        {"position_buckets": 2, "max_relative_positions": 1},
        {"position_buckets": 0},
        {"legacy": False, "embedding_size": 8},
        {"share_att_key": True, "relative_attention": True, "pos_att_type": "c2p"},
        {"type_vocab_size": 2, "position_biased_input": False},
    ],
)
def test_what_the_formulas_define_is_accepted(fields):
    config = read(**fields)
    for name in fields.keys() - {"pos_att_type"}:
        assert getattr(config, name) == fields[name]


def test_the_masked_language_head_is_stamped():
    config = read(note=1)
    assert config.for_masked_lm(legacy=True).source == config.source | {"legacy": True}
    newer = config.for_masked_lm(legacy=False)
    assert newer.source == config.source | {"legacy": False, "tie_word_embeddings": False}
    assert not newer.legacy


def test_the_newer_masked_language_head_needs_tables_as_wide_as_the_layers():
    narrow = read(embedding_size=8)
    assert narrow.for_masked_lm(legacy=True).legacy
    with pytest.raises(ConfigError, match=r"'legacy' false needs 'embedding_size' \(8\) equal to"):
        narrow.for_masked_lm(legacy=False)
