"""Configurations written back: what is kept, what changes, and that anything may be read."""

from __future__ import annotations

import copy
import json
import pickle

from hypothesis import given, strategies as st

from flodl.hf.errors import ConfigError
from flodl.hf.families import (
    AutoConfig,
    EncoderConfig,
)
from tests.flodl.hf.config_samples import (
    CLASSES,
    DISTILBERT,
    FAMILIES,
    SMALLEST,
    read,
    reference_of,
    text_of,
)
from tests.rows import each_row

UNKNOWN = {
    "flag": None,
    "nested": {"b": [1, 2.5, {"c": "ü\u2028"}], "a": 1e-30},
    "_name_or_path": "somewhere",
    "big": 2**70,
    "epsilon": 1e-05,
    "transformers_version": "4.1.0",
}


@each_row("family", FAMILIES)
def test_unknown_fields_and_numbers_survive(family):
    text = text_of(family, initializer_range=0.019999, **UNKNOWN)
    config = AutoConfig.from_json_str(text)
    assert config.source == json.loads(text)
    assert config == read(family, initializer_range=0.019999)
    written = config.to_json_string()
    assert written == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert '"epsilon": 1e-05' in written
    assert AutoConfig.from_json_str(written).to_json_string() == written


@each_row("family", FAMILIES)
def test_a_change_is_written_and_the_rest_kept(family):
    config = read(family, **UNKNOWN)
    changed = config.replace(hidden_dropout_prob=0, problem_type="regression")
    other = {"distilbert": "dropout", "modernbert": "mlp_dropout"}
    key = other.get(family, "hidden_dropout_prob")
    assert changed.source == config.source | {key: 0.0, "problem_type": "regression"}
    assert f'"{key}": 0.0' in changed.to_json_string()
    assert changed.hidden_dropout_prob == 0.0
    assert config.problem_type is None
    assert changed.replace(architectures=("X",)).source == changed.source | {"architectures": ["X"]}
    assert changed.replace(architectures=("X",)).architectures == ("X",)


def test_the_source_is_a_copy():
    config = read("bert", **UNKNOWN)
    config.source["nested"]["a"] = 5
    assert config.source["nested"]["a"] == 1e-30


@each_row("family", FAMILIES)
def test_a_configuration_made_in_python_equals_the_one_it_writes(family):
    own = {value: key for key, value in DISTILBERT.items()} if family == "distilbert" else {}
    fields = {own.get(key, key): value for key, value in SMALLEST[family].items()}
    fields.pop("model_type")
    config = CLASSES[family](**fields, architectures=["A"], id2label=["no", "yes"])
    assert config == read(family, architectures=["A"]).replace(id2label=["no", "yes"])
    assert AutoConfig.from_json_str(config.to_json_string()) == config
    reference = reference_of(family).from_dict(config.source)
    assert reference.id2label == {0: "no", 1: "yes"}
    assert reference.label2id == {"no": 0, "yes": 1}


def test_configurations_are_values():
    config = read("albert", **UNKNOWN)
    same = read("albert", note="other")
    assert config == same
    assert config != config.replace(vocab_size=41)
    for twin in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert twin == config
        assert twin.to_json_string() == config.to_json_string()


# --- Anything at all ----------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from([2**31, 10**400, "gelu", "c2p|p2c", "layer_norm", "regression", -1, 1]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from("012"), inner, max_size=3)
    ),
    max_leaves=6,
)


def known_fields() -> st.SearchStrategy[str]:
    names = (
        {key for data in SMALLEST.values() for key in data}
        | set(reference_of("deberta-v2")().to_dict())
        | set(reference_of("distilbert")().to_dict())
        | set(reference_of("albert")().to_dict())
        | set(reference_of("modernbert")().to_dict())
        | {"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "rope_scaling"}
        | {"classifier_dropout", "cls_dropout", "attention_head_size", "norm_rel_ebd"}
        | {"conv_kernel_size", "conv_groups", "conv_act", "position_buckets", "share_att_key"}
        | {"pruned_heads", "quantization_config", "is_decoder", "position_embedding_type"}
        | {"num_labels", "label2id", "id2label", "torch_dtype"}
    )
    return st.sampled_from(sorted(names))


FIELDS = st.deferred(known_fields)


def outcome(text: str) -> EncoderConfig | str:
    """The configuration in a text, or what is wrong with it."""
    try:
        config = AutoConfig.from_json_str(text)
        config.labels_for()
    except ConfigError as error:
        return str(error)
    return config


@given(
    st.sampled_from(FAMILIES),
    st.dictionaries(FIELDS, JSON, max_size=3),
    st.sets(FIELDS, max_size=1),
)
def test_any_fields_give_a_configuration_or_a_config_error(family, fields, without):
    found = outcome(text_of(family, *without, **fields))
    if isinstance(found, str):
        assert found.startswith("config.json: ")
        return
    again = AutoConfig.from_json_str(found.to_json_string())
    assert again == found
    assert again.to_json_string() == found.to_json_string()


@given(
    st.sampled_from(FAMILIES),
    st.integers(0, 200),
    st.integers(0, 5),
    st.text('{}[]":,0123456789.eE-+truefalsn\\u \n', max_size=4),
)
def test_any_text_gives_a_configuration_or_a_config_error(family, at, length, inserted):
    text = text_of(family)
    found = outcome(text[:at] + inserted + text[at + length :])
    assert isinstance(found, EncoderConfig) or found.startswith("config.json: ")
