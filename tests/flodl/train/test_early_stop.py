from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from flodl.train import RunDirectory, TrainerBuilder
from flodl.train.observers.early_stop import EarlyStop
from tests.rows import each_row

from .programs import training

LEVEL = [1.0, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25]


def epochs_trained(values: list[float], **settings: Any) -> tuple[int, str | None]:
    """How many epochs are trained when "score" takes these values, and why no more."""
    score = itertools.chain(values)
    builder = training(epochs=len(values)).eval_fn(lambda _: {"score": next(score)})
    handle = builder.early_stop("score", **settings).run()
    return len(handle.poll_metrics()), handle.stopped


def test_a_level_metric_stops_the_training_once_the_window_is_full() -> None:
    epochs, reason = epochs_trained(LEVEL, window=3, tolerance=1e-3)
    assert epochs == 5
    assert reason == "score stalled over 3 epochs"


def test_patience_waits_for_as_many_verdicts_in_a_row() -> None:
    epochs, reason = epochs_trained(LEVEL, window=3, tolerance=1e-3, patience=3)
    assert epochs == 7
    assert reason == "score stalled over 3 epochs, 3 epochs in a row"
    interrupted = [1.0, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1, 0.1]
    assert epochs_trained(interrupted, window=3, patience=2)[0] == 8


def test_no_verdict_before_the_window_is_full() -> None:
    assert epochs_trained([0.5] * 4, window=5) == (4, None)
    assert epochs_trained([0.5] * 5, window=5)[1] is not None


@each_row(
    ("mode", "values", "epochs"),
    [
        ("stalled", [4.0, 3.0, 2.0, 1.0, 0.0], 5),
        ("not improving", [4.0, 3.0, 2.0, 3.0, 4.0], 4),
        ("converged", [1.0, 0.0, 1.0, 0.0, 0.0, 0.0], 6),
    ],
)
def test_the_modes_ask_different_questions(mode: str, values: list[float], epochs: int) -> None:
    trained, _ = epochs_trained(values, window=3, tolerance=1e-2, mode=mode)
    assert trained == epochs


def test_an_accuracy_improves_upwards() -> None:
    rising = [0.1, 0.2, 0.3, 0.4]
    assert epochs_trained(rising, window=2, mode="not improving")[0] == 2
    assert epochs_trained(rising, window=2, mode="not improving", higher_is_better=True) == (
        4,
        None,
    )


def test_the_loss_is_watched_by_default() -> None:
    handle = training(epochs=30).early_stop(window=2, tolerance=100.0).run()
    assert len(handle.poll_metrics()) == 2
    assert handle.stopped == "loss stalled over 2 epochs"


def test_the_end_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    epochs_trained(LEVEL, window=3)
    assert "  stopped after epoch 5: score stalled over 3 epochs" in capfd.readouterr().out


def test_a_metric_that_was_not_reported_is_named_with_those_that_were() -> None:
    builder = training().eval_fn(lambda _: {"accuracy": 0.5}).early_stop("acuracy")
    with pytest.raises(ValueError, match=r"'acuracy', which epoch 0 .* it has 'loss', 'accuracy'"):
        builder.run()


@each_row(
    ("settings", "complaint"),
    [
        ({"mode": "bored"}, "mode='bored': use one of 'stalled', 'converged', 'not improving'"),
        ({"window": 1}, "window=1: a trend needs at least 2 epochs"),
        ({"tolerance": 0}, "tolerance=0: it must be greater than 0"),
        ({"patience": 0}, "patience=0: it must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        EarlyStop(**settings)


def test_a_run_cut_off_when_it_was_to_stop_trains_no_more_after_a_resume(tmp_path: Path) -> None:
    def described(scores: list[float]) -> TrainerBuilder:
        score = itertools.chain(scores)
        builder = training(epochs=8).eval_fn(lambda _: {"score": next(score)})
        return builder.early_stop("score", window=3)

    run = RunDirectory.create(tmp_path)
    whole = described(LEVEL).run_dir(run).run()
    resumed = described([]).resume(run.last_checkpoint).run()
    assert resumed.stopped == whole.stopped == "score stalled over 3 epochs"
    assert len(resumed.poll_metrics()) == len(whole.poll_metrics()) == 5

    further = training(epochs=8).resume(run.last_checkpoint).run()
    assert len(further.poll_metrics()) == 8, "without the condition it goes on"


@each_row("mode", ["stalled", "converged", "not improving"])
@each_row("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_no_improvement(mode: str, value: float) -> None:
    stop = EarlyStop("acc", window=2, patience=2, mode=mode, higher_is_better=True)
    assert not stop._settled([0.1, 0.3, value])
    assert stop._settled([0.1, 0.3, value, value])
    assert not stop._settled([0.1, value, 0.5, 0.9])


def test_a_resumed_training_may_watch_what_the_first_one_did_not_report(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    training(epochs=3).run_dir(run).run()
    score = iter(LEVEL)
    builder = training(epochs=11).eval_fn(lambda _: {"score": next(score)}).resume(run.path)
    handle = builder.early_stop("score", window=3, tolerance=1e-3).run()
    assert len(handle.poll_metrics()) == 3 + 5
