"""The Trainer over a Graph: what a graph knows about itself reaches the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.checkpoint import checkpoint_metadata
from flodl.data import Batch
from flodl.errors import ArchitectureMismatch
from flodl.graph import FlowBuilder, Graph
from flodl.monitor import EpochMetrics
from flodl.train import RunDirectory, TrainerBuilder
from flodl.train.callbacks import Callback, TrainingRun

from .programs import line, loader_as_built, sgd, squared_error


def graph(width: int = 8) -> Graph:
    return (
        FlowBuilder.from_(nn.Linear(1, width))
        .also(nn.Sequential(nn.Linear(width, width), nn.Tanh()))
        .through(nn.Linear(width, 1))
        .label("line")
        .build()
    )


def test_a_graph_trains_the_same_by_builder_and_by_set_up() -> None:
    handle = (
        Trainer.builder(lambda _: graph(), sgd, squared_error)
        .dataset(line(10))
        .batch_size(3)
        .num_epochs(3)
        .device("cpu")
        .run()
    )

    torch.manual_seed(42)
    model = graph()
    Trainer.setup(model, None, sgd, device="cpu")
    loader = loader_as_built(line(10), 3)
    for epoch in range(3):
        for batch in loader.epoch(epoch):
            squared_error(model, batch).backward()
            model.step()

    trained = handle.model.state_dict()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in model.state_dict().items())
    assert model.training_step == model.step_count == 9
    assert isinstance(handle.model, Graph)
    assert (handle.model.step_count, handle.model.epoch_count) == (9, 3)


def test_label_hash_and_recorded_metrics_of_a_graph_reach_the_run(tmp_path: Path) -> None:
    def train_fn(model: Graph, batch: Batch) -> Tensor:
        loss = squared_error(model, batch)
        model.record_scalar("half", loss / 2)
        return loss

    run = RunDirectory.create(tmp_path)
    handle = (
        Trainer.builder(lambda _: graph(), sgd, train_fn)
        .dataset(line(10))
        .batch_size(3)
        .num_epochs(2)
        .device("cpu")
        .run_dir(run)
        .run()
    )
    for metrics in handle.poll_metrics():
        assert metrics.scalars["half"] == pytest.approx(metrics.avg_loss / 2)
    facts = checkpoint_metadata(run.path / "model.fdl")
    assert facts["label"] == "line"
    assert facts["structural_hash"] == graph().structural_hash()
    assert graph().structural_hash() in (run.path / "report.html").read_text()

    fresh = graph()
    fresh.load_checkpoint(run.path / "model.fdl")
    trained = handle.model.state_dict()
    assert all(torch.equal(tensor, trained[name]) for name, tensor in fresh.state_dict().items())
    with pytest.raises(ArchitectureMismatch):
        graph(width=4).load_checkpoint(run.path / "model.fdl")


class StopAt(Callback):
    """Ctrl-C after so many steps."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, run: TrainingRun) -> None:
        if run.global_step == self._step:
            raise KeyboardInterrupt


class TrendOfHalf(Callback):
    """Looks at the graph's own metrics after each epoch."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:  # noqa: ARG002
        self.seen.append(run.model.trend("half").values)


def test_a_resumed_training_goes_on_with_the_metrics_of_its_graph(tmp_path: Path) -> None:
    def train_fn(model: Graph, batch: Batch) -> Tensor:
        loss = squared_error(model, batch)
        model.record_scalar("half", loss / 2)
        return loss

    def described() -> TrainerBuilder:
        builder = Trainer.builder(lambda _: graph(), sgd, train_fn).dataset(line(10))
        return builder.batch_size(3).num_epochs(3).device("cpu").engine("eager")

    whole = TrendOfHalf()
    straight = described().callbacks(whole).run()

    run = RunDirectory.create(tmp_path)
    with pytest.raises(KeyboardInterrupt):  # in the midst of the second epoch
        described().checkpoint_steps(1).callbacks(StopAt(5)).run_dir(run).run()
    rest = TrendOfHalf()
    resumed = described().callbacks(rest).resume(run.last_checkpoint).run()
    assert rest.seen == whole.seen[1:]
    assert [one.scalars for one in resumed.poll_metrics()] == [
        one.scalars for one in straight.poll_metrics()
    ]
    model = resumed.model
    assert isinstance(model, Graph)
    assert (model.step_count, model.epoch_count, model.flush_count) == (9, 3, 3)
