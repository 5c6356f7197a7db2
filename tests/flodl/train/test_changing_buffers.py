"""Models whose buffers change size, type or presence train the same, whatever looks on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.ao.quantization as quantization
from torch import Tensor, nn

from flodl import FlowBuilder, Graph, RunDirectory, Trainer, load_best
from flodl.checkpoint import load_checkpoint_file, save_checkpoint_file
from flodl.errors import ArchitectureMismatch, CheckpointError, ShapeMismatch
from flodl.train import TrainerBuilder
from tests.rows import each_row

from .programs import line

pytestmark = pytest.mark.filterwarnings(
    "ignore:Lazy modules", "ignore:.*quantization", "ignore:Please use quant_min"
)


def quantised() -> nn.Module:
    net = nn.Sequential(quantization.QuantStub(), nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
    net.qconfig = quantization.get_default_qat_qconfig("x86")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantization.prepare_qat(net.train())


class Remembering(nn.Module):
    """A network that keeps something of every batch that it sees."""

    def __init__(self, first: Tensor | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
        self.register_buffer("kept", first)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.keep(x.detach())
        known = 0.0 if self.kept is None or not self.kept.numel() else self.kept.double().mean()
        out: Tensor = self.layers(x) + 0.1 * float(known)
        return out

    def keep(self, x: Tensor) -> None:
        raise NotImplementedError


class Queue(Remembering):
    def keep(self, x: Tensor) -> None:
        self.kept = torch.cat([self.kept, x])[-30:]


class InPlace(Remembering):
    def keep(self, x: Tensor) -> None:
        self.kept.resize_(len(self.kept) + 1).fill_(float(x.mean()))


class Typed(Remembering):
    def keep(self, x: Tensor) -> None:
        self.kept = self.kept.double() + x.double().mean()


class Counted(Remembering):
    def keep(self, x: Tensor) -> None:
        self.kept = self.kept + x.mean()  # an integer becomes a floating number


class Late(Remembering):
    def keep(self, x: Tensor) -> None:
        self.kept = x.mean() if self.kept is None else self.kept + x.mean()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "quantised": quantised,
    "queue": lambda: Queue(torch.zeros(0, 1)),
    "in place": lambda: InPlace(torch.zeros(1)),
    "typed": lambda: Typed(torch.zeros(1)),
    "counted": lambda: Counted(torch.zeros((), dtype=torch.int64)),
    "late": lambda: Late(None),
}


def step(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch["x"]) - batch["y"]).square().mean()


def training(kind: str, epochs: int = 2) -> TrainerBuilder:
    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, 0.01)

    return (
        Trainer.builder(lambda _: MODELS[kind](), optimizer, step)
        .dataset(line(20))
        .batch_size(4)
        .num_epochs(epochs)
        .device("cpu")
        .engine("eager")
        .progress(False)
    )


def values(model: nn.Module) -> dict[str, Tensor]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def assert_same(one: nn.Module, other: nn.Module) -> None:
    first, second = values(one), values(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype is second[name].dtype, name
        assert torch.equal(tensor, second[name]), name


@pytest.mark.parametrize("kind", MODELS)
def test_everything_that_looks_on_leaves_the_training_as_it_is(kind: str, tmp_path: Path) -> None:
    plain = training(kind).run().model
    watched = (
        training(kind)
        .run_dir(RunDirectory.create(tmp_path))
        .checkpoint_steps(3)
        .ema(0.9)
        .guards(every=2)
        .keep_best("loss")
        .histograms(every=2)
        .run()
    )
    assert_same(watched.model, plain)


@pytest.mark.parametrize("kind", MODELS)
def test_a_resumed_training_ends_like_an_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    whole = training(kind, 4).ema(0.9).run()
    run = RunDirectory.create(tmp_path)
    training(kind, 2).ema(0.9).run_dir(run).run()
    resumed = training(kind, 4).ema(0.9).resume(run.last_checkpoint).run()
    assert_same(resumed.model, whole.model)
    first, second = whole.average(), resumed.average()
    for one, other in zip(
        first.params + first.buffers, second.params + second.buffers, strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["queue", "late"])
def test_the_best_model_is_loaded_with_its_buffers(kind: str, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    training(kind, 1).run_dir(run).keep_best("loss").run()
    best = load_best(run, MODELS[kind]())
    assert best.state_dict()["kept"].numel()
    other = nn.Sequential(MODELS[kind](), nn.Linear(1, 1))
    before = values(other)
    with pytest.raises(CheckpointError, match="the file lacks"):
        load_best(run, other)
    assert values(other).keys() == before.keys()


@pytest.mark.parametrize("kind", ["quantised", "queue", "in place"])
def test_a_new_model_loads_the_files_of_a_trained_one(kind: str, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    trained = training(kind).run_dir(run).run().model
    for file in ("model.fdl", "last.fdl"):
        new = MODELS[kind]()
        report = load_checkpoint_file(run.path / file, new.named_parameters(), new.named_buffers())
        assert not report.missing
        assert not report.skipped
        assert_same(new, trained)
    wider = [(name, torch.zeros(7)) for name, _ in new.named_parameters()]
    with pytest.raises(ShapeMismatch):
        load_checkpoint_file(run.path / "model.fdl", wider, [])
    for given, taken in ((0.5, 0.5), (3.0, 3)):
        save_checkpoint_file(tmp_path / "one.fdl", [], [("count", torch.tensor(given))])
        count = torch.zeros((), dtype=torch.int64)
        load_checkpoint_file(tmp_path / "one.fdl", [], [("count", count)])
        assert count.item() == taken
        assert count.is_floating_point() == isinstance(taken, float)


@pytest.mark.parametrize("kind", ["queue", "in place", "late"])
def test_a_graph_with_buffers_that_grow_is_loaded_and_resumed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def graph() -> Graph:
        return FlowBuilder.from_(MODELS[kind]()).build()

    monkeypatch.setitem(MODELS, "graph", graph)
    whole = training("graph", 3).run().model
    run = RunDirectory.create(tmp_path)
    trained = training("graph", 2).run_dir(run).run().model
    new = graph()
    assert new.load_checkpoint(run.path / "model.fdl").missing == []
    assert_same(new, trained)
    assert_same(load_best(run.path / "model.fdl", graph()), trained)
    other, before = FlowBuilder.from_(nn.Linear(1, 4)).build(), graph()
    untouched = values(before)
    other.save_checkpoint(tmp_path / "other.fdl")
    with pytest.raises(ArchitectureMismatch):
        before.load_checkpoint(tmp_path / "other.fdl")
    assert values(before).keys() == untouched.keys()
    assert_same(training("graph", 3).resume(run.last_checkpoint).run().model, whole)


@each_row("kind", ["queue", "in place", "late"])
def test_a_part_with_buffers_that_grow_is_loaded_from_the_file_of_the_whole(
    kind: str, tmp_path: Path
) -> None:
    def whole() -> Graph:
        part = FlowBuilder.from_(MODELS[kind]()).label("part").build()
        return FlowBuilder.from_(part).through(nn.Linear(1, 2)).build()

    trained, new = whole(), whole()
    for _ in range(2):
        trained(torch.ones(3, 1))
    trained.save_checkpoint(tmp_path / "whole.fdl")
    report = new.load_subgraph_checkpoint("part", tmp_path / "whole.fdl")
    assert (report.missing, len(report.loaded)) == ([], 5)
    assert_same(new.subgraph("part"), trained.subgraph("part"))
