"""Labels of tokens, and the entities made of them."""

from __future__ import annotations

import warnings

import pytest
import torch

from flodl.hf.auto import AutoModelForTokenClassification
from flodl.hf.errors import TokenizerMissingError
from flodl.hf.predict.tokens import Entity, Pieces, entities_of
from tests.flodl.hf.batches import encoded
from tests.flodl.hf.predict.reference import SENTENCES, pipeline, write

# With a tag of another form, and one that has a hyphen of its own.
NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC", "I-sub-ORG", "S-X")


def labels(names=NAMES):
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}


@pytest.fixture(scope="module", params=["bert", "roberta", "xlm-roberta", "distilbert"])
def directory(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    write(path, request.param, "ForTokenClassification", **labels())
    return path


@pytest.fixture(scope="module")
def head(directory):
    return AutoModelForTokenClassification.from_pretrained(directory)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert")
    write(path, "bert", "ForTokenClassification", **labels())
    return AutoModelForTokenClassification.from_pretrained(path)


@pytest.mark.case("hf", 30)
@pytest.mark.parametrize("aggregation", ["simple", "first", "average", "max"])
def test_entities_are_those_of_the_reference(directory, head, aggregation):
    texts = [*SENTENCES, "xylophone ☃ qi", " leading space", ""]
    ours = head.predict(texts, aggregation=aggregation)
    theirs = pipeline("token-classification", directory, aggregation_strategy=aggregation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [theirs(text) for text in texts]
    assert sum(len(row) for row in expected) > 20
    assert len({entry["entity_group"] for row in expected for entry in row}) > 2
    for text, found, reference in zip(texts, ours, expected, strict=True):
        wanted = [(entry["entity_group"], entry["start"], entry["end"]) for entry in reference]
        assert [(entity.label, entity.start, entity.end) for entity in found] == wanted
        scores = [float(entry["score"]) for entry in reference]
        assert [entity.score for entity in found] == pytest.approx(scores, abs=1e-6)
        assert all(entity.text == text[entity.start : entity.end] for entity in found)


def test_labels_of_tokens_are_those_of_the_reference(directory, head):
    theirs = pipeline("token-classification", directory, ignore_labels=[])
    for text, row in zip(SENTENCES, head.predict(SENTENCES), strict=True):
        expected = theirs(text)
        found = [token for token in row if not token.special]
        assert [(t.label, t.start, t.end) for t in found] == [
            (entry["entity"], entry["start"], entry["end"]) for entry in expected
        ]
        # The reference shows what an unknown token covers; here it is the token itself.
        unknown = head.tokenizer.unk_token
        assert all(
            token.token in (entry["word"], unknown)
            for token, entry in zip(found, expected, strict=True)
        )
        scores = [float(entry["score"]) for entry in expected]
        assert [t.score for t in found] == pytest.approx(scores, abs=1e-6)


def test_every_position_is_labelled_padding_included(bert):
    texts = ["the fox", "the lazy dog jumps"]
    batch, rows = encoded(bert.tokenizer, texts), bert.predict(texts)
    width = batch.input_ids.shape[1]
    assert [len(row) for row in rows] == [width, width]
    short = rows[0]
    assert short[0].token == "[CLS]"
    assert (short[0].special, short[0].attends, short[0].word_id) == (True, True, None)
    assert [t.attends for t in short] == (batch.attention_mask[0] != 0).tolist()
    assert short[-1].token == "[PAD]"
    assert (short[-1].special, short[-1].attends) == (True, False)
    text = "the fox"
    words = [t for t in short if not t.special]
    assert "".join(text[t.start : t.end] for t in words) == "thefox"
    assert {t.word_id for t in words} == {0, 1}
    assert all(t.label in NAMES and 0 < t.score <= 1 for t in short)


def entities(rows, aggregation="simple", words=None, names=NAMES, text="abcdefghij"):
    """Entities of pieces of one character each, given the probabilities of some labels."""
    probabilities = torch.zeros(len(rows), len(names))
    for piece, row in enumerate(rows):
        for name, score in row.items():
            probabilities[piece, names.index(name)] = score
    spans = [(piece, piece + 1) for piece in range(len(rows))]
    pieces = Pieces(torch.arange(len(rows)), spans, words or list(range(len(rows))))
    return [
        (entity.label, round(entity.score, 6), entity.text)
        for entity in entities_of(pieces, probabilities, names, aggregation, text)
    ]


def test_neighbours_merge_unless_the_later_one_begins():
    assert entities([{"B-PER": 0.5}, {"I-PER": 1}, {"B-PER": 0.25}]) == [
        ("PER", 0.75, "ab"),
        ("PER", 0.25, "c"),
    ]
    assert entities([{"I-LOC": 1}, {"O": 1}, {"I-LOC": 1}]) == [("LOC", 1, "a"), ("LOC", 1, "c")]
    assert entities([{"MISC": 1}, {"MISC": 0.5}]) == [("MISC", 0.75, "ab")]


def test_a_label_is_named_by_what_follows_its_first_hyphen():
    assert entities([{"I-sub-ORG": 1}, {"I-sub-ORG": 1}]) == [("sub-ORG", 1, "ab")]
    assert entities([{"S-X": 1}, {"S-X": 1}]) == [("X", 1, "ab")]


def test_a_word_has_one_label():
    rows = [{"B-PER": 0.5, "I-LOC": 0.4}, {"I-LOC": 0.9, "B-PER": 0.1}, {"O": 1}]
    words = [0, 0, 1]
    assert entities(rows, "simple", words) == [("PER", 0.5, "a"), ("LOC", 0.9, "b")]
    assert entities(rows, "first", words) == [("PER", 0.5, "ab")]
    assert entities(rows, "average", words) == [("LOC", 0.65, "ab")]
    assert entities(rows, "max", words) == [("LOC", 0.9, "ab")]


def test_of_equally_sure_pieces_the_first_speaks():
    rows = [{"B-PER": 0.5}, {"I-LOC": 0.5}]
    assert entities(rows, "max", [0, 0]) == [("PER", 0.5, "ab")]


def test_a_text_without_tokens_has_no_entities(bert):
    assert bert.predict([""], aggregation="average") == [[]]
    assert entities([]) == []


def test_entities_are_named_tuples(bert):
    found = [entity for row in bert.predict(SENTENCES, aggregation="simple") for entity in row]
    assert found
    assert all(type(entity) is Entity for entity in found)


def test_mistakes_are_named(bert):
    with pytest.raises(ValueError, match="'mean' is not one of simple, first, average, max"):
        bert.predict(["a"], aggregation="mean")
    with pytest.raises(TypeError, match=r"predict\(\) takes a list of texts"):
        bert.predict("a text")
    with pytest.raises(TypeError, match=r"predict\(\) takes texts, and input 1 is a tuple"):
        bert.predict(["a text", ("a", "pair")], aggregation="simple")
    bare = type(bert)(bert.config, bert.graph, None)
    with pytest.raises(TokenizerMissingError, match=r"predict\(\) needs a tokenizer"):
        bare.predict(["a"])
