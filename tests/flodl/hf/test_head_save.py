"""What a head saves is what the command exports, and loads here and in the reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from flodl.errors import FlodlError
from flodl.hf import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)
from flodl.hf.export import export_command
from flodl.hf.head_kind import HeadKind
from flodl.hf.matrix import all_cells, tiny_config
from flodl.hf.reference import make_synthetic
from tests.flodl.hf.batches import encoded
from tests.flodl.hf.models_material import small_config
from tests.later import transformers

CELLS = {cell.name: cell for cell in all_cells() if cell.head != HeadKind.BASE}
AUTO = {
    HeadKind.SEQCLS: AutoModelForSequenceClassification,
    HeadKind.TOKCLS: AutoModelForTokenClassification,
    HeadKind.QA: AutoModelForQuestionAnswering,
    HeadKind.MLM: AutoModelForMaskedLM,
}
WEIGHTS = "model.safetensors"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", ".", "?"]
IDS = torch.tensor([[5, 9, 3, 8, 30], [7, 2, 6, 11, 12]])


def made(folder: Path, name: str):
    """A random checkpoint of the reference with a vocabulary, opened."""
    cell = CELLS[name]
    make_synthetic(tiny_config(cell), HeadKind(cell.head), folder, name)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return AUTO[HeadKind(cell.head)].from_pretrained(folder)


def train(head) -> None:
    """Take three steps of gradient descent towards smaller logits."""
    optimizer = torch.optim.SGD(head.graph.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        head.graph(IDS).square().mean().backward()
        optimizer.step()


def reference_logits(folder: Path, architecture: str) -> torch.Tensor:
    made_by = getattr(transformers, architecture)
    model, info = made_by.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.inference_mode():
        found = model.eval()(input_ids=IDS)
    if "start_logits" in found:
        return torch.stack((found.start_logits, found.end_logits), dim=-1)
    return found.logits


@pytest.mark.parametrize(
    "name",
    # Three heads of ModernBERT have the same layers, so one of them is enough at every change.
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name in ("modernbert-tokcls", "modernbert-qa")
        else name
        for name in CELLS
    ],
)
def test_a_trained_head_computes_the_same_wherever_it_is_loaded(tmp_path, name):
    head = made(tmp_path / "source", name)
    with torch.inference_mode():
        before = head.graph(IDS)
    train(head)
    out = tmp_path / "deep" / "out"
    files = head.save_pretrained(out)
    assert set(files) == {"config.json", WEIGHTS, "vocab.txt", "tokenizer_config.json"}
    assert set(files) == {file.name for file in out.iterdir()}
    with torch.inference_mode():
        trained = head.graph(IDS)
    assert (trained - before).abs().max() > 1e-3

    again = type(head).from_pretrained(out)
    assert again.labels == head.labels
    with torch.inference_mode():
        assert torch.equal(again.graph(IDS), trained)
    assert encoded(again.tokenizer, ["a b ?"]).input_ids.tolist() == [[2, 5, 6, 9, 3]]
    told = json.loads((out / "config.json").read_text())
    logits = reference_logits(out, told["architectures"][0])
    assert (logits - trained).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["bert-seqcls", "albert-mlm", "deberta-v2-mlm", "roberta-qa"])
def test_the_bytes_are_those_that_the_command_exports(tmp_path, name):
    head = made(tmp_path / "source", name)
    head.save_pretrained(tmp_path / "saved")
    export_command(hub=str(tmp_path / "source"), checkpoint=None, out=tmp_path / "hub")
    assert (tmp_path / "source" / WEIGHTS).read_bytes() == (
        tmp_path / "saved" / WEIGHTS
    ).read_bytes()
    train(head)
    head.save_pretrained(tmp_path / "trained")
    head.graph.save_checkpoint(tmp_path / "model.fdl")
    export_command(hub=None, checkpoint=tmp_path / "model.fdl", out=tmp_path / "exported")
    for mine, theirs in (("saved", "hub"), ("trained", "exported")):
        for file in (WEIGHTS, "config.json"):
            saved = (tmp_path / mine / file).read_bytes()
            assert saved == (tmp_path / theirs / file).read_bytes()


def test_a_model_that_is_there_is_replaced_only_when_told(tmp_path):
    head = made(tmp_path / "source", "bert-tokcls")
    out = tmp_path / "out"
    head.save_pretrained(out, max_shard_size="20KB")
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert len(before) > 4
    train(head)
    with pytest.raises(FlodlError, match=r"out holds config\.json, .* already: force=True"):
        head.save_pretrained(out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    head.save_pretrained(out, force=True)
    assert {file.name for file in out.iterdir()} == {
        "config.json",
        WEIGHTS,
        "vocab.txt",
        "tokenizer_config.json",
    }
    with torch.inference_mode():
        assert torch.equal(type(head).from_pretrained(out).graph(IDS), head.graph(IDS))


def test_a_model_may_be_saved_over_its_source(tmp_path):
    head = made(tmp_path, "bert-seqcls")
    train(head)
    head.save_pretrained(tmp_path, force=True)
    with torch.inference_mode():
        assert torch.equal(type(head).from_pretrained(tmp_path).graph(IDS), head.graph(IDS))


def test_an_earlier_tokenizer_does_not_outlive_its_model(tmp_path):
    head = made(tmp_path / "source", "bert-seqcls")
    out = tmp_path / "out"
    other = PreTrainedTokenizerFast.from_file(tmp_path / "source/vocab.txt")
    other.inner.add_tokens(["zebra"])
    type(head)(head.config, head.graph, other).save_pretrained(out)
    assert (out / "tokenizer.json").is_file()
    (out / "notes.txt").write_text("mine")
    head.save_pretrained(out, force=True)
    # Loading would have preferred it.
    assert not (out / "tokenizer.json").exists()
    assert (out / "notes.txt").read_text() == "mine"
    assert type(head).from_pretrained(out).tokenizer.inner.token_to_id("zebra") is None


def test_a_fresh_head_without_a_tokenizer_is_saved_with_its_names(tmp_path):
    config = small_config("bert", HeadKind.SEQCLS).replace(id2label=["no", "yes", "perhaps"])
    head = BertForSequenceClassification.from_config(config, num_labels=3)
    assert set(head.save_pretrained(tmp_path)) == {"config.json", WEIGHTS}
    told = json.loads((tmp_path / "config.json").read_text())
    assert told["architectures"] == ["BertForSequenceClassification"]
    assert told["id2label"] == {"0": "no", "1": "yes", "2": "perhaps"}
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path).labels == head.labels


def test_trained_weights_are_not_said_to_be_of_the_repository_they_came_from(tmp_path):
    made(tmp_path / "source", "bert-seqcls")
    config = json.loads((tmp_path / "source/config.json").read_text())
    named = config | {"flodl_source_repo": "owner/name", "flodl_source_revision": "1" * 40}
    (tmp_path / "source/config.json").write_text(json.dumps(named | {"my_field": [1]}))
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path / "source")
    head.save_pretrained(tmp_path / "out")
    told = json.loads((tmp_path / "out/config.json").read_text())
    assert told["my_field"] == [1]
    assert not {"flodl_source_repo", "flodl_source_revision"} & told.keys()
