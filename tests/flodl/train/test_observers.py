"""What flodl does at the ends of an epoch: each observer alone, and in any order that is free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flodl.monitor import EpochMetrics, Timeline
from flodl.train import RunDirectory, loop
from flodl.train.callbacks import Callback, Hooks, TrainingRun
from flodl.train.observers import EpochFunction, Marks, observers_of
from flodl.train.observers.checkpoints import load_best
from flodl.train.observers.early_stop import EarlyStop
from flodl.train.observers.ema import WeightAverage

from .programs import network, sgd, training


def a_run() -> TrainingRun:
    model = network()
    return TrainingRun(model, sgd(list(model.parameters())), torch.device("cpu"), 3, [])


def metrics(epoch: int, loss: float) -> EpochMetrics:
    return EpochMetrics(
        epoch=epoch, avg_loss=loss, scalars={}, epoch_ms=1.0, throughput=1.0, share=[1.0]
    )


def test_marks_alone_mark_the_ends_of_an_epoch() -> None:
    with Timeline() as timeline:
        run, marks = a_run(), Marks(timeline)
        marks.on_epoch_start(run)
        marks.on_epoch_end(run, metrics(0, 0.5))
    assert [event.kind for event in timeline.events] == ["epoch_start", "epoch_end"]


def test_a_function_alone_ends_a_training_with_false() -> None:
    run = a_run()
    EpochFunction(lambda found: found.avg_loss > 0.1).on_epoch_end(run, metrics(0, 0.5))
    assert run.stopped is None
    EpochFunction(lambda found: found.avg_loss > 0.1).on_epoch_end(run, metrics(1, 0.05))
    assert run.stopped == "metrics_fn returned False"


def test_an_early_stop_alone_reads_nothing_but_the_run() -> None:
    run, stop = a_run(), EarlyStop(window=2, tolerance=0.1)
    stop.on_epoch_end(run, metrics(0, 0.5))
    assert run.stopped is None
    run._history = [metrics(0, 0.5)]
    stop.on_epoch_end(run, metrics(1, 0.5))
    assert run.stopped == "loss stalled over 2 epochs"


def test_an_average_of_weights_alone_follows_the_steps() -> None:
    model = network()
    average = WeightAverage(model, 0.5)
    Hooks([average]).call("on_step_end", a_run())
    assert average.updates == 1
    assert not Hooks([average]).has("on_barrier")


def outcome(folder: Path, order: tuple[int, ...]) -> list[Any]:
    """Train with the observers in an order; return what the run has recorded."""
    plain = observers_of

    def ordered(*given: Any) -> Iterator[Callback]:
        found = list(plain(*given))
        assert len(found) == len(order)
        return iter([found[place] for place in order])

    run = RunDirectory.create(folder)
    with pytest.MonkeyPatch.context() as patch, Timeline() as timeline:
        patch.setattr(loop, "observers_of", ordered)
        trained = (
            training(epochs=3)
            .lr_scheduler(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
            .timeline(timeline)
            .ema(0.5)
            .keep_best()
            .run_dir(run)
            .run()
        )
    history = trained.poll_metrics()
    weights = [tensor.tolist() for tensor in trained.model.state_dict().values()]
    best = load_best(run, network()).state_dict()
    weights += [tensor.tolist() for tensor in best.values()]
    kinds = sorted(event.kind for event in timeline.events if event.kind.startswith("epoch"))
    return [weights, [(one.avg_loss, one.lr) for one in history], kinds]


def test_the_order_of_average_saving_schedule_marks_and_report_is_free(tmp_path: Path) -> None:
    plain = (0, 1, 2, 3, 4)
    orders = (plain, plain[::-1], plain[2:] + plain[:2])
    first, *others = (outcome(tmp_path / "".join(map(str, order)), order) for order in orders)
    assert [lr for _, lr in first[1]] == [0.05, 0.025, 0.0125]
    assert others == [first] * 2
