"""What is decided before a model is built, and that nothing of the weights is read until then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from flodl.hf import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DebertaV2ForMaskedLM,
)
from flodl.hf.errors import ConfigError, UnsupportedModelError
from flodl.hf.head_kind import HeadKind
from flodl.hf.info import inspect_checkpoint
from flodl.hf.weights.stored import StoredFiles
from flodl.hf.weights.writing import save_safetensors_file_from_graph
from tests.flodl.hf.models_material import small_config, small_model, some_ids
from tests.rows import each_row

IDS, MASK = some_ids()
OPENERS = {
    "encoder": AutoModel.from_pretrained,
    "export": AutoModel.from_pretrained_for_export,
    "seqcls": AutoModelForSequenceClassification.from_pretrained,
    "tokcls": AutoModelForTokenClassification.from_pretrained,
    "qa": AutoModelForQuestionAnswering.from_pretrained,
    "mlm": AutoModelForMaskedLM.from_pretrained,
}
REFUSED = {
    "unknown model": ({"model_type": "gpt2"}, UnsupportedModelError, "'model_type' is 'gpt2'"),
    "no model": ({"model_type": None}, ConfigError, "'model_type'"),
    "gap in the labels": (
        {"id2label": {"0": "a", "2": "b"}},
        ConfigError,
        r"'id2label'.*contiguous",
    ),
    "relative positions": (
        {"position_embedding_type": "relative_key"},
        ConfigError,
        "'position_embedding_type' is 'relative_key'",
    ),
}


def written(folder: Path, kind: HeadKind, family: str = "bert", **changes) -> Path:
    """A small checkpoint, with changes of its configuration; None removes a field."""
    folder.mkdir(parents=True, exist_ok=True)
    graph = small_model(family, kind)
    save_safetensors_file_from_graph(graph, folder / "model.safetensors")
    fields = json.loads(graph.source_config) | changes
    fields = {key: value for key, value in fields.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


class TensorsWereRead(Exception):  # noqa: N818 - no error of anything
    """Somebody asked for the data of tensors."""


@pytest.fixture
def header_only(monkeypatch):
    """Let the headers of weights be read and nothing behind them."""

    def read(self, _keys):
        raise TensorsWereRead(self.where)

    monkeypatch.setattr(StoredFiles, "read", read)


@pytest.mark.case("hf", 19)
@each_row("opener", OPENERS)
@each_row("fault", REFUSED)
def test_a_configuration_is_refused_before_the_weights_are_looked_at(tmp_path, opener, fault):
    changes, error, said = REFUSED[fault]
    folder = written(tmp_path, HeadKind.SEQCLS, **changes)
    # Whoever looked would find that this is no file of weights.
    (folder / "model.safetensors").write_bytes(b"no header")
    with pytest.raises(error, match=said) as raised:
        OPENERS[opener](folder)
    assert str(raised.value).startswith(f"{folder}/config.json: ")


@pytest.mark.case("hf", 19)
@each_row("opener", OPENERS)
def test_a_configuration_that_is_no_json_is_refused_before_the_weights_are_looked_at(
    tmp_path, opener
):
    folder = written(tmp_path, HeadKind.SEQCLS)
    (folder / "model.safetensors").write_bytes(b"no header")
    (folder / "config.json").write_text('{"model_type": "bert",')
    with pytest.raises(ConfigError, match=rf"{folder}/config\.json.*JSON"):
        OPENERS[opener](folder)


@pytest.mark.case("hf", 19)
@pytest.mark.usefixtures("header_only")
@pytest.mark.parametrize("kind", [HeadKind.SEQCLS, HeadKind.TOKCLS])
def test_labels_that_fit_neither_each_other_nor_the_classifier_cost_the_header_only(tmp_path, kind):
    three = {str(index): name for index, name in enumerate("abc")}
    folder = written(tmp_path, kind, num_labels=4, id2label=three)
    for opener in (OPENERS["export"], OPENERS[kind]):
        with pytest.raises(ConfigError) as raised:
            opener(folder)
        assert "'num_labels' is 4, 'id2label' has 3 names" in str(raised.value)
        assert "the classifier in the checkpoint has 2 rows" in str(raised.value)
    # A configuration that the classifier agrees with leads on to the tensors.
    written(folder, kind, num_labels=2, id2label=three)
    with pytest.raises(TensorsWereRead, match=r"model\.safetensors"):
        OPENERS[kind](folder)


def test_the_number_that_fits_the_classifier_counts(tmp_path):
    three = {str(index): name for index, name in enumerate("abc")}
    folder = written(tmp_path, HeadKind.SEQCLS, num_labels=2, id2label=three)
    assert OPENERS["seqcls"](folder).labels == ("LABEL_0", "LABEL_1")
    # A classifier that is drawn anew has no say.
    with pytest.raises(ConfigError, match="no classifier to decide it"):
        OPENERS["seqcls"](folder, head_init="replace")
    head = OPENERS["seqcls"](folder, head_init="replace", num_labels=3, seed=0)
    assert head.labels == ("a", "b", "c")


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("written_as", [True, False])
def test_the_weights_decide_which_decoder_a_deberta_has(tmp_path, legacy, written_as):
    graph = small_model("deberta-v2", HeadKind.MLM, legacy=legacy)
    folder = tmp_path
    save_safetensors_file_from_graph(graph, folder / "model.safetensors")
    config = small_config("deberta-v2", HeadKind.MLM, legacy=written_as)
    (folder / "config.json").write_text(config.to_json_string())
    head = AutoModelForMaskedLM.from_pretrained(folder)
    assert head.config.legacy is legacy
    # transformers would tie the word table to a layer of the newer decoder.
    assert head.config.tie_word_embeddings is legacy
    assert json.loads(head.graph.source_config)["legacy"] is legacy
    assert head.graph.load_report.untied == ()
    with torch.inference_mode():
        assert torch.equal(head.graph(IDS, MASK), graph(IDS, MASK))
    assert inspect_checkpoint(str(folder)).keys.fits


@pytest.mark.usefixtures("header_only")
@each_row("keys", [("lm_predictions.lm_head.bias",), ()], ids=["newer", "neither"])
def test_the_newer_decoder_on_a_table_of_another_width_is_refused(tmp_path, keys):
    config = small_config("deberta-v2", HeadKind.MLM, legacy=False, embedding_size=8)
    (tmp_path / "config.json").write_text(config.to_json_string())
    tensors = {key: torch.zeros(config.vocab_size) for key in keys}
    save_file(tensors, tmp_path / "model.safetensors")
    for opener in (OPENERS["mlm"], OPENERS["export"]):
        with pytest.raises(ConfigError, match=r"'legacy' false .*'embedding_size' \(8\)"):
            opener(tmp_path)
    with pytest.raises(ConfigError, match=r"'legacy' false .*'embedding_size' \(8\)"):
        DebertaV2ForMaskedLM.from_config(config)


def test_a_table_of_another_width_suits_the_older_decoder_whatever_the_file_says(tmp_path):
    graph = small_model("deberta-v2", HeadKind.MLM, embedding_size=8)
    save_safetensors_file_from_graph(graph, tmp_path / "model.safetensors")
    config = small_config("deberta-v2", HeadKind.MLM, legacy=False, embedding_size=8)
    (tmp_path / "config.json").write_text(config.to_json_string())
    head = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert head.config.legacy is True
    with torch.inference_mode():
        assert torch.equal(head.graph(IDS, MASK), graph(IDS, MASK))
    encoder = AutoModel.from_pretrained(tmp_path)
    assert json.loads(encoder.source_config)["architectures"] == ["DebertaV2Model"]


def test_a_fresh_deberta_says_which_decoder_it_has():
    config = small_config("deberta-v2", HeadKind.MLM, legacy=False)
    head = DebertaV2ForMaskedLM.from_config(config)
    told = json.loads(head.graph.source_config)
    assert (told["legacy"], told["tie_word_embeddings"]) == (False, False)
    assert told["architectures"] == ["DebertaV2ForMaskedLM"]
