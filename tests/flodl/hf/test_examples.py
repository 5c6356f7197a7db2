"""The examples run on a local directory and end as they say."""

import json
import re

import pytest
from safetensors.torch import load_file

from flodl.hf.__main__ import main
from flodl.hf.examples import EXAMPLES, run_example
from flodl.hf.examples.finetune import LABELS, SENTENCES
from flodl.hf.examples.predict import SENTENCES as CLASSIFIED
from flodl.hf.matrix import FAMILIES
from tests.flodl.hf.predict.reference import write

HEADS = {
    "embed": "",
    "classify": "ForSequenceClassification",
    "ner": "ForTokenClassification",
    "qa": "ForQuestionAnswering",
    "fill-mask": "ForMaskedLM",
}
NAMES = {0: "O", 1: "B-PER", 2: "B-LOC"}


@pytest.fixture
def encoder(tmp_path):
    """An encoder without a head, and its tokenizer."""
    write(tmp_path / "encoder", "distilbert", "")
    return tmp_path / "encoder"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", HEADS)
def test_every_task_of_every_family_runs(tmp_path, capsys, family, task):
    fields = {"id2label": NAMES} if task in ("classify", "ner") else {}
    write(tmp_path, family, HEADS[task], **fields)
    assert main(["example", f"{family}-{task}", "--", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    if task == "classify":
        assert all(sentence in told for sentence in CLASSIFIED)
        assert told.count("B-PER") == len(CLASSIFIED)
    elif task == "embed":
        assert told.count("1.000") == len(CLASSIFIED)
    else:
        assert len(told.splitlines()) >= 1


def test_auto_classify_takes_any_family(tmp_path, capsys):
    write(tmp_path, "albert", HEADS["classify"], id2label=NAMES)
    assert main(["example", "auto-classify", "--", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("B-LOC") == len(CLASSIFIED)


def test_a_model_of_another_family_is_refused(tmp_path, capsys):
    write(tmp_path, "albert", HEADS["qa"])
    assert main(["example", "bert-qa", "--", str(tmp_path)]) == 1
    assert (
        "the model is of the family albert, and the example is for bert" in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="saves nothing"):
        run_example("bert-qa", str(tmp_path), tmp_path / "out")
    with pytest.raises(KeyError):
        run_example("bert-lm")


def test_fine_tuning_prints_its_losses_and_can_be_exported(tmp_path, capsys, encoder):
    out = tmp_path / "tuned"
    assert main(["example", "distilbert-finetune", "--", str(encoder), str(out)]) == 0
    told = capsys.readouterr().out
    losses = [float(text) for text in re.findall(r"^step \d: loss (\S+)$", told, re.MULTILINE)]
    assert len(losses) == 5
    assert len(set(losses)) > 1
    assert [line.partition(":")[0] for line in told.splitlines() if "surprised" in line] == [
        "before",
        "after",
    ]
    assert {file.name for file in out.iterdir()} == {
        "model.fdl",
        "model.config.json",
        "tokenizer.json",
    }
    # The commands it prints work as they stand.
    lines = [line.split() for line in told.splitlines() if line.startswith("    fdl flodl-hf ")]
    assert [line[2] for line in lines] == ["export", "verify-export"]
    for line in lines:
        assert main(line[2:]) == 0, capsys.readouterr()
    config = json.loads((out / "export/config.json").read_text())
    assert config["architectures"] == ["DistilBertForSequenceClassification"]
    assert tuple(config["label2id"]) == LABELS
    assert (out / "export/tokenizer.json").exists()
    key = "transformer.layer.0.ffn.lin1.weight"
    before = load_file(encoder / "model.safetensors")[key]
    after = load_file(out / "export/model.safetensors")[f"distilbert.{key}"]
    # Five steps of Adam move a weight by at most about five times the rate.
    assert 5e-5 < float((after - before).abs().max()) < 6 * 5e-5


def test_adapters_are_saved_as_peft_reads_them(tmp_path, capsys, encoder):
    out = tmp_path / "adapters"
    assert main(["example", "lora-finetune", "--", str(encoder), str(out)]) == 0
    told = capsys.readouterr().out
    assert "4 layers adapted" in told
    assert "merged: " in told
    config = json.loads((out / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(encoder)
    assert any(
        key.endswith("lora_A.weight") for key in load_file(out / "adapter_model.safetensors")
    )


def test_the_sentences_are_ten_and_both_labels_are_there_as_often():
    assert len(SENTENCES) == 10
    assert sum(label for _, label in SENTENCES) == 5
    assert len(set(EXAMPLES)) == len(EXAMPLES)
