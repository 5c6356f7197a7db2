"""``model.bert`` and the like: the encoder of a model with a head, as in transformers."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl.hf import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
)
from flodl.hf.errors import CheckpointMismatchError
from tests.flodl.hf.models_material import small_config
from tests.flodl.hf.test_habits import FAMILIES, OURS, close, saved, some_batch
from tests.later import transformers
from tests.rows import each_row

PREFIX = {"xlm-roberta": "roberta", "deberta-v2": "deberta", "modernbert": "model"}


@pytest.mark.parametrize("head", [head for head in OURS if head])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoder_of_a_head_returns_its_hidden_state(tmp_path, family, head):
    theirs = saved(tmp_path, family, head)
    ours = OURS[head].from_pretrained(tmp_path)
    batch = some_batch(family)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    encoder = getattr(ours, PREFIX.get(family, family))
    found, expected = encoder(ids, attention_mask=mask), theirs.base_model(ids, mask)
    assert found[0].shape == (*ids.shape, theirs.config.hidden_size)
    close(found[0], expected[0], mask)
    assert torch.equal(found[0], found.last_hidden_state)
    if expected.get("pooler_output") is not None:
        close(found.pooler_output, expected.pooler_output, mask)
    states = encoder(ids, mask, output_hidden_states=True).hidden_states
    for one, other in zip(
        states, theirs.base_model(ids, mask, output_hidden_states=True).hidden_states, strict=True
    ):
        close(one, other, mask)
    assert ours.base_model is encoder
    assert ours.base_model_prefix == PREFIX.get(family, family)
    assert encoder.base_model is encoder


def test_the_encoder_shares_its_parts_with_the_model():
    model = BertForSequenceClassification(small_config("bert"))
    for parameter in model.bert.parameters():
        parameter.requires_grad = False
    left = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert left == ["classifier.weight", "classifier.bias"]
    model.train()
    assert model.bert.training
    model.bert.eval()
    assert not model.bert.encoder.layer[0].training
    batch = some_batch("bert")
    model.eval()
    before = model(**batch).logits
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight += 1
    assert not torch.equal(model(**batch).logits, before)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.bert.embeddings is not model.bert.embeddings
        assert torch.equal(twin(**batch).logits, model(**batch).logits)
        assert torch.equal(twin.bert(**batch)[0], model.bert(**batch)[0])


# --- A head that finds answers, on a plain encoder ----------------------------------------------


@pytest.mark.parametrize("head", ["", "ForMaskedLM"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_finds_answers_starts_on_a_plain_encoder(tmp_path, capfd, family, head):
    theirs = saved(tmp_path, family, head)
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path, seed=1)
    name = "classifier" if family == "modernbert" else "qa_outputs"
    assert f"{name}.weight" in model.load_report.initialised
    told = capfd.readouterr().err
    assert "are not in the checkpoint and were drawn: train the model before you use it" in told
    assert f"{name}.bias" in told
    batch = some_batch(family)
    assert model(**batch).start_logits.shape == batch["input_ids"].shape
    hidden = theirs.base_model(**batch)[0]
    close(model.base_model(**batch)[0], hidden, batch["attention_mask"])
    with pytest.raises(
        CheckpointMismatchError, match=r'to start with a new head give head_init="random"'
    ):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path, head_init="strict")


def test_a_head_of_another_name_is_not_drawn_over(tmp_path):
    saved(tmp_path, "bert", "ForQuestionAnswering")
    weights = load_file(tmp_path / "model.safetensors")
    weights["qa_output.weight"] = weights.pop("qa_outputs.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointMismatchError, match=r"qa_outputs\.weight"):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    weights["qa_output.bias"] = weights.pop("qa_outputs.bias")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointMismatchError, match=r"qa_outputs\.bias"):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path)


# --- Refusals that name the supported way -------------------------------------------------------


def test_a_head_of_another_width_names_the_argument_that_replaces_it(tmp_path):
    saved(tmp_path, "bert", "ForSequenceClassification")
    with pytest.raises(CheckpointMismatchError, match="give ignore_mismatched_sizes=True"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=42)
    model = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, num_labels=42, ignore_mismatched_sizes=True
    )
    assert model.config.num_labels == 42


@each_row("name", ["input_ids", "attention_mask", "inputs_embeds"])
def test_a_call_with_lists_says_what_a_model_takes(name):
    model = BertForSequenceClassification(small_config("bert"))
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.int64)} if name == "attention_mask" else {}
    with pytest.raises(TypeError, match=f'{name} is a list.* return_tensors="pt"'):
        model(**batch, **{name: [[1, 1, 1]]})


def test_saving_takes_the_arguments_of_transformers(tmp_path):
    model = BertForSequenceClassification(small_config("bert"))
    assert model.save_pretrained(tmp_path, is_main_process=False) == ()
    assert not list(tmp_path.iterdir())
    model.save_pretrained(tmp_path, safe_serialization=True, is_main_process=True, state_dict=None)
    assert (tmp_path / "model.safetensors").exists()
    with pytest.raises(ValueError, match="only written as safetensors"):
        model.save_pretrained(tmp_path / "other", safe_serialization=False)
    with pytest.raises(TypeError, match=r"made of a BertConfig, got str: use .*from_pretrained"):
        BertForSequenceClassification("bert-base-uncased")


def test_the_encoder_is_saved_as_a_model_of_its_own(tmp_path):
    model = BertForSequenceClassification(small_config("bert")).eval()
    model.bert.save_pretrained(tmp_path)
    theirs = transformers.AutoModel.from_pretrained(tmp_path)
    assert theirs.config.architectures == ["BertModel"]
    batch = some_batch("bert")
    close(model.bert(**batch)[0], theirs(**batch)[0], batch["attention_mask"])
    assert model.config.architectures == ("BertForSequenceClassification",)


def test_a_batch_that_is_not_unpacked_is_named():
    model = BertForSequenceClassification(small_config("bert"))
    with pytest.raises(TypeError, match=r"input_ids is a dict.* or model\(\*\*batch\)"):
        model(some_batch("bert"))
