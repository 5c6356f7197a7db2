"""A tiny model with random weights: made without a download, the same for the same seed."""

import json

import pytest
import torch
from safetensors.torch import load_file

from flodl.hf import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    HeadKind,
    PreTrainedTokenizerFast,
    SentenceTransformer,
    write_tiny_model,
)
from flodl.hf.matrix import FAMILIES
from flodl.hf.tiny_model import LABELS, TAGS

TEXT = "The ship sailed across the sea."
OPENED = {
    HeadKind.BASE: lambda at: SentenceTransformer(at).encode(TEXT).shape == (32,),
    HeadKind.SEQCLS: lambda at: (
        {
            one.label
            for one in AutoModelForSequenceClassification.from_pretrained(at).predict([TEXT])[0]
        }
        == set(LABELS)
    ),
    HeadKind.TOKCLS: lambda at: (
        AutoModelForTokenClassification.from_pretrained(at).labels == TAGS
        and AutoModelForTokenClassification.from_pretrained(at).predict([TEXT])
    ),
    HeadKind.QA: lambda at: (
        AutoModelForQuestionAnswering.from_pretrained(at).answer("What?", TEXT).text in TEXT
    ),
    HeadKind.MLM: lambda at: len(
        AutoModelForMaskedLM.from_pretrained(at).fill_mask(TEXT + _mask(at))
    ),
}


def _mask(folder):
    return str(PreTrainedTokenizerFast.from_pretrained(folder).mask_token)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_head_answers(tmp_path, family):
    for head in HeadKind:
        folder = write_tiny_model(tmp_path / head, family=family, head=head, words=[TEXT])
        assert OPENED[head](folder), head
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(HeadKind)


def test_the_seed_alone_determines_the_weights(tmp_path):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = write_tiny_model(tmp_path / "first", head=HeadKind.SEQCLS)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    again = write_tiny_model(tmp_path / "again", head=HeadKind.SEQCLS)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (first / name).read_bytes() == (again / name).read_bytes()
    other = write_tiny_model(tmp_path / "other", head=HeadKind.SEQCLS, seed=1)
    key = "classifier.weight"
    weights = [load_file(one / "model.safetensors")[key] for one in (first, other)]
    assert not torch.equal(*weights)
    assert sum(path.stat().st_size for path in first.iterdir()) < 200_000


def test_the_words_of_the_given_texts_are_tokens_and_others_are_spelled(tmp_path):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        write_tiny_model(tmp_path / "it", words=[TEXT])
    )
    inner = tokenizer.inner
    assert inner.encode("The ship sailed.").tokens == [
        "[CLS]",
        "the",
        "ship",
        "sailed",
        ".",
        "[SEP]",
    ]
    assert inner.encode("oak").tokens == ["[CLS]", "o", "##a", "##k", "[SEP]"]


@pytest.mark.slow
def test_transformers_opens_it_and_computes_the_same(tmp_path):
    import transformers

    folder = write_tiny_model(tmp_path / "it", head=HeadKind.SEQCLS, words=[TEXT])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        scores = model(**tokenizer(TEXT, return_tensors="pt")).logits.softmax(-1)[0]
    ours = AutoModelForSequenceClassification.from_pretrained(folder).predict([TEXT])[0]
    theirs = {model.config.id2label[place]: float(score) for place, score in enumerate(scores)}
    assert {one.label: one.score for one in ours} == pytest.approx(theirs, abs=1e-5)


def test_a_model_that_is_there_stays_and_anything_else_is_not_replaced(tmp_path):
    folder = write_tiny_model(tmp_path / "it")
    before = (folder / "model.safetensors").read_bytes()
    assert write_tiny_model(folder, seed=3) == folder
    assert (folder / "model.safetensors").read_bytes() == before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(OSError, match="mine"):
        write_tiny_model(mine)
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
    with pytest.raises(ValueError, match="family 'gpt' is not one of bert, "):
        write_tiny_model(tmp_path / "gpt", family="gpt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it", "mine"]
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
