"""How fast models of Hugging Face are; the benchmarks measure, and the bars stand here.

They take minutes and want an idle machine: ``pytest -m slow``.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from benchmarks.hf import minilm
from benchmarks.huggingface import cold, material, rates, residence, training
from benchmarks.huggingface.products import time_through_onednn
from benchmarks.huggingface.rates import OURS, REFERENCE, ROUTED, Measured
from benchmarks.measure import median_ratio
from flodl.train.step.tuning import MEDIUM

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default"),  # those of the libraries beside which we are measured
]
ROUNDS = 5
LONG = 2
"""Rounds of what takes minutes."""
SAME = 1e-5


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material.bert(tmp_path_factory.mktemp("models") / "bert")


def speed(measured: Measured, name: str) -> float:
    """How many times faster than another subject flodl is."""
    return median_ratio(measured.seconds[name], measured.seconds[OURS])


@pytest.mark.case("hf", 49)
def test_importing_adds_little_to_importing_torch() -> None:
    taken = cold.seconds(cold.IMPORTS, 10)
    base = taken["torch"]
    added = {
        name: statistics.median(a - b for a, b in zip(times, base, strict=True))
        for name, times in taken.items()
    }
    assert added["torch, flodl.hf"] <= 0.05
    assert added["torch, flodl.hf and a class of it"] <= 0.15


@pytest.mark.case("hf", 50)
def test_a_process_that_asks_one_question_ends_soon(bert: Path) -> None:
    answers = {name: cold.answer(name, bert) for name in cold.programs(bert)}
    assert answers["flodl"] == pytest.approx(answers["transformers"], rel=SAME)
    assert answers["flodl"] == pytest.approx(answers["floor"], rel=SAME)
    taken = cold.seconds(cold.programs(bert), 10)
    assert median_ratio(taken["flodl"], taken["transformers"]) <= 0.36
    assert median_ratio(taken["flodl"], taken["floor"]) <= 1.10


@pytest.mark.case("hf", 51)
def test_weights_are_in_memory_once_while_a_model_is_opened(bert: Path) -> None:
    size = (bert / "model.safetensors").stat().st_size
    found = residence.measured(OURS, bert, 0, 128)
    before, opened = found[residence.IMPORTED], found[residence.OPENED]
    assert 0 < opened["peak"] - before["anon"] - before["file"] <= 1.1 * size


@pytest.mark.case("hf", 52)
def test_full_batches_are_as_fast_as_the_references(bert: Path, tmp_path: Path) -> None:
    (bert_batch,) = rates.batches(bert, [(8, 128)], 10)
    one, eight = rates.batches(material.deberta(tmp_path), [(1, 32), (8, 128)], LONG + 1)
    assert max(found.difference for found in (bert_batch, one, eight)) <= SAME
    assert 1 / speed(bert_batch, REFERENCE) <= 1.05
    assert 1 / speed(one, REFERENCE) <= 0.60
    assert 1 / speed(eight, REFERENCE) <= 0.85


@pytest.mark.case("hf", 53)
def test_texts_of_many_lengths_are_embedded_without_padding(bert: Path, tmp_path: Path) -> None:
    texts = material.sentences(512, 8, 256, log=True)
    folder = material.sentence_model(tmp_path / "sentences", bert)
    found = rates.embedding(folder, texts, LONG, "bert-base")
    assert found.difference <= SAME
    assert speed(found, f"{REFERENCE}, in the given order") >= 1.5
    assert speed(found, "sentence-transformers") >= 0.95


def test_a_published_model_embeds_as_fast_as_sentence_transformers() -> None:
    folder = minilm()
    assert folder is not None
    found = rates.embedding(folder, material.sentences(512, 8, 256, log=True), ROUNDS, "MiniLM")
    assert found.difference <= SAME
    assert speed(found, "sentence-transformers") >= 0.95


@pytest.mark.case("hf", 54)
def test_one_hidden_word_does_not_cost_the_scores_of_all_positions(tmp_path: Path) -> None:
    found = rates.fill_mask(material.xlm_roberta(tmp_path), 10)
    assert found.difference <= SAME
    assert 1 / speed(found, REFERENCE) <= 0.5


def test_sentences_are_classified_several_times_faster(
    bert: Path, request: pytest.FixtureRequest
) -> None:
    if time_through_onednn((MEDIUM,)) > 0.7:
        reason = "torch's libraries multiply equally fast here: what is saved is the padding"
        request.applymarker(pytest.mark.xfail(reason=reason))
    found = rates.classification(bert, material.sentences(256, 5, 120), ROUNDS)
    assert found.difference <= SAME
    fast = found.seconds[ROUTED]
    assert median_ratio(found.seconds[f"{REFERENCE}, in the given order"], fast) >= 3.0
    assert median_ratio(found.seconds[f"{REFERENCE}, sorted by length"], fast) >= 2.0


def test_fine_tuning_does_not_train_on_padding(bert: Path) -> None:
    found = training.epoch(bert, material.sentences(256, 5, 120), LONG)
    assert found.difference <= SAME
    assert speed(found, REFERENCE) >= 1.8
