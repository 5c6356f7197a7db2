from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl.checkpoint import checkpoint_metadata, load_checkpoint_file
from flodl.train import RunDirectory, TrainerBuilder

from .programs import network, training


class Watched:
    """An evaluation that gives these scores, and remembers the model of each."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores
        self.models: list[dict[str, torch.Tensor]] = []

    def __call__(self, model: nn.Module) -> dict[str, float]:
        self.models.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"score": self.scores[len(self.models) - 1]}


def best(builder: TrainerBuilder, tmp_path: Path) -> Path:
    run = RunDirectory.create(tmp_path)
    builder.run_dir(run).run()
    return run.best_checkpoint


def loaded(path: Path) -> dict[str, torch.Tensor]:
    model = network()
    load_checkpoint_file(path, model.named_parameters(), model.named_buffers())
    return model.state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in other)


def test_the_model_of_the_best_epoch_is_kept(tmp_path: Path) -> None:
    watched = Watched([0.3, 0.1, 0.1, 0.2])
    path = best(training(epochs=4).eval_fn(watched).keep_best("score"), tmp_path)
    assert same(loaded(path), watched.models[1]), "of equal epochs the first counts"
    assert not same(loaded(path), watched.models[3])
    assert checkpoint_metadata(path)["epoch"] == "2"
    assert json.loads(checkpoint_metadata(path)["metrics"])["score"] == 0.1


def test_an_accuracy_is_better_when_it_is_higher(tmp_path: Path) -> None:
    watched = Watched([0.3, 0.9, math.nan, 0.2])
    builder = training(epochs=4).eval_fn(watched).keep_best("score", higher_is_better=True)
    assert same(loaded(best(builder, tmp_path)), watched.models[1])


def test_without_a_name_the_loss_decides(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    handle = training(epochs=4).keep_best().run_dir(run).run()
    losses = [epoch.avg_loss for epoch in handle.poll_metrics()]
    kept = int(checkpoint_metadata(run.best_checkpoint)["epoch"])
    assert kept == losses.index(min(losses)) + 1


def test_the_averaged_weights_are_kept_where_they_were_evaluated(tmp_path: Path) -> None:
    watched = Watched([0.1, 0.2])
    builder = training(epochs=2).ema(0.9).eval_fn(watched).keep_best("score")
    assert same(loaded(best(builder, tmp_path)), watched.models[0])


def test_nothing_is_kept_where_no_epoch_has_a_value(tmp_path: Path) -> None:
    watched = Watched([math.nan, math.nan])
    assert not best(training().eval_fn(watched).keep_best("score"), tmp_path).exists()
    assert not best(training().eval_fn(Watched([1.0, 1.0])), tmp_path).exists()


def test_a_resumed_training_takes_the_best_model_so_far_along(tmp_path: Path) -> None:
    first = RunDirectory.create(tmp_path)
    watched = Watched([0.1, 0.2])
    training(epochs=2).eval_fn(watched).keep_best("score").run_dir(first).run()
    second = RunDirectory.create(tmp_path, resume=first.path)
    worse = Watched([0.5, 0.4])
    training(epochs=4).eval_fn(worse).keep_best("score").run_dir(second).run()
    assert second.best_checkpoint.read_bytes() == first.best_checkpoint.read_bytes()

    third = RunDirectory.create(tmp_path, resume=first.path)
    better = Watched([0.05, 0.4])
    training(epochs=4).eval_fn(better).keep_best("score").run_dir(third).run()
    assert same(loaded(third.best_checkpoint), better.models[0])


def test_a_damaged_best_model_is_left_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = RunDirectory.create(tmp_path)
    training(epochs=1).keep_best().run_dir(first).run()
    first.best_checkpoint.write_bytes(b"broken")
    second = RunDirectory.create(tmp_path, resume=first.path)
    watched = Watched([0.1])
    training(epochs=2).eval_fn(watched).keep_best("loss").run_dir(second).run()
    assert (
        f"cannot take over the best model so far, {first.best_checkpoint}"
        in capsys.readouterr().err
    )


def test_a_metric_that_nobody_reports_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_best watches 'f1', which epoch 0 did not report"):
        best(training().keep_best("f1"), tmp_path)


def test_a_resumed_training_may_watch_what_the_first_one_did_not_report(tmp_path: Path) -> None:
    first = RunDirectory.create(tmp_path)
    training(epochs=2).run_dir(first).run()
    watched = Watched([0.3, 0.1, 0.2])
    builder = training(epochs=5).eval_fn(watched).keep_best("score").resume(first.path)
    assert same(loaded(best(builder, tmp_path)), watched.models[1])
