from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flodl.errors import DivergedError, StateError
from flodl.monitor import EpochMetrics
from flodl.train import RunDirectory, record_scalar
from flodl.train.callbacks import Callback, Hooks, TrainingRun
from flodl.train.epoch_metrics import EpochLogs

from .programs import squared_error, training


class Diary(Callback):
    """Writes every hook down, with what the run says at that moment."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def on_train_start(self, run: TrainingRun) -> None:
        self.entries.append(f"start on {run.device}, {run.num_epochs} epochs")

    def on_epoch_start(self, run: TrainingRun) -> None:
        self.entries.append(f"epoch {run.epoch}")

    def on_step_end(self, run: TrainingRun) -> None:
        assert run.loss is not None
        self.entries.append(f"step {run.step} of {run.epoch}, {run.global_step} in all")

    def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:
        assert run.step == 3
        self.entries.append(f"end of {metrics.epoch}, {len(run.history)} before")

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        self.entries.append(f"{path.name} after {len(run.history)}")

    def on_exception(self, run: TrainingRun, error: BaseException) -> None:
        self.entries.append(f"{type(error).__name__} in epoch {run.epoch}")

    def on_train_end(self, run: TrainingRun) -> None:
        self.entries.append(f"done after {len(run.history)}")


def test_every_hook_is_called_in_its_turn(tmp_path: Path) -> None:
    diary = Diary()
    training().callbacks(diary).run_dir(RunDirectory.create(tmp_path)).run()
    assert diary.entries == [
        "start on cpu, 2 epochs",
        "epoch 0",
        "step 1 of 0, 1 in all",
        "step 2 of 0, 2 in all",
        "step 3 of 0, 3 in all",
        "end of 0, 0 before",
        "last.fdl after 1",
        "epoch 1",
        "step 1 of 1, 4 in all",
        "step 2 of 1, 5 in all",
        "step 3 of 1, 6 in all",
        "end of 1, 1 before",
        "last.fdl after 2",
        "done after 2",
    ]


def test_with_accumulation_a_step_is_one_of_the_optimizer() -> None:
    diary = Diary()
    training(epochs=1).accumulate(2).callbacks(diary).run()
    steps = [entry for entry in diary.entries if entry.startswith("step")]
    assert steps == ["step 2 of 0, 1 in all", "step 3 of 0, 2 in all"]


def test_a_hook_nobody_overrides_costs_no_call() -> None:
    class Quiet(Callback):
        def on_train_end(self, run: TrainingRun) -> None:
            run.stop("it has ended")

    assert not Hooks([Quiet()]).watches_steps
    assert Hooks([Quiet(), Diary()]).watches_steps


def test_several_callbacks_are_called_in_order_over_several_calls() -> None:
    order: list[str] = []

    class Named(Callback):
        def __init__(self, name: str) -> None:
            self._name = name

        def on_train_start(self, run: TrainingRun) -> None:
            order.append(f"{self._name} {run.epoch}")

    training().callbacks(Named("a"), Named("b")).callbacks(Named("c")).run()
    assert order == ["a 0", "b 0", "c 0"]


def test_a_callback_that_raises_ends_the_training_and_is_named() -> None:
    class Broken(Callback):
        def on_epoch_end(self, run: TrainingRun, metrics: EpochMetrics) -> None:
            raise LookupError(f"no such metric in {metrics.scalars} after {run.step} steps")

    diary = Diary()
    with pytest.raises(LookupError, match=r"no such metric in \{\} after 3 steps") as failure:
        training().callbacks(Broken(), diary).run()
    assert failure.value.__notes__ == ["in on_epoch_end of Broken"]
    assert diary.entries[-1] == "LookupError in epoch 0"


def test_divergence_is_an_exception_too_and_a_failing_hook_does_not_hide_it() -> None:
    class Broken(Callback):
        def on_exception(self, run: TrainingRun, error: BaseException) -> None:
            raise OSError(f"cannot tell {type(error).__name__} of {run.device}")

    diary = Diary()
    with pytest.raises(DivergedError) as failure:
        training(lambda m, b: squared_error(m, b) * float("inf")).callbacks(Broken(), diary).run()
    (note,) = failure.value.__notes__
    assert note == "on_exception failed as well: OSError: cannot tell DivergedError of cpu"
    assert diary.entries[-1] == "DivergedError in epoch 0"


def test_stopping_inside_an_epoch_ends_it_there_and_the_run_is_complete(tmp_path: Path) -> None:
    class Enough(Callback):
        def on_step_end(self, run: TrainingRun) -> None:
            if run.global_step == 5:
                run.stop("five steps are enough")
                run.stop("too late")

    run = RunDirectory.create(tmp_path)
    handle = training(epochs=9).callbacks(Enough()).run_dir(run).run()
    assert handle.stopped == "five steps are enough"
    assert [metrics.epoch for metrics in handle.poll_metrics()] == [0, 1]
    assert '"state": "complete"' in (run.path / "run.json").read_text()
    assert (run.path / "model.fdl").exists()


def test_a_training_that_is_not_stopped_says_so() -> None:
    assert training().run().stopped is None


def test_something_else_than_a_callback_is_refused() -> None:
    with pytest.raises(TypeError, match=r"it is a class; give an object of it, such as Callback"):
        training().callbacks(Callback).run()  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"give each callback as an argument of its own"):
        training().callbacks([Callback()]).run()  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"callback 3: derive it from flodl\.Callback"):
        training().callbacks(3).run()  # type: ignore[arg-type]


def test_a_value_outside_of_a_step_is_refused_in_every_other_hook() -> None:
    def logging(hook: str) -> Callback:
        def log(_: Callback, run: TrainingRun, *__: object) -> None:
            run.log("x", 1.0)

        return type("Logging", (Callback,), {hook: log})()

    for hook in ("on_train_start", "on_epoch_start", "on_epoch_end", "on_train_end"):
        with pytest.raises(StateError, match=r"record_scalar\('x'\) outside of a training step"):
            training().callbacks(logging(hook)).run()
    assert training().callbacks(logging("on_step_end")).run().poll_metrics()[1].scalars["x"] == 1


def test_an_evaluation_may_call_what_records_values() -> None:
    def step(model: Any, batch: Any) -> Any:
        loss = squared_error(model, batch)
        record_scalar("seen", 1.0, "sum")
        return loss

    held_out = {"x": torch.ones(3, 1), "y": torch.ones(3, 1)}
    builder = training(step).eval_fn(lambda model: {"val": step(model, held_out)})
    assert [metrics.scalars["seen"] for metrics in builder.run().poll_metrics()] == [3, 3]


def test_the_loss_stays_until_a_device_has_computed_a_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on_device(counter: Any, device: torch.device, **settings: Any) -> EpochLogs:
        return EpochLogs(counter, torch.device("meta", device.index), **settings)

    class Losses(Callback):
        def on_step_end(self, run: TrainingRun) -> None:
            seen.append(run.loss)

    seen: list[float | None] = []
    monkeypatch.setattr("flodl.train.loop.EpochLogs", on_device)
    training().callbacks(Losses()).run()
    assert seen[:3] == [None, None, None]
    assert None not in seen[3:]
