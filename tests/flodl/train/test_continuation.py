"""A training that was stopped goes on as if it had never been."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer, terminal
from flodl.data import Batch
from flodl.errors import CheckpointError, RunDirectoryError, StateError
from flodl.monitor import EpochMetrics, Monitor, RankMetrics
from flodl.nn.amp import GradScaler
from flodl.train import RunDirectory, TrainerBuilder, TrainerHandle, record_scalar
from flodl.train.callbacks import Callback, TrainingRun
from flodl.train.run.loop_state import LoopState

from .programs import line, network, sgd, squared_error
from .test_tiers import HalfCosine, adam, convolutions, images, remembering


class PowerError(Exception):
    """The power is gone."""


class CutAfter(Callback):
    """Ends the training, as if the machine had, at an optimizer step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, run: TrainingRun) -> None:
        if run.global_step == self._step:
            raise PowerError


def noisy(model: nn.Module, batch: Batch) -> Tensor:
    """Uses every generator a checkpoint keeps, and reports a value."""
    loss = squared_error(model, batch)
    noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
    record_scalar("noise", noise)
    return loss * (1 + noise)


@dataclass(frozen=True)
class Program:
    """One training, to be done at once and in two pieces."""

    model: Callable[[Any], nn.Module] = network
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = sgd
    data: Callable[[], Any] = lambda: line(16)
    change: Callable[[TrainerBuilder], object] = lambda _: None

    def training(self, folder: Path, monitor: Monitor | None = None) -> TrainerBuilder:
        """24 steps in 3 epochs, where nothing else is said, saved after every third step."""
        random.seed(1)
        np.random.seed(1)
        builder = (
            Trainer.builder(self.model, self.optimizer, noisy)
            .dataset(self.data())
            .batch_size(2)
            .num_epochs(3)
            .checkpoint_steps(3)
            .device("cpu")
            .engine("eager")
            .monitor(monitor or Monitor(3, terminal=False))
            .run_dir(RunDirectory.create(folder))
        )
        self.change(builder)
        return builder

    def cut(self, folder: Path, step: int) -> Path:
        """Train until the power is gone; return the checkpoint that is left."""
        with pytest.raises(PowerError):
            self.training(folder).callbacks(CutAfter(step)).run()
        (run,) = folder.iterdir()
        return run / "last.fdl"


SIMPLE = Program()
PROGRAMS = {
    "momentum and dropout": (SIMPLE, (4, 8, 13)),
    "adam with a schedule": (
        Program(
            optimizer=adam,
            change=lambda b: b.scheduler(lambda _: HalfCosine(0.02, 24)).max_grad_norm(0.5),
        ),
        (4, 13),
    ),
    "an average": (Program(change=lambda b: b.ema(0.9)), (4, 13)),
    "float16": (
        Program(
            change=lambda b: b.autocast(torch.float16).grad_scaler(GradScaler(8.0, interval=4))
        ),
        (5, 13),
    ),
    "a scaler of torch": (
        Program(
            change=lambda b: (
                b.autocast(torch.float16)
                .grad_scaler(torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3))
                .max_grad_norm(0.5)
                .accumulate(2)
            )
        ),
        (5,),
    ),
    "accumulation": (Program(change=lambda b: b.accumulate(3)), (4, 5, 8)),
    "convolutions": (Program(convolutions, adam, images), (4, 13)),
    "a graph with memory": (Program(remembering, change=lambda b: b.max_grad_norm(1.0)), (4, 13)),
}


def state_of(handle: TrainerHandle) -> dict[str, Tensor]:
    state: dict[str, Tensor] = handle.model.state_dict()
    with suppress(StateError):  # most of the programs average nothing
        state |= {f"average {n}": t for n, t in enumerate(handle.average().params)}
    return state


def assert_same(one: TrainerHandle, other: TrainerHandle) -> None:
    expected = state_of(other)
    assert list(state_of(one)) == list(expected)
    for name, tensor in state_of(one).items():
        assert torch.equal(tensor, expected[name]), name


def measured(epochs: list[EpochMetrics]) -> list[tuple[int, float, dict[str, float]]]:
    return [(one.epoch, one.avg_loss, dict(one.scalars)) for one in epochs]


@pytest.mark.parametrize(
    ("program", "cut"),
    [
        pytest.param(
            *(program, cut),
            id=f"{name}, cut after {cut}",
            marks=() if cut == cuts[0] or program is SIMPLE else pytest.mark.slow,
        )
        for name, (program, cuts) in PROGRAMS.items()
        for cut in cuts
    ],
)
def test_a_resumed_training_is_the_uninterrupted_one_to_the_bit(
    program: Program, cut: int, tmp_path: Path
) -> None:
    whole = program.training(tmp_path / "whole").run()
    left = program.cut(tmp_path / "first", cut)
    monitor = Monitor(3, terminal=False)
    handle = program.training(tmp_path / "second", monitor).resume(left).run()
    assert_same(handle, whole)
    assert measured(handle.poll_metrics()) == measured(whole.poll_metrics())
    assert [record.epoch for record in monitor.history] == [0, 1, 2]


def test_a_training_may_be_stopped_again_and_again(tmp_path: Path) -> None:
    whole = SIMPLE.training(tmp_path / "whole").run()
    left = SIMPLE.cut(tmp_path / "first", 4)
    for number, step in enumerate((7, 10, 17)):
        folder = tmp_path / str(number)
        with pytest.raises(PowerError):
            SIMPLE.training(folder).resume(left).callbacks(CutAfter(step)).run()
        (run,) = folder.iterdir()
        left = run / "last.fdl"
    assert_same(SIMPLE.training(tmp_path / "last").resume(left).run(), whole)


def test_the_end_of_an_epoch_is_gone_on_from_too(tmp_path: Path) -> None:
    class AfterFirst(Callback):
        def on_epoch_start(self, run: TrainingRun) -> None:
            if run.epoch == 1:
                raise PowerError

    whole = SIMPLE.training(tmp_path / "whole").run()
    with pytest.raises(PowerError):
        SIMPLE.training(tmp_path / "first").callbacks(AfterFirst()).run()
    (first,) = (tmp_path / "first").iterdir()
    again = SIMPLE.training(tmp_path / "second").resume(first / "last.fdl")
    assert_same(again.run(), whole)


@pytest.mark.parametrize("step", [8, 9])
def test_the_rate_is_that_of_the_last_step_until_the_next_one(step: int, tmp_path: Path) -> None:
    """An epoch has eight steps, and a schedule sets the rate before a step."""

    class Stop(Callback):
        def on_step_end(self, run: TrainingRun) -> None:
            if run.global_step == step:
                signal.raise_signal(signal.SIGINT)

    program, _ = PROGRAMS["adam with a schedule"]
    whole = program.training(tmp_path / "whole").run()
    with pytest.raises(KeyboardInterrupt):
        program.training(tmp_path / "first").callbacks(Stop()).run()
    (first,) = (tmp_path / "first").iterdir()
    again = program.training(tmp_path / "second").resume(first / "last.fdl").run()
    rates = [[one.lr for one in handle.poll_metrics()] for handle in (again, whole)]
    assert rates[0] == rates[1]


def test_a_complete_training_has_nothing_left_to_do(tmp_path: Path) -> None:
    whole = SIMPLE.training(tmp_path / "first").run()
    (first,) = (tmp_path / "first").iterdir()
    handle = SIMPLE.training(tmp_path / "second").resume(first / "last.fdl").run()
    assert_same(handle, whole)
    assert len(handle.poll_metrics()) == 3
    (second,) = (tmp_path / "second").iterdir()
    assert (second / "model.fdl").exists()


def test_what_epoch_fn_set_up_is_set_up_again_and_what_it_froze_stays_frozen(
    tmp_path: Path,
) -> None:
    prepared: list[int] = []

    def prepare(epoch: int, worker: Any) -> None:
        prepared.append(epoch)
        torch.rand(3)  # draws from the generator the training uses
        if epoch == 0:
            worker.model[0].requires_grad_(False)
            worker.model[1].eval()

    program = Program(change=lambda b: b.epoch_fn(prepare))
    whole = program.training(tmp_path / "whole").run()
    assert prepared == [0, 1, 2]
    left = program.cut(tmp_path / "first", 12)
    prepared.clear()
    resumed = program.training(tmp_path / "second").resume(left).run()
    assert prepared == [1, 2]
    assert_same(resumed, whole)
    assert not resumed.model[0].weight.requires_grad  # type: ignore[index]
    assert not resumed.model[1].training  # type: ignore[index]


class Falling:
    """A schedule."""

    def lr(self, step: int) -> float:
        return 0.05 * 0.9**step


def test_a_factor_that_epoch_fn_set_in_an_earlier_epoch_goes_on(tmp_path: Path) -> None:
    def program(**settings: Any) -> TrainerBuilder:
        builder = Trainer.builder(network, sgd, squared_error).dataset(line(9)).batch_size(3)
        builder.num_epochs(3).device("cpu").engine("eager").checkpoint_steps(1)
        builder.scheduler(lambda _: Falling())
        builder.epoch_fn(lambda epoch, worker: worker.set_lr_scale(0.25) if epoch == 0 else None)
        for name, value in settings.items():
            getattr(builder, name)(value)
        return builder

    whole = program(run_dir=RunDirectory.create(tmp_path)).run()
    for step in (2, 6):
        run = RunDirectory.create(tmp_path)
        with pytest.raises(PowerError):
            program(run_dir=run, callbacks=CutAfter(step)).run()
        resumed = program(run_dir=RunDirectory.create(tmp_path, resume=run.last_checkpoint)).run()
        assert all(map(torch.equal, whole.join().params, resumed.join().params))


def test_a_callback_that_draws_random_numbers_does_not_disturb_a_resume(tmp_path: Path) -> None:
    class Draws(Callback):
        def on_train_start(self, run: TrainingRun) -> None:
            torch.rand(run.num_epochs)

    program = Program(change=lambda b: b.callbacks(Draws()))
    whole = program.training(tmp_path / "whole").run()
    left = program.cut(tmp_path / "first", 7)
    assert_same(program.training(tmp_path / "second").resume(left).run(), whole)


def test_a_run_directory_that_continues_another_one_suffices(tmp_path: Path) -> None:
    whole = SIMPLE.training(tmp_path / "whole").run()
    SIMPLE.cut(tmp_path / "runs", 7)
    again = SIMPLE.training(tmp_path / "elsewhere")
    again.run_dir(RunDirectory.create(tmp_path / "runs", resume="last"))
    assert_same(again.run(), whole)


def test_last_needs_a_run_directory_that_looks_for_it(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"RunDirectory.create\(root, resume='last'\)"):
        SIMPLE.training(tmp_path).resume("last").run()


def test_other_groups_of_batches_are_refused_inside_an_epoch(tmp_path: Path) -> None:
    left = SIMPLE.cut(tmp_path / "first", 4)
    again = SIMPLE.training(tmp_path / "second").accumulate(2).resume(left)
    with pytest.raises(CheckpointError, match="3 batches into an epoch with accumulate=1, and"):
        again.run()


def test_other_data_are_refused(tmp_path: Path) -> None:
    left = SIMPLE.cut(tmp_path / "first", 4)
    again = SIMPLE.training(tmp_path / "second").dataset(line(20)).resume(left)
    with pytest.raises(CheckpointError, match="n was 16 and is 20"):
        again.run()


def test_an_early_stop_comes_where_it_would_have_come(tmp_path: Path) -> None:
    program = Program(change=lambda b: b.early_stop(window=2, tolerance=1e9))
    whole = program.training(tmp_path / "whole").run()
    left = program.cut(tmp_path / "first", 11)
    handle = program.training(tmp_path / "second").resume(left).run()
    assert handle.stopped == whole.stopped == "loss stalled over 2 epochs"
    assert len(handle.poll_metrics()) == len(whole.poll_metrics()) == 2


def test_a_checkpoint_can_be_taken_elsewhere_before_it_is_used(tmp_path: Path) -> None:
    shutil.move(SIMPLE.cut(tmp_path / "first", 7), tmp_path / "kept.fdl")
    handle = SIMPLE.training(tmp_path / "second").resume(str(tmp_path / "kept.fdl")).run()
    assert len(handle.poll_metrics()) == 3


def test_the_loops_own_part_survives_json_and_says_where_it_is_damaged() -> None:
    epoch = EpochMetrics(0, 0.5, {"a": float("inf"), "b": 1.0}, 2.0, 3.0, [1.0])
    state = LoopState(history=[epoch], grouping={"accumulate": 2})
    read = LoopState.from_json(state.as_json())
    assert read.history == [epoch]
    assert read.as_json() == state.as_json()
    with pytest.raises(CheckpointError, match=r"malformed .KeyError: 'history'"):
        LoopState.from_json({})


def test_the_values_of_every_rank_survive_json() -> None:
    ranks = (RankMetrics(0.5, {"a": float("inf")}, 8, 4), RankMetrics(0.25, {"a": 1.0}, 6, 3))
    epoch = EpochMetrics(0, 0.5, {}, 2.0, 3.0, [0.5, 0.5], per_rank=ranks)
    assert LoopState.from_json(LoopState(history=[epoch]).as_json()).history[0].per_rank == ranks


def test_a_resumed_training_says_where_it_continues(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = SIMPLE.cut(tmp_path / "first", 4)
    capfd.readouterr()
    shown: list[str] = []
    monkeypatch.setattr(terminal, "status", shown.append)
    SIMPLE.training(tmp_path / "second").resume(left).run()
    said = " ".join("".join(capfd.readouterr()).split())
    assert f"resumed from {left} after 0 complete epochs and 3 batches" in said
    assert shown.count("reading the checkpoint") == 1
