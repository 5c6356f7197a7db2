"""A configuration as an object, as in transformers: fields are set, kept, and have two names."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from flodl.hf import AutoConfig, AutoModelForSequenceClassification, BertConfig, BertModel
from flodl.hf.errors import ConfigError
from tests.flodl.hf.config_samples import CLASSES, FAMILIES, SHAPE, SMALLEST, read, reference_of
from tests.flodl.hf.predict.reference import write
from tests.rows import each_row

OWN_NAMES = {
    "distilbert": {"dropout": "hidden_dropout_prob", "activation": "hidden_act"},
    "albert": {"classifier_dropout_prob": "classifier_dropout"},
    "deberta-v2": {"cls_dropout": "classifier_dropout"},
    "modernbert": {"norm_eps": "layer_norm_eps", "hidden_activation": "hidden_act"},
}


@each_row("family", FAMILIES)
def test_fields_are_set_and_written(family):
    config = read(family, note=1)
    config.initializer_range = 0.5
    config.use_cache = False
    config.task = {"name": "x"}
    assert (config.initializer_range, config.use_cache, config.note) == (0.5, False, 1)
    written = json.loads(config.to_json_string())
    added = {"initializer_range": 0.5, "use_cache": False, "task": {"name": "x"}, "note": 1}
    assert written == SMALLEST[family] | added
    config.update({"use_cache": True, "problem_type": "regression"})
    assert (config.use_cache, config.problem_type) == (True, "regression")


@each_row(("family", "names"), OWN_NAMES.items())
def test_a_field_has_the_name_of_the_file_too(family, names):
    config = read(family)
    for own, common in names.items():
        value = "relu" if "act" in own else 0.25
        setattr(config, own, value)
        assert getattr(config, own) == getattr(config, common) == value
        assert json.loads(config.to_json_string())[own] == value


@each_row("family", FAMILIES)
def test_all_fields_as_a_dictionary_are_those_of_transformers(family):
    ours = read(family, id2label={"0": "no", "1": "yes", "2": "?"}, note="n").to_dict()
    assert ours["note"] == "n"
    assert ours["id2label"] == {0: "no", 1: "yes", 2: "?"}
    theirs = reference_of(family).from_dict(ours)
    assert theirs.id2label == ours["id2label"]
    assert CLASSES[family].from_dict(theirs.to_dict()) == read(family, id2label=ours["id2label"])


def test_an_impossible_value_is_refused_and_changes_nothing():
    config = BertConfig(**SHAPE)
    with pytest.raises(ConfigError, match="BertConfig: 'hidden_act' is 'gleu'; it must be one of"):
        config.hidden_act = "gleu"
    with pytest.raises(ConfigError, match="'hidden_dropout_prob' is 2"):
        config.update({"initializer_range": 0.3, "hidden_dropout_prob": 2})
    assert config == BertConfig(**SHAPE)


def test_fields_that_do_not_fit_together_are_refused_when_a_model_is_built():
    config = BertConfig(**SHAPE)
    config.hidden_size = 30  # the number of heads may follow
    with pytest.raises(ConfigError, match="'hidden_size' is 30, which 'num_attention_heads' 4"):
        BertModel.from_config(config)
    config.num_attention_heads = 3
    assert BertModel.from_config(config)(torch.ones(1, 2, dtype=torch.int64))[0].shape == (1, 2, 30)


def test_a_copy_is_another_configuration():
    config = BertConfig(**SHAPE, task={"a": 1})
    for twin in (copy.copy(config), copy.deepcopy(config)):
        twin.hidden_act, twin.task = "relu", None
        assert (config.hidden_act, config.task) == ("gelu", {"a": 1})


def test_classes_follow_their_number_and_their_names():
    config = BertConfig(**SHAPE)
    config.num_labels = 3
    assert config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    config.id2label = {0: "no", 1: "yes"}
    assert (config.num_labels, config.label2id) == (2, {"no": 0, "yes": 1})
    config.num_labels = 2
    assert config.id2label == {0: "no", 1: "yes"}
    config.label2id = {"a": 1, "b": 0}
    assert config.id2label == {0: "b", 1: "a"}
    with pytest.raises(ConfigError, match="num_labels is 0; it must be a whole number"):
        config.num_labels = 0


def test_fields_are_given_when_a_configuration_is_read(tmp_path):
    BertConfig(**SHAPE, id2label=["no", "yes"], note=1).save_pretrained(tmp_path / "new")
    for kind in (AutoConfig, BertConfig):
        config = kind.from_pretrained(tmp_path / "new", num_labels=5, use_cache=False)
        assert (config.num_labels, config.use_cache, config.note) == (5, False, 1)
    assert BertConfig.from_pretrained(tmp_path / "new").id2label == {0: "no", 1: "yes"}
    with pytest.raises(ConfigError, match="'hidden_act' is 'x'"):
        AutoConfig.from_pretrained(tmp_path / "new", hidden_act="x")


def test_a_missing_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="BertConfig has no field 'hidden_sise'"):
        BertConfig(**SHAPE).hidden_sise  # noqa: B018
    assert not hasattr(BertConfig(**SHAPE), "is_decoder")


def test_a_type_of_torch_is_written_by_its_name():
    config = BertConfig(**SHAPE, torch_dtype=torch.float16)
    assert config.dtype == "float16"
    assert json.loads(config.to_json_string())["dtype"] == "float16"


# --- The configuration of a model ---------------------------------------------------------------


def test_fields_set_on_a_model_are_saved_with_it(tmp_path):
    write(tmp_path / "from", "bert", "ForSequenceClassification", num_labels=3)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "from")
    model.config.use_cache = False
    model.config.id2label = {0: "x", 1: "y", 2: "z"}
    assert model.labels == ("x", "y", "z")
    model.save_pretrained(tmp_path / "to")
    again = AutoConfig.from_pretrained(tmp_path / "to")
    assert (again.use_cache, again.id2label) == (False, {0: "x", 1: "y", 2: "z"})


def test_fields_set_on_a_model_survive_surgery(tmp_path):
    write(tmp_path, "bert", "ForSequenceClassification", num_labels=3)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    model.config.note = "mine"
    model.resize_token_embeddings(70)
    assert (model.config.note, model.config.vocab_size) == ("mine", 70)
    model.config.other = 1
    assert json.loads(model.graph.source_config)["other"] == 1
