"""Whole trainings on a GPU: each with all that a run directory holds, and each continued."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fdl.runs.trace_file import read_trace
from flodl import Callback, GradScaler, Monitor, RunDirectory, Trainer
from flodl.data import Batch
from flodl.device import select_device
from flodl.environment import environment_report
from flodl.train import TrainerBuilder, TrainingRun
from flodl.train.peak_memory import PeakMemory, available_bytes

from .test_continuation import PROGRAMS, Program, assert_same, measured

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

N, BATCH = 96, 8
STEPS = N // BATCH


def samples() -> dict[str, Tensor]:
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(3))
    return {"x": x, "y": x.sum(1, keepdim=True)}


def network(device: torch.device) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)
    ).to(device)


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch["x"]), batch["y"])


def builder(epochs: int = 3, lr: float = 1e-2) -> TrainerBuilder:
    torch.manual_seed(7)
    return (
        Trainer.builder(network, lambda params: torch.optim.Adam(params, lr=lr), squared_error)
        .dataset(samples())
        .batch_size(BATCH)
        .num_epochs(epochs)
        .device("cuda")
        .progress(False)
    )


def with_everything(made: TrainerBuilder) -> TrainerBuilder:
    return (
        made.histograms(every=5)
        .guards()
        .ema(0.9)
        .max_grad_norm(1.0)
        .keep_best()
        .checkpoint_steps(5)
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_resumed_training_is_the_uninterrupted_one_to_the_bit(name: str, tmp_path: Path) -> None:
    usual, cuts = PROGRAMS[name]

    def on_gpu(made: TrainerBuilder) -> None:
        usual.change(made)
        made.device("cuda")

    program = dataclasses.replace(usual, change=on_gpu)
    whole = program.training(tmp_path / "whole").run()
    assert next(whole.model.parameters()).is_cuda
    left = program.cut(tmp_path / "first", cuts[-1])
    handle = program.training(tmp_path / "second").resume(left).run()
    assert_same(handle, whole)
    assert measured(handle.poll_metrics()) == measured(whole.poll_metrics())


def test_a_checkpoint_of_a_gpu_continues_on_the_processor(tmp_path: Path) -> None:
    left = dataclasses.replace(Program(), change=lambda made: made.device("cuda")).cut(
        tmp_path / "first", 13
    )
    handle = Program().training(tmp_path / "second").resume(left).run()
    assert not next(handle.model.parameters()).is_cuda
    assert len(handle.poll_metrics()) == 3


def test_recording_everything_changes_no_bit(tmp_path: Path) -> None:
    class Shows(Callback):
        def on_step_end(self, run: TrainingRun) -> None:
            if run.global_step % 4 == 0:
                run.monitor.image("weights", run.model[0].weight)  # type: ignore[index]

    made = [RunDirectory.create(tmp_path / name) for name in ("one", "other")]
    plain = builder().engine("eager").max_grad_norm(1.0).run().join()
    for run in made:
        with run:
            watched = with_everything(builder().engine("eager")).run_dir(run).callbacks(Shows())
            seen = watched.run().join()
        for mine, theirs in zip(seen.params, plain.params, strict=True):
            assert torch.equal(mine, theirs)
    one, other = (read_trace(run.path) for run in made)
    assert (one.state, one.last) == ("complete", 3 * STEPS)
    assert one.losses.tolist() == other.losses.tolist()
    assert one.norms.tolist() == other.norms.tolist()
    # How many digests there are depends on the time that they take.
    for mine, theirs in ((one.weights, other.weights), (one.contents, other.contents)):
        both = mine.keys() & theirs.keys()
        assert both
        assert {step: mine[step] for step in both} == {step: theirs[step] for step in both}
    shown = sorted(int(path.stem[5:]) for path in (made[0].path / "media/image").rglob("*.png"))
    assert shown == list(range(4, 3 * STEPS + 1, 4))
    history = json.loads((made[0].path / "media/histogram/gradients/0.weight.json").read_text())
    assert [one["step"] for one in history] == [1, *range(5, 3 * STEPS + 1, 5)]
    assert '"weights/0.weight"' in (made[0].path / "report.html").read_text()


@pytest.mark.parametrize("engine", ["auto", "cuda_graph", "compiled"])
def test_every_engine_trains_as_the_eager_one_does(engine: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    monitor = Monitor(3, terminal=False)
    (mine, theirs) = (
        builder().engine(name).monitor(one).run()
        for name, one in ((engine, monitor), ("eager", Monitor(3, terminal=False)))
    )
    losses = [[epoch.avg_loss for epoch in one.poll_metrics()] for one in (mine, theirs)]
    # Dropout draws from other numbers in a captured or compiled step.
    assert losses[0] == pytest.approx(losses[1], rel=0.3)
    assert losses[0][-1] < losses[0][0]


def test_a_captured_step_without_randomness_is_the_eager_one() -> None:
    def plain(device: torch.device) -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)

    def trained(engine: str) -> Any:
        made = Trainer.builder(
            plain, lambda params: torch.optim.SGD(params, lr=0.05), squared_error
        ).dataset(samples())
        made = made.batch_size(BATCH).num_epochs(3).device("cuda").progress(False)
        return made.max_grad_norm(1.0).engine(engine).run().join()

    for mine, theirs in zip(trained("cuda_graph").params, trained("eager").params, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_step_that_cannot_be_captured_trains_as_the_eager_one_does() -> None:
    def waits(model: nn.Module, batch: Batch) -> Tensor:
        loss = squared_error(model, batch)
        loss.item()
        return loss

    def trained(engine: str) -> Any:
        torch.manual_seed(7)
        made = Trainer.builder(network, lambda params: torch.optim.SGD(params, lr=0.05), waits)
        made = made.dataset(samples()).batch_size(BATCH).num_epochs(2).device("cuda")
        return made.progress(False).engine(engine).run().join()

    for mine, theirs in zip(trained("cuda_graph").params, trained("eager").params, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.precision("bf16"),
        lambda made: made.precision("fp16"),
        lambda made: made.grad_scaler(GradScaler()).autocast(torch.float16).max_grad_norm(1.0),
        lambda made: made.accumulate(2),
        lambda made: made.pure_step(),
        lambda made: made.deterministic(),
    ],
    ids=["bf16", "fp16", "scaler", "accumulate", "pure", "deterministic"],
)
def test_every_way_of_training_learns(change: Callable[[TrainerBuilder], TrainerBuilder]) -> None:
    losses = [one.avg_loss for one in change(builder(epochs=6)).run().poll_metrics()]
    assert losses[-1] < 0.6 * losses[0]


def test_a_run_names_its_gpu(tmp_path: Path) -> None:
    (device, *_) = environment_report()["cuda_devices"]
    assert device["name"] == torch.cuda.get_device_name(0)
    with RunDirectory.create(tmp_path) as run:
        builder().run_dir(run).timeline(True).run()
    record = json.loads((run.path / "environment.json").read_text())
    assert record["cuda_devices"] == environment_report()["cuda_devices"]


def test_the_peak_of_the_memory_is_that_of_the_device() -> None:
    device = torch.device("cuda:0")
    peak = PeakMemory(device)
    before = peak.now()
    large = torch.zeros(2**20, device=device)
    assert peak.now() - before == 4 * 2**20
    del large
    peak.wait()
    assert peak.take() - before >= 4 * 2**20
    assert peak.take() == before
    assert 0 < available_bytes(device) <= torch.cuda.get_device_properties(device).total_memory


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"'cuda:99'.*sees \d+ CUDA devices"):
        select_device("cuda:99")
