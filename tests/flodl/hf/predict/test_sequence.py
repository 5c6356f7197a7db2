"""Labels of texts: their order and scores."""

from __future__ import annotations

import pytest
import tokenizers
import torch

from flodl.hf.auto import AutoModelForSequenceClassification
from flodl.hf.errors import TokenizerMissingError
from flodl.hf.tokenizer import PreTrainedTokenizerFast
from tests.flodl.hf.predict.reference import SENTENCES, pipeline, write

NAMES = {0: "joy", 1: "anger", 2: "fear", 3: "calm"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("seqcls")
    write(path, "bert", "ForSequenceClassification", id2label=NAMES)
    return path


@pytest.fixture(scope="module")
def head(directory):
    return AutoModelForSequenceClassification.from_pretrained(directory)


def assert_like_pipeline(ours, theirs):
    for row, reference in zip(ours, theirs, strict=True):
        assert [label for label, _ in row] == [entry["label"] for entry in reference]
        scores = [entry["score"] for entry in reference]
        assert [score for _, score in row] == pytest.approx(scores, abs=1e-6)


def assert_equal(ours, others):
    for row, other in zip(ours, others, strict=True):
        assert [label for label, _ in row] == [label for label, _ in other]
        assert [score for _, score in row] == pytest.approx([s for _, s in other], abs=1e-6)


@pytest.mark.case("hf", 29)
@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (None, NAMES),
        ("single_label_classification", NAMES),
        ("multi_label_classification", NAMES),
        ("regression", {0: "x", 1: "y"}),
        (None, {0: "score"}),
    ],
)
def test_labels_and_scores_are_those_of_the_reference(tmp_path, family, problem, names):
    fields = {"id2label": names, "label2id": {name: number for number, name in names.items()}}
    write(tmp_path, family, "ForSequenceClassification", problem_type=problem, **fields)
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    classify = pipeline("text-classification", tmp_path)

    ours = head.predict(SENTENCES)
    assert_like_pipeline(ours, [classify(text, top_k=None) for text in SENTENCES])
    sums = [sum(score for _, score in row) for row in ours]
    if len(names) > 1 and problem in (None, "single_label_classification"):
        assert sums == pytest.approx([1] * len(sums), abs=1e-6)
    else:
        assert all(abs(total - 1) > 1e-3 for total in sums)


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "none"])
def test_another_function_can_be_asked_for(directory, head, function):
    theirs = pipeline("text-classification", directory)
    expected = [theirs(text, top_k=None, function_to_apply=function) for text in SENTENCES]
    assert_like_pipeline(head.predict(SENTENCES, function_to_apply=function), expected)


def test_pairs_are_scored_together(directory, head):
    pairs = list(zip(SENTENCES, reversed(SENTENCES), strict=True))
    classify = pipeline("text-classification", directory)
    expected = [classify({"text": a, "text_pair": b}, top_k=None) for a, b in pairs]
    assert_like_pipeline(head.predict(pairs), expected)


def test_only_the_best_labels_are_returned(head):
    whole = head.predict(SENTENCES)
    assert head.predict(SENTENCES, top_k=2) == [row[:2] for row in whole]
    assert head.predict(SENTENCES, top_k=9) == whole
    with pytest.raises(ValueError, match="top_k must be at least 1, got 0"):
        head.predict(SENTENCES, top_k=0)


def test_equal_scores_keep_the_order_of_the_labels(head):
    with torch.no_grad():
        classifier = head.graph.get_submodule("classifier")
        kept = [parameter.clone() for parameter in classifier.parameters()]
        for parameter in classifier.parameters():
            parameter.zero_()
        assert head.predict(["one"]) == [[(name, 0.25) for name in NAMES.values()]]
        for parameter, values in zip(classifier.parameters(), kept, strict=True):
            parameter.copy_(values)


def test_of_many_equal_scores_the_first_labels_come_first(tmp_path):
    # Sorting that is not stable shows with more than 16 values only.
    write(tmp_path, "bert", "ForSequenceClassification", num_labels=40)
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in head.graph.get_submodule("classifier").parameters():
            parameter.zero_()
    names = [f"LABEL_{number}" for number in range(40)]
    assert [label for label, _ in head.predict(["one"])[0]] == names
    assert [label for label, _ in head.predict(["one"], top_k=3)[0]] == names[:3]


def test_no_texts_give_no_results(head):
    assert head.predict([]) == []


def test_mistakes_are_named(head):
    with pytest.raises(TypeError, match=r"predict\(\) takes a list of texts"):
        head.predict("a text")
    with pytest.raises(ValueError, match="'tanh' is not one of softmax, sigmoid, none"):
        head.predict(["a"], function_to_apply="tanh")
    with pytest.raises(TypeError, match="texts and pairs of texts mixed"):
        head.predict(["a", ("b", "c")])


def test_text_needs_a_tokenizer(head):
    bare = type(head)(head.config, head.graph, None)
    with pytest.raises(TokenizerMissingError, match=r"predict\(\) needs a tokenizer"):
        bare.predict(["a"])


@pytest.mark.case("hf", 34)
def test_a_text_that_is_too_long_is_named_or_cut(head):
    long = "the " * 200
    with pytest.raises(ValueError, match="text 1 has 202 tokens and the limit is 128"):
        head.predict(["short", long])
    short, cut = head.predict(["short", long], truncation=True)
    assert_equal([short, cut], [*head.predict(["short"]), *head.predict(["the " * 126])])
    cut = head.predict([long], truncation=True, max_length=12)
    assert_equal(cut, head.predict(["the " * 10]))


def without_special_tokens():
    """A tokenizer of which an empty text gets no tokens at all."""
    words = {"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast.from_inner(inner)


def test_texts_without_any_token_are_named(head):
    bare = type(head)(head.config, head.graph, without_special_tokens())
    with pytest.raises(ValueError, match="text 0 has no tokens, for it is empty and this tok"):
        bare.predict(["", " "])
    with pytest.raises(ValueError, match="pair 0 has no tokens"):
        bare.predict([("", "")])
    # Beside others it is a row of padding, as elsewhere.
    assert_equal(bare.predict(["", "a b"])[1:], bare.predict(["a b"]))
