"""Batches: what is in them, the order that comes back, and the model left as it was."""

from __future__ import annotations

import random
from threading import Event, Thread

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from flodl.errors import StateError
from flodl.hf.auto import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from flodl.hf.predict import batching as module
from flodl.hf.predict.batching import Batching, encoded_batches, running
from tests.flodl.hf.predict.reference import SENTENCES, write
from tests.rows import each_row

WORDS = " ".join(SENTENCES).split()
PLANS = (
    {},
    {"batch_size": 1},
    {"batch_size": 7, "bucket": False},
    {"batch_size": None, "max_tokens": 200},
    {"max_tokens": 64, "bucket": False},
)


def mixed_texts(count=100, seed=0):
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 20))) for _ in range(count)]


def modes(graph):
    return [module.training for module in graph.modules()]


def some_modes(graph):
    """Train mode with a part left in evaluation mode, as frozen parts may be."""
    graph.train()
    for number, part in enumerate(graph.modules()):
        if number % 3 == 2:
            part.training = False
    return modes(graph)


@pytest.mark.case("hf", 33)
@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
def test_a_hundred_texts_are_labelled_alike_in_any_batches(tmp_path, family):
    write(tmp_path, family, "ForSequenceClassification", num_labels=4)
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    texts = mixed_texts()
    before = some_modes(head.graph)
    alone = [dict(head.predict([text])[0]) for text in texts]
    assert len({round(row["LABEL_0"], 6) for row in alone}) > 90
    for plan in PLANS:
        for row, expected in zip(head.predict(texts, **plan), alone, strict=True):
            assert dict(row) == pytest.approx(expected, abs=1e-5)
        assert modes(head.graph) == before


@pytest.mark.case("hf", 33)
def test_a_hundred_texts_are_tagged_alike_in_any_batches(tmp_path):
    write(tmp_path, "bert", "ForTokenClassification", num_labels=4)
    head = AutoModelForTokenClassification.from_pretrained(tmp_path)
    texts = mixed_texts()
    before = some_modes(head.graph)
    alone = [head.predict([text], aggregation="simple")[0] for text in texts]
    for plan in PLANS:
        for row, expected in zip(
            head.predict(texts, aggregation="simple", **plan), alone, strict=True
        ):
            assert [e._replace(score=0) for e in row] == [e._replace(score=0) for e in expected]
            assert [e.score for e in row] == pytest.approx([e.score for e in expected], abs=1e-5)
    assert modes(head.graph) == before


@pytest.mark.case("hf", 33)
def test_a_hundred_questions_are_answered_alike_in_any_batches(tmp_path):
    write(tmp_path, "distilbert", "ForQuestionAnswering")
    head = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    pairs = [("Who met?", text) for text in mixed_texts()]
    before = some_modes(head.graph)
    options = {"max_seq_len": 40, "doc_stride": 8}
    alone = [head.answer(*pair, **options) for pair in pairs]
    for plan in PLANS:
        for answer, expected in zip(
            head.answer_batch(pairs, **options, **plan), alone, strict=True
        ):
            assert answer._replace(score=0) == expected._replace(score=0)
            assert answer.score == pytest.approx(expected.score, abs=1e-5)
    assert modes(head.graph) == before


def test_modes_are_restored_after_an_error_and_gradients_come_back():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    model[1].eval()
    before = modes(model)
    assert before == [True, True, False, False, False]

    def failing():
        with running(model) as device:
            assert device == torch.device("cpu")
            assert not any(modes(model))
            assert torch.is_inference_mode_enabled()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert modes(model) == before
    assert model(torch.ones(1, 2)).requires_grad


@given(
    st.lists(st.integers(1, 50), max_size=60),
    st.none() | st.integers(1, 8),
    st.none() | st.integers(1, 120),
    st.booleans(),
)
def test_batches_hold_every_input_once_and_keep_their_limits(lengths, size, tokens, bucket):
    if size is None and tokens is None:
        return
    parts = list(Batching(size, tokens, bucket).split(lengths))
    order = [row for part in parts for row in part]
    assert sorted(order) == list(range(len(lengths)))
    for part in parts:
        assert size is None or len(part) <= size
        longest = max(lengths[row] for row in part)
        assert tokens is None or len(part) == 1 or len(part) * longest <= tokens
    if bucket:
        assert [lengths[row] for row in order] == sorted(lengths, reverse=True)
    else:
        assert order == list(range(len(lengths)))


def test_a_batch_is_as_full_as_its_limits_allow():
    assert list(Batching(3).split([1] * 7)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(Batching(None, 10).split([2, 5, 5, 9])) == [[3], [1, 2], [0]]
    assert list(Batching(None, 10, bucket=False).split([2, 5, 5, 20])) == [[0, 1], [2], [3]]


def test_the_cpu_gets_batches_that_fit_its_caches():
    assert Batching().on(torch.device("cpu")) == Batching(32, 2048)
    assert Batching(8, 99, False).on(torch.device("cpu")) == Batching(8, 99, False)
    assert Batching().on(torch.device("cuda")) == Batching(32, None)


@each_row(
    ("limits", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"max_tokens": -1}, "max_tokens must be at least 1, got -1"),
        ({"batch_size": None}, "batch_size and max_tokens cannot both be None"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits, message):
    with pytest.raises(ValueError, match=message):
        Batching(**limits)


def test_large_inputs_are_encoded_in_pieces_and_numbered_through(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 3)
    seen = []

    class Letters:
        """Two windows for every text that is longer than two letters."""

        def __call__(self, texts, first):
            seen.append((list(texts), first))
            samples = [n for n, text in enumerate(texts) for _ in range(1 + (len(text) > 2))]
            return [texts[n] for n in samples], samples

        def batch(self, rows):
            return {"lengths": [len(row) for row in rows]}

    texts = ["a", "bbbb", "cc", "ddd", "e"]
    parts = list(encoded_batches(texts, Letters(), Batching(2)))
    assert seen == [(["a", "bbbb", "cc"], 0), (["ddd", "e"], 3)]
    found = [
        (number, row, length)
        for part in parts
        for number, row, length in zip(part.inputs, part.rows, part.batch["lengths"], strict=True)
    ]
    assert sorted(found) == [
        (0, 0, 1),
        (1, 1, 4),
        (1, 2, 4),
        (2, 3, 2),
        (3, 4, 3),
        (3, 5, 3),
        (4, 6, 1),
    ]


def test_an_error_far_into_a_list_says_where(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_CHUNK", 2)
    write(tmp_path, "bert", "ForSequenceClassification", num_labels=2)
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="text 3 has 302 tokens and the limit is 128"):
        head.predict(["the", "the", "the", "the " * 300])
    with pytest.raises(ValueError, match="pair 4 has 303 tokens and the limit is 128"):
        head.predict([*[("the", "fox")] * 4, ("the " * 299, "the")])


def test_any_iterable_is_a_list_of_inputs(tmp_path):
    write(tmp_path, "bert", "ForSequenceClassification", num_labels=2)
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert head.predict(text for text in SENTENCES[:3]) == head.predict(list(SENTENCES[:3]))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (None, r"predict\(\) takes a list of texts, got a NoneType"),
        ({"text": "the fox"}, r"predict\(\) takes a list of texts, got a dict"),
        (b"the fox", r"predict\(\) takes a list of texts, got one string"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path, inputs, message):
    write(tmp_path, "bert", "ForSequenceClassification", num_labels=2)
    head = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with pytest.raises(TypeError, match=message):
        head.predict(inputs)


def test_modes_stay_until_the_last_thread_is_done():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    entered, leave = Event(), Event()

    def first():
        with running(model):
            entered.set()
            leave.wait(30)

    thread = Thread(target=first)
    thread.start()
    assert entered.wait(30)
    with running(model):
        leave.set()
        thread.join(30)
        assert not any(modes(model))
    assert all(modes(model))


def test_a_model_without_values_says_so_and_keeps_its_modes():
    model = nn.Linear(2, 2, device="meta")

    def run():
        with running(model):
            raise AssertionError("it must not come this far")

    with pytest.raises(StateError, match="on the meta device and has no values"):
        run()
    assert model.training
