"""Thirty faults planted in an export: ``verify-export`` finds each of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from flodl.hf.export import export_command
from flodl.hf.verify import verify_export
from tests.flodl.hf.predict.reference import write
from tests.rows import each_row

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
SETTINGS = "tokenizer_config.json"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"
KEY = QUERY.replace("query", "key")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    names = {"id2label": {0: "no", 1: "yes", 2: "perhaps"}}
    write(folder / "source", "bert", "ForSequenceClassification", **names)
    export_command(hub=str(folder / "source"), checkpoint=None, out=folder / "out")
    return folder / "source", folder / "out"


def fields(name, **changed):
    """A change of a JSON file; None removes a field."""

    def change(out: Path) -> None:
        data = json.loads((out / name).read_text()) | changed
        kept = {key: value for key, value in data.items() if value is not None}
        (out / name).write_text(json.dumps(kept))

    return change


def tensors(change):
    def changed(out: Path) -> None:
        found = load_file(out / WEIGHTS)
        change(found)
        save_file(found, out / WEIGHTS, metadata={"format": "pt"})

    return changed


def swapped(found, one=QUERY, other=KEY):
    found[one], found[other] = found[other], found[one]


def inner(change):
    """A change of ``tokenizer.json``."""

    def changed(out: Path) -> None:
        data = json.loads((out / TOKENIZER).read_text())
        change(data)
        (out / TOKENIZER).write_text(json.dumps(data))

    return changed


def swap_words(data):
    words = data["model"]["vocab"]
    one, other = sorted(words)[-2:]
    words[one], words[other] = words[other], words[one]


def removed(name):
    return lambda out: (out / name).unlink()


def cut(name):
    return lambda out: (out / name).write_bytes((out / name).read_bytes()[:-9])


FAULTS = {
    "activation": ("config", fields(CONFIG, hidden_act="relu")),
    "epsilon": ("config", fields(CONFIG, layer_norm_eps=1e-3)),
    "activation and epsilon": ("config", fields(CONFIG, hidden_act="relu", layer_norm_eps=1e-5)),
    "swapped labels": ("config", fields(CONFIG, id2label={"0": "yes", "1": "no", "2": "perhaps"})),
    "labels without names": ("config", fields(CONFIG, id2label=None, label2id=None)),
    "swapped numbers": ("config", fields(CONFIG, label2id={"no": 1, "yes": 0, "perhaps": 2})),
    "a renamed label": ("config", fields(CONFIG, id2label={"0": "No", "1": "yes", "2": "perhaps"})),
    "problem type": ("config", fields(CONFIG, problem_type="multi_label_classification")),
    "dropout": ("config", fields(CONFIG, hidden_dropout_prob=0.9)),
    "dropout of attention": ("config", fields(CONFIG, attention_probs_dropout_prob=0.9)),
    "dropout of the classifier": ("config", fields(CONFIG, classifier_dropout=0.9)),
    "padding": ("config", fields(CONFIG, pad_token_id=2)),
    "number of heads": ("config", fields(CONFIG, num_attention_heads=1)),
    "initial values": ("config", fields(CONFIG, initializer_range=0.5)),
    "tied words": ("config", fields(CONFIG, tie_word_embeddings=False)),
    "an unknown field": ("config", fields(CONFIG, note="another")),
    "number of layers": ("structure", fields(CONFIG, num_hidden_layers=1)),
    "number of words": ("structure", fields(CONFIG, vocab_size=7)),
    "another head": ("structure", fields(CONFIG, architectures=["BertForTokenClassification"])),
    "another family": ("structure", fields(CONFIG, model_type="roberta")),
    "no configuration": ("structure", removed(CONFIG)),
    "no weights": ("structure", removed(WEIGHTS)),
    "cut weights": ("structure", cut(WEIGHTS)),
    "a lost tensor": ("structure", tensors(lambda found: found.pop("classifier.bias"))),
    "a tensor too many": ("structure", tensors(lambda found: found.update(more=torch.ones(1)))),
    "swapped tensors": ("bytes", tensors(swapped)),
    "a tensor of zeros": ("bytes", tensors(lambda found: found[QUERY].zero_())),
    "a turned tensor": (
        "bytes",
        tensors(lambda found: found.update({QUERY: found[QUERY].T.contiguous()})),
    ),
    "a moved class": ("bytes", tensors(lambda found: found["classifier.bias"].add_(1e-7))),
    "swapped words": ("tokenizer", inner(swap_words)),
    "no tokenizer": ("tokenizer", removed(TOKENIZER)),
    "no settings of the tokenizer": ("tokenizer", removed(SETTINGS)),
    "a cut tokenizer": ("tokenizer", cut(TOKENIZER)),
    "upper case": ("tokenizer", inner(lambda data: data.update(normalizer=None))),
    "no special tokens": ("tokenizer", inner(lambda data: data.update(post_processor=None))),
    "length of the tokenizer": ("tokenizer", fields(SETTINGS, model_max_length=5)),
    "another special token": ("tokenizer", fields(SETTINGS, mask_token="[PAD]")),
    "another side": ("tokenizer", fields(SETTINGS, padding_side="left")),
}


def test_an_export_without_a_fault_passes(pair):
    source, out = pair
    report = verify_export(out, source=str(source))
    assert report.passed, report.as_text()
    assert all(check.passed for check in report.checks)


@pytest.mark.parametrize(("check", "plant"), FAULTS.values(), ids=FAULTS.keys())
def test_a_planted_fault_is_found(pair, tmp_path, check, plant):
    source, out = pair
    spoilt = Path(shutil.copytree(out, tmp_path / "out"))
    plant(spoilt)
    report = verify_export(spoilt, source=str(source))
    assert not report.passed
    failed = {one.name for one in report.checks if one.passed is False}
    assert check in failed, report.as_text()


@each_row("name", ["activation and epsilon", "number of heads"])
def test_a_fault_of_the_configuration_shows_in_the_outputs_too(pair, tmp_path, name):
    source, out = pair
    spoilt = Path(shutil.copytree(out, tmp_path / name))
    FAULTS[name][1](spoilt)
    report = verify_export(spoilt, source=str(source))
    assert {"config", "source"} <= {one.name for one in report.checks if one.passed is False}
