"""Schedulers of torch in a training."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from flodl import Trainer
from flodl.errors import CheckpointError
from flodl.nn.schedule import StepDecay, as_torch_scheduler
from flodl.train import Callback, RunDirectory, TrainerBuilder
from flodl.train.step.torch_schedule import SchedulerSettings, TorchSchedule
from tests.rows import sampled

from .programs import line, loader_as_built, network, sgd, squared_error, training

EPOCHS, BATCHES = 4, 4
STEPS = EPOCHS * BATCHES


def sequential(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
        lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[7])


SCHEDULERS: dict[str, tuple[Any, ...]] = {
    "StepLR": (lambda o: lr_scheduler.StepLR(o, 2, 0.5),),
    "OneCycleLR": (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=STEPS), "step"),
    "CosineAnnealingLR": (lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS),),
    "warm restarts": (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3), "step"),
    "ReduceLROnPlateau": (
        lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.5),
        "epoch",
        "loss",
    ),
    "SequentialLR": (sequential, "step"),
    "LambdaLR": (lambda o: lr_scheduler.LambdaLR(o, lambda done: 0.9**done), "step"),
    "MultiStepLR": (lambda o: lr_scheduler.MultiStepLR(o, [1, 2, 2], 0.5),),
    "CyclicLR": (lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3), "step"),
    "ChainedScheduler": (
        lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.ConstantLR(o, 0.5, 3)], optimizer=o
        ),
        "step",
    ),
    "a schedule of flodl": (lambda o: as_torch_scheduler(o, StepDecay(0.05, 3, 0.5)), "step"),
}


class Rates(Callback):
    """The learning rate of every step, and a Ctrl-C after one of them."""

    def __init__(self, cut: int | None = None) -> None:
        self.cut = cut
        self.seen: list[float] = []

    def train_fn(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.seen.append(float(self.optimizer.param_groups[0]["lr"]))
        return squared_error(model, batch)

    def on_train_start(self, run: Any) -> None:
        self.optimizer = run.optimizer

    def on_step_end(self, run: Any) -> None:
        if run.global_step == self.cut:
            raise KeyboardInterrupt


def described(rates: Rates, kind: str) -> TrainerBuilder:
    builder = Trainer.builder(network, sgd, rates.train_fn).dataset(line(12)).batch_size(3)
    builder.num_epochs(EPOCHS).device("cpu").engine("eager").callbacks(rates)
    return builder.lr_scheduler(*SCHEDULERS[kind])


def plain(kind: str) -> tuple[nn.Module, list[float]]:
    """The loop as torch's documentation writes it."""
    factory, interval, *_ = *SCHEDULERS[kind], "epoch"
    torch.manual_seed(42)
    model = network()
    optimizer = sgd(list(model.parameters()))
    scheduler = factory(optimizer)
    loader, rates = loader_as_built(line(12), 3), []
    for epoch in range(EPOCHS):
        losses = []
        for batch in loader.epoch(epoch):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.zero_grad()
            loss = squared_error(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if interval == "step":
                scheduler.step()
        if kind == "ReduceLROnPlateau":
            scheduler.step(sum(losses) / len(losses))
        elif interval == "epoch":
            scheduler.step()
    return model, rates


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_gives_the_rates_of_a_plain_loop(kind: str) -> None:
    rates = Rates()
    trained = described(rates, kind).run().model
    model, expected = plain(kind)
    assert rates.seen == expected
    assert len(set(expected)) > 1
    assert same(trained, model)


@pytest.mark.parametrize(("kind", "cut"), sampled(list(SCHEDULERS), (6, 8)))
def test_a_resumed_training_ends_as_the_uninterrupted_one(
    kind: str, cut: int, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        described(Rates(cut + 1), kind).run_dir(run).checkpoint_steps(cut).run()
    rates = Rates()
    resumed = described(rates, kind).resume(run.path).run().model
    model, expected = plain(kind)
    assert rates.seen == expected[cut:]
    assert same(resumed, model)


def test_a_plateau_may_look_at_what_eval_fn_returns() -> None:
    scores = iter([0.5, 0.4, 0.6, 0.3])
    rates = Rates()
    builder = described(rates, "StepLR").eval_fn(lambda _: {"accuracy": next(scores)})
    builder.lr_scheduler(
        lambda o: lr_scheduler.ReduceLROnPlateau(o, "max", 0.5, patience=0), monitor="accuracy"
    )
    builder.run()
    assert rates.seen[::BATCHES] == [0.05, 0.05, 0.025, 0.025]


def test_accumulated_batches_are_one_step() -> None:
    made: list[Any] = []

    def factory(optimizer: Any) -> Any:
        made.append(lr_scheduler.StepLR(optimizer, 1, 0.5))
        return made[0]

    training(epochs=2).accumulate(2).lr_scheduler(factory, "step").run()
    assert made[0].last_epoch == 4  # 3 batches in an epoch: 2 and 1


class Skips:
    """A loss scaler that leaves out every second step."""

    def __init__(self) -> None:
        self.calls = 0

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss

    def step(self, optimizer: Any, **_: Any) -> bool:
        self.calls += 1
        if self.calls % 2 == 0:
            optimizer.step()
        return self.calls % 2 == 0

    def update(self) -> None:
        pass


def test_a_step_that_the_scaler_left_out_does_not_count() -> None:
    rates = Rates()
    builder = described(rates, "StepLR").grad_scaler(Skips())
    builder.lr_scheduler(lambda o: lr_scheduler.ExponentialLR(o, 0.5), "step").run()
    assert rates.seen[:6] == [0.05, 0.05, 0.025, 0.025, 0.0125, 0.0125]


def test_a_fused_step_that_torch_does_not_notice_gives_no_warning() -> None:
    optimizer = sgd(list(network().parameters()))
    settings = SchedulerSettings(lambda o: lr_scheduler.ExponentialLR(o, 0.5), "step")
    schedule = TorchSchedule(settings, optimizer, steps=2, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.end_step()  # and nobody has called optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.025


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_engine_auto_has_the_same_rates(optimizer: Any) -> None:
    seen: list[list[float]] = []
    for engine in ("eager", "auto"):
        rates = Rates()
        builder = Trainer.builder(network, lambda p: optimizer(p, lr=0.01), rates.train_fn)
        builder.dataset(line(300)).batch_size(2).num_epochs(2).device("cpu").engine(engine)
        builder.lr_scheduler(lambda o: lr_scheduler.ExponentialLR(o, 0.99), "step")
        builder.callbacks(rates).run()
        seen.append(rates.seen)
    assert seen[0] == [pytest.approx(0.01 * 0.99**step) for step in range(300)]
    assert set(seen[1]) <= set(seen[0])


# --- What is refused before the first step --------------------------------------------------------


def never(*_: Any) -> Any:
    raise AssertionError("no step may be taken")


def refused(factory: Any, *settings: Any, epochs: int = 2) -> str:
    with pytest.raises((ValueError, TypeError)) as failure:
        training(never, epochs=epochs).lr_scheduler(factory, *settings).run()
    return str(failure.value)


def step_lr(optimizer: Any) -> lr_scheduler.StepLR:
    return lr_scheduler.StepLR(optimizer, 30)


def test_settings_that_contradict_each_other_are_refused() -> None:
    assert "interval='batch': use one of 'epoch', 'step'" in refused(step_lr, "batch")
    assert "known once per epoch" in refused(step_lr, "step", "loss")
    assert "StepLR does not look at a metric" in refused(step_lr, "epoch", "loss")
    plateau = lr_scheduler.ReduceLROnPlateau
    assert "name it, such as" in refused(plateau)
    assert "monitor='loss'" in refused(plateau, "step")
    assert "returned a NoneType, not a scheduler" in refused(lambda _: None)
    other = sgd(list(network().parameters()))
    assert "belongs to another optimizer" in refused(lambda _: step_lr(other))
    assert "lr_scheduler(lambda optimizer: StepLR(optimizer, …))" in refused(step_lr(other))


def test_a_cycle_that_ends_before_the_training_is_refused() -> None:
    def cycle(optimizer: Any) -> Any:
        return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5)

    assert "ends after 5 steps and the training has 6: make it with total_steps=6" in refused(
        cycle, "step"
    )
    assert "ends after 5 epochs and the training has 7" in refused(cycle, epochs=7)


def test_a_cycle_of_steps_that_steps_by_epoch_is_warned_of(
    capfd: pytest.CaptureFixture[str],
) -> None:
    training().lr_scheduler(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=6)).run()
    told = capfd.readouterr().err
    assert "OneCycleLR is made for 6 steps and makes one per epoch, which is 2" in told
    assert "interval='step'" in told


def test_both_kinds_of_schedulers_are_refused() -> None:
    builder = training(never).lr_scheduler(step_lr).scheduler(lambda _: StepDecay(0.1, 1, 0.5))
    with pytest.raises(ValueError, match=r"\.scheduler\(…\) and \.lr_scheduler\(…\) both set"):
        builder.run()


def test_an_epoch_fn_cannot_put_a_schedule_beside_the_scheduler() -> None:
    def change(_: int, worker: Any) -> None:
        worker.set_scheduler(StepDecay(0.1, 10, 0.5))

    with pytest.raises(ValueError, match=r"\.lr_scheduler\(…\) already sets the learning rate"):
        training(squared_error).lr_scheduler(step_lr).epoch_fn(change).run()


def test_a_captured_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine='cuda_graph' with \.lr_scheduler"):
        training(never).lr_scheduler(step_lr).engine("cuda_graph").run()


def test_a_scheduler_of_torch_in_the_place_of_a_schedule_is_told_where_it_belongs() -> None:
    made = step_lr(sgd(list(network().parameters())))
    wanted = r"write \.lr_scheduler\(lambda optimizer: StepLR\(optimizer, …\)\)"
    for given in (made, lr_scheduler.StepLR, lambda _: made, step_lr):
        with pytest.raises(ValueError, match=wanted):
            training(never).scheduler(given).run()  # type: ignore[arg-type]


def test_a_schedule_without_a_rate_is_refused() -> None:
    for given, kind in ((object(), "object"), (None, "NoneType"), (0.1, "float")):
        with pytest.raises(
            ValueError, match=rf"the schedule is a {kind} without a method lr\(step"
        ):
            training(never).scheduler(lambda _, given=given: given).run()


def test_a_loop_of_ones_own_refuses_them_too() -> None:
    setup = Trainer.setup(network(), None, sgd, device="cpu")
    with pytest.raises(ValueError, match=r"without a method lr\(step\)"):
        setup.set_scheduler(0.1)  # type: ignore[arg-type]


def test_an_unknown_metric_ends_the_training_after_the_first_epoch() -> None:
    steps: list[int] = []

    def train_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        steps.append(1)
        return squared_error(model, batch)

    builder = training(train_fn).eval_fn(lambda _: {"accuracy": 0.5})
    builder.lr_scheduler(lr_scheduler.ReduceLROnPlateau, monitor="acuracy")
    with pytest.raises(ValueError, match=r"lr_scheduler watches 'acuracy'.*mean 'accuracy'"):
        builder.run()
    assert len(steps) == 3


# --- What is refused at a resume ------------------------------------------------------------------


def test_a_checkpoint_of_another_scheduler_is_refused(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    training().lr_scheduler(step_lr).run_dir(run).run()
    again = training(epochs=4).resume(run.path)
    with pytest.raises(CheckpointError, match="schedule"):
        again.run()
    with pytest.raises(CheckpointError, match=r"StepLR by epoch.*makes a StepLR by step"):
        again.lr_scheduler(step_lr, "step").run()
    again.lr_scheduler(step_lr).run()


def test_a_cycle_that_was_over_is_not_gone_on_with(tmp_path: Path) -> None:
    def cycle(steps: int) -> Any:
        return lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)

    run = RunDirectory.create(tmp_path)
    training().lr_scheduler(cycle(6), "step").run_dir(run).run()
    again = training(epochs=4).lr_scheduler(cycle(12), "step").resume(run.path)
    with pytest.raises(CheckpointError, match="ends after 6 steps and the training has 12"):
        again.run()
