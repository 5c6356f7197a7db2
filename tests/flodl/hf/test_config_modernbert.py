"""The configuration of ModernBERT, in the forms of both major versions of transformers."""

from __future__ import annotations

from flodl.hf.families import AutoConfig
from tests.flodl.hf.config_samples import SHAPE, read, refused
from tests.later import transformers
from tests.rows import each_row

FULL, NEAR = "full_attention", "sliding_attention"
OLDER = {"global_attn_every_n_layers": 2, "global_rope_theta": 5e4, "local_rope_theta": 100.0}
NEWER = {
    "layer_types": [FULL, NEAR],
    "rope_parameters": {
        FULL: {"rope_type": "default", "rope_theta": 5e4},
        NEAR: {"rope_type": "default", "rope_theta": 100.0},
    },
}


def modern(**fields):
    return read("modernbert", **fields)


def test_what_a_file_leaves_out_is_the_references_default():
    config, reference = modern(), transformers.ModernBertConfig()
    names = {
        "hidden_act": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "mlp_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }
    same = (
        "embedding_dropout", "norm_bias", "attention_bias", "mlp_bias", "decoder_bias",
        "classifier_pooling", "classifier_dropout", "classifier_bias", "classifier_activation",
        "local_attention", "initializer_range", "initializer_cutoff_factor", "tie_word_embeddings",
        "problem_type",
    )  # fmt: skip
    for ours, theirs in {**names, **{name: name for name in same}}.items():
        assert getattr(config, ours) == getattr(reference, theirs), ours
    padded = read("modernbert", "pad_token_id", vocab_size=50368)
    assert padded.pad_token_id == reference.pad_token_id
    assert config.type_vocab_size == 0
    assert modern(num_hidden_layers=22).layer_types == tuple(reference.layer_types)
    thetas = [reference.rope_parameters[kind]["rope_theta"] for kind in (FULL, NEAR)]
    assert [config.global_rope_theta, config.local_rope_theta] == thetas


def test_the_shape_of_the_published_model_has_its_windows_and_full_layers():
    base = modern(vocab_size=50368, num_hidden_layers=22, num_attention_heads=12, hidden_size=768)
    assert base.window == 64
    assert base.layer_types.count(FULL) == 8


@each_row("fields", [OLDER, NEWER, {**NEWER, **OLDER}])
def test_both_forms_mean_the_same_and_stay_as_they_are(fields):
    config = modern(**fields)
    assert config.layer_types == (FULL, NEAR)
    assert (config.global_rope_theta, config.local_rope_theta) == (5e4, 100.0)
    assert {key: config.source[key] for key in fields} == fields
    assert AutoConfig.from_json_str(config.to_json_string()) == config


def test_the_newer_form_counts_as_in_the_reference():
    fields = {**NEWER, "global_attn_every_n_layers": 1, "global_rope_theta": 7.0}
    config = modern(**fields)
    reference = transformers.ModernBertConfig.from_dict(
        {**SHAPE, **fields, "pad_token_id": 0, "rope_parameters": NEWER["rope_parameters"]}
    )
    assert list(config.layer_types) == reference.layer_types == [FULL, NEAR]
    assert config.global_rope_theta == reference.rope_parameters[FULL]["rope_theta"] == 5e4


def test_a_local_theta_of_null_is_the_global_one():
    # Transformers 4 reads it like this; transformers 5 has no meaning for null.
    config = modern(global_rope_theta=9.0, local_rope_theta=None)
    assert config.local_rope_theta == 9.0
    assert config.replace(global_rope_theta=8.0).local_rope_theta == 8.0


@each_row("form", [OLDER, NEWER, {}])
def test_changes_are_written_in_the_form_of_the_file(form):
    config = modern(num_hidden_layers=2, **form)
    changed = config.replace(
        num_hidden_layers=4, layer_types=(FULL, NEAR, FULL, NEAR), global_rope_theta=12.0
    )
    assert changed.layer_types == (FULL, NEAR, FULL, NEAR)
    assert (changed.global_rope_theta, changed.local_rope_theta) == (12.0, config.local_rope_theta)
    assert set(changed.source) - {"global_attn_every_n_layers", "global_rope_theta"} == (
        set(config.source) - {"global_attn_every_n_layers", "global_rope_theta"}
    )
    reference = transformers.ModernBertConfig.from_dict(changed.source)
    assert tuple(reference.layer_types) == changed.layer_types
    assert reference.rope_parameters[FULL]["rope_theta"] == 12.0


def test_the_distance_of_full_layers_replaces_a_list():
    config = modern(**NEWER).replace(global_attn_every_n_layers=1)
    assert config.layer_types == (FULL, FULL)
    assert "layer_types" not in config.source


@each_row(
    ("fields", "said"),
    [
        ({"layer_types": [FULL]}, "'layer_types' has 1 entries and 'num_hidden_layers' is 2"),
        ({"layer_types": [FULL, "linear_attention"]}, "a list of 'full_attention' and"),
        ({"rope_parameters": {FULL: {"rope_type": "yarn"}}}, "full_attention.rope_type' is 'yarn'"),
        ({"rope_parameters": {NEAR: 3}}, "rope_parameters.sliding_attention' is 3"),
        ({"rope_parameters": 5}, "an object with 'rope_theta'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "scaled rotary positions are not"),
        ({"global_rope_theta": 0}, "'global_rope_theta' is 0; it must be a number above 0"),
        ({"global_rope_theta": None}, "'global_rope_theta' is None"),
        ({"global_attn_every_n_layers": 0}, "a whole number of at least 1"),
        ({"hidden_size": 12}, "heads have an even width"),
        ({"head_dim": 8}, "'head_dim' is 8; it must be 4: 16 / 4"),
        ({"classifier_pooling": "max"}, "one of cls, mean"),
        ({"pad_token_id": 40}, "below 'vocab_size', which is 40"),
    ],
)
def test_what_no_model_here_can_be_is_refused(fields, said):
    assert said in refused("modernbert", **fields)
