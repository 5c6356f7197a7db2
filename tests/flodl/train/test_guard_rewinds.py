"""After a rewind, a training has the state of the snapshot to the bit, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import flodl.nn as fnn
from flodl import Batch, Callback, FlowBuilder, GradScaler, Rewind, Trainer
from flodl.checkpoint.generators import generator_states
from flodl.errors import DivergedError
from flodl.graph.routing import StateAdd
from flodl.train import TrainerBuilder
from flodl.train.observers.requests import Wish
from flodl.train.observers.steering import Steering
from flodl.train.run.part_states import carried_state
from flodl.train.step import AutoEngine, AutoPolicy
from flodl.train.step.decision import Decision
from flodl.train.step.tuning import Tuning
from tests.flodl.train.test_guards import losses, points, same, squared_error, weights

BATCH, SAMPLES = 8, 320
STEPS = SAMPLES // BATCH
BAD = 22
"""The step of the bad loss, counted from 1; snapshots are taken after every 5 steps."""


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def dropout(_: object = None) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)
    )


@dataclass
class Spoiled:
    """A training function that spoils the losses of some calls, counted from 1."""

    calls: tuple[int, ...] = ()
    value: float = float("nan")
    count: int = 0

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        loss = squared_error(model, batch)
        self.count += 1
        return loss * self.value if self.count in self.calls else loss


def tensors(value: Any) -> list[Tensor]:
    """All tensors in nested values, as copies."""
    found = []
    for one in torch.utils._pytree.tree_leaves(value):
        if isinstance(one, Tensor):
            found.append(one.detach().clone())
        elif isinstance(one, int | float):
            found.append(torch.tensor(float(one), dtype=torch.float64))
    return found


@dataclass
class States(Callback):
    """Keeps the state after every step, and compares it after a rewind."""

    extra: Callable[[], Any] = lambda: ()
    kept: dict[int, list[Tensor]] = field(default_factory=dict)
    rewinds: list[Rewind] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def on_epoch_start(self, run: Any) -> None:
        self.kept[run.global_step] = self.state(run)

    def on_step_end(self, run: Any) -> None:
        self.steps.append(run.global_step)
        self.kept[run.global_step] = self.state(run)

    def on_rewind(self, run: Any, rewind: Rewind) -> None:
        self.rewinds.append(rewind)
        assert run.global_step == rewind.restored_step
        now, then = self.state(run), self.kept[rewind.restored_step]
        assert len(now) == len(then)
        assert all(torch.equal(a, b) for a, b in zip(now, then, strict=True))

    def state(self, run: Any) -> list[Tensor]:
        return tensors([
            dict(run.model.named_parameters()),
            dict(run.model.named_buffers()),
            run.optimizer.state_dict(),
            carried_state(run.model),
            generator_states(),
            self.extra(),
        ])  # fmt: skip


def training(
    fn: Any = squared_error, *, model: Any = dropout, optimizer: Any = adam, data: Any = None
) -> TrainerBuilder:
    return (
        Trainer.builder(model, optimizer, fn)
        .dataset(points(SAMPLES) if data is None else data)
        .batch_size(BATCH)
        .num_epochs(2)
        .device("cpu")
        .engine("eager")
        .progress(False)
    )


def check(
    make: Callable[[Any], TrainerBuilder],
    *,
    parts: int = 1,
    bad: int = BAD,
    extra: Callable[[], Any] = lambda: (),
    options: Any = None,
) -> States:
    """Train without guards, with them, and with a bad loss that they survive.

    Args:
        make: Builds a training with a training function.
        parts: Batches of a step.
        bad: The step of the bad loss, counted from 1.
        extra: Further state that has to be restored.
        options: Settings of the guards.
    """
    options = {"every": 5, **(options or {})}
    plain, guarded = make(Spoiled()).run(), make(Spoiled()).guards(**options).run()
    assert same(plain, guarded)
    assert losses(plain) == losses(guarded)
    watch = States(extra)
    handle = make(Spoiled(((bad - 1) * parts + 1,))).guards(**options).callbacks(watch).run()
    (rewind,) = watch.rewinds
    back = (bad - 1) // 5 * 5
    assert (rewind.step, rewind.restored_step, rewind.attempt) == (bad - 1, back, 1)
    assert (rewind.epoch, len(rewind.batches), len(rewind.samples)) == (0, parts, parts * BATCH)
    assert watch.steps == [*range(1, bad), *range(back + 1, 2 * STEPS // parts)]
    assert all(one.isfinite().all() for one in weights(handle))
    return watch


# --- What the Trainer can be made of --------------------------------------------------------------


def test_dropout_batch_norm_and_adam() -> None:
    check(training)


def test_schedule_clipping_average_and_accumulation() -> None:
    def make(fn: Any) -> TrainerBuilder:
        schedule = fnn.schedule.CosineScheduler(0.02, 0.001, 40)
        return training(fn).accumulate(2).ema(0.9).max_grad_norm(1.0).scheduler(lambda _: schedule)

    check(make, parts=2, bad=12)


def stateful(_: object = None) -> nn.Module:
    """Adds its last output to its hidden values; the state is one tensor of a batch."""
    flow = FlowBuilder.from_(nn.Linear(4, 16)).through(StateAdd()).using("memory")
    flow = flow.through(nn.Tanh()).tag("memory")
    return flow.through(nn.Linear(16, 1)).build()


def test_a_graph_with_state() -> None:
    def make(fn: Any) -> TrainerBuilder:
        return training(fn, model=stateful).loader_options(drop_last=True)

    check(make)


def test_loss_scaling_with_skipped_steps() -> None:
    """One step is left out by the scaler; the guard goes back past it."""
    scalers: list[GradScaler] = []

    def make(fn: Any) -> TrainerBuilder:
        scalers.append(GradScaler(init=2.0**100, interval=4))
        return training(fn).grad_scaler(scalers[-1])

    check(make, extra=lambda: scalers[-1].state_dict())  # noqa: PLW0108 - the last one changes


def test_a_scheduler_of_torch() -> None:
    def scheduler(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, 2 * STEPS)

    def make(fn: Any) -> TrainerBuilder:
        return training(fn).lr_scheduler(scheduler, interval="step")

    check(make, options={"lower_lr": 1})


class Scaled(nn.Module):
    """Has a parameter that the optimizer gets while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 1), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.scale
        return out


class Adds(Callback):
    """Adds a group in the middle of an epoch, after the latest snapshot."""

    def on_step_end(self, run: Any) -> None:
        if run.global_step == BAD - 1:
            run.optimizer.add_param_group({"params": [run.model.scale], "lr": 0.02})
        self.rates = [group["lr"] for group in run.optimizer.param_groups]


def test_a_group_that_was_added_since_goes_and_comes_again_with_a_schedule() -> None:
    def some(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters)[1:], lr=0.01)

    adds = Adds()
    builder = training(Spoiled((25,)), model=lambda _: Scaled(), optimizer=some)
    builder.scheduler(lambda _: fnn.schedule.StepDecay(0.01, STEPS, 0.5))
    builder.guards(every=5).callbacks(adds).run()
    assert adds.rates == [0.005, 0.01]


def test_a_rate_that_people_asked_for_is_repeated_with_a_scheduler_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Steering] = []

    def steering(*parts: Any) -> Steering:
        made.append(Steering(*parts))
        return made[0]

    class Rates(Callback):
        def on_step_end(self, run: Any) -> None:
            if run.global_step == 3:
                made[0].mailbox.post(Wish("lr", value="0.0455"), lambda _: None)
            rates.setdefault(run.global_step, set()).add(run.optimizer.param_groups[0]["lr"])

    monkeypatch.setattr("flodl.train.loop.Steering", steering)
    rates: dict[int, set[float]] = {}
    builder = training(Spoiled((25,))).callbacks(Rates()).guards(every=5, lower_lr=1)
    builder.lr_scheduler(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.95), "step").run()
    assert all(len(seen) == 1 for seen in rates.values())
    assert rates[4] != {0.01 * 0.95**3}


class Noisy(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Draws a random number for each sample that is read."""

    def __init__(self) -> None:
        self.x, self.y = points(SAMPLES)
        self.read: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.append(index)
        return self.x[index] + 0.01 * torch.randn(4), self.y[index]


class Fixed(Noisy):
    """Draws nothing."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


def losses_of_steps(make: Callable[[Any], TrainerBuilder]) -> tuple[list[float], int]:
    """All losses of a training in which one step is spoiled, and the number of that step."""
    seen: list[float] = []

    class Loss(Callback):
        def on_step_end(self, run: Any) -> None:
            seen.append(run.loss)

    make(Spoiled((BAD,))).guards(every=5).callbacks(Loss()).run()
    return seen, BAD


@pytest.mark.parametrize("cache", [False, True], ids=["streamed", "with a cache"])
def test_steps_are_repeated_although_the_data_draw_random_numbers(cache: bool) -> None:
    def make(fn: Any) -> TrainerBuilder:
        builder = training(fn, data=Noisy())
        return builder.cache() if cache else builder

    check(make)
    seen, bad = losses_of_steps(make)
    assert seen[20 : bad - 1] == seen[bad - 1 : 2 * (bad - 1) - 20]


def test_data_that_are_read_ahead() -> None:
    check(lambda fn: training(fn, data=Fixed()).loader_options(streaming=True, prefetch=2))


class Frozen(Callback):
    """Freezes a layer in the middle of an epoch."""

    def on_step_end(self, run: Any) -> None:
        if run.global_step == 21:
            run.model[0].requires_grad_(False)
            run.model[1].eval()


class Modes(Callback):
    def __init__(self) -> None:
        self.found: list[tuple[bool, bool]] = []

    def on_rewind(self, run: Any, _rewind: Rewind) -> None:
        self.found.append((run.model[0].weight.requires_grad, run.model[1].training))


def test_frozen_layers_and_modes_go_back() -> None:
    modes = Modes()
    training(Spoiled((BAD,))).guards(every=5).callbacks(Frozen(), modes).run()
    assert modes.found == [(True, True)]


class Growing(nn.Module):
    """Its buffers come, go and grow while it trains."""

    seen: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("seen", None)

    def forward(self, x: Tensor) -> Tensor:
        new = x.detach().mean(0, keepdim=True)
        self.seen = new if self.seen is None else torch.cat([self.seen, new])
        out: Tensor = self.linear(x) + 0.01 * self.seen.mean()
        return out


def test_buffers_that_come_and_grow() -> None:
    check(lambda fn: training(fn, model=lambda _: Growing()))


def test_an_optimizer_with_a_closure() -> None:
    def lbfgs(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=2)

    handle = training(optimizer=lbfgs).guards(every=5).run()
    assert same(handle, training(optimizer=lbfgs).run())


def test_random_numbers_of_the_hook_change_nothing() -> None:
    class Draws(Callback):
        def on_rewind(self, _run: Any, _rewind: Rewind) -> None:
            torch.rand(3)

    runs = [
        training(Spoiled((BAD,))).guards(every=5).callbacks(*callbacks).run()
        for callbacks in ((), (Draws(),))
    ]
    assert same(*runs)


def test_state_of_the_program_is_restored_by_the_hook() -> None:
    """The example of the tutorial: a baseline that the program keeps beside the model."""

    class Baseline(Callback):
        def __init__(self) -> None:
            self.value = 0.0
            self.kept: dict[int, float] = {}

        def on_epoch_start(self, run: Any) -> None:
            self.kept = {run.global_step: self.value}

        def on_step_end(self, run: Any) -> None:
            self.value = 0.9 * self.value + 0.1 * run.loss
            self.kept[run.global_step] = self.value

        def on_rewind(self, _run: Any, rewind: Rewind) -> None:
            self.value = self.kept[rewind.restored_step]

    one, other = Baseline(), Baseline()
    for every, baseline in ((5, one), (3, other)):
        training(Spoiled((BAD,))).guards(every=every).callbacks(baseline).run()
    assert one.value == other.value


# --- Engines --------------------------------------------------------------------------------------


def always_trying(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[AutoEngine]:
    """Let ``auto`` try its tunings in a short training, one step per block."""
    made: list[AutoEngine] = []
    init = AutoEngine.__init__

    def short(self: AutoEngine, *args: Any, **options: Any) -> None:
        policy = AutoPolicy(
            least_steps=1, least_seconds=0.0, cost=1e9, block=1, compile_seconds=0.0
        )
        init(self, *args, **{**options, "policy": policy})
        made.append(self)
        monkeypatch.setenv("FLODL_CACHE_DIR", str(folder / str(len(made))))

    monkeypatch.setattr(AutoEngine, "__init__", short)
    return made


def test_auto_goes_back_in_the_middle_of_a_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = always_trying(monkeypatch, tmp_path)
    trial: list[tuple[bool, bool]] = []

    class Trial(States):
        def on_rewind(self, run: Any, rewind: Rewind) -> None:
            super().on_rewind(run, rewind)
            trial.append((made[-1].decided, made[-1].tuning.fused))

    for bad in range(12, 20):
        watch = Trial()
        builder = training(Spoiled((bad,))).engine("auto").guards(every=5).callbacks(watch)
        handle = builder.run()
        assert len(watch.rewinds) == 1
        assert watch.steps[-1] == 2 * STEPS - 1
        assert all(one.isfinite().all() for one in weights(handle))
    assert not any(decided for decided, _ in trial)
    assert {fused for _, fused in trial} == {False, True}


def test_giving_up_does_not_change_what_auto_has_decided(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The steps that look for the module are plain, and the next run must not start with them."""
    always_trying(monkeypatch, tmp_path)
    fused = Decision(key={}, tuning=Tuning(fused=True), plain_ms=1.0, step_ms=0.5, trials={})
    stored: list[Decision] = []
    monkeypatch.setattr("flodl.train.step.auto.stored_decision", lambda *_: (fused, ""))
    monkeypatch.setattr(Decision, "store", stored.append)
    with pytest.raises(DivergedError, match="give up after 1 of 1 attempts"):
        training(Spoiled(tuple(range(25, 200)))).engine("auto").guards(attempts=1).run()
    assert not stored


def with_bad_steps(*steps: int, field: int = 1) -> Any:
    """Data whose first epoch has a bad input (0) or target (1) in these steps, counted from 1."""
    data = points(SAMPLES)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(42))
    for step in steps:
        data[field][order[(step - 1) * BATCH]] = float("nan")
    return data


@pytest.mark.slow
def test_the_compiled_engine() -> None:
    def make(data: Any) -> TrainerBuilder:
        return training(data=data).engine("compiled").num_epochs(1)

    clean = points(SAMPLES)
    assert same(make(clean).run(), make(clean).guards(every=5).run())
    results = []
    for every in (5, 4):
        watch = States()
        handle = make(with_bad_steps(BAD)).guards(every=every).callbacks(watch).run()
        assert [one.restored_step for one in watch.rewinds] == [20]
        results.append(handle)
    assert same(*results)
    assert all(one.isfinite().all() for one in weights(results[0]))


@pytest.mark.slow
def test_giving_up_with_the_compiled_engine_names_the_module() -> None:
    data = with_bad_steps(*range(20, STEPS), field=0)
    with pytest.raises(DivergedError, match="give up after 1 of 1 attempts") as failure:
        training(data=data).engine("compiled").guards(attempts=1).run()
    assert "The first value that is not finite: the output of module 0 (Linear)" in str(
        failure.value
    )


class BadOnce(Fixed):
    """Has one bad target, in the moment in which a condition holds for the first time."""

    def __init__(self, now: Callable[[], bool]) -> None:
        super().__init__()
        self.now, self.told = now, False

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        if self.told or not self.now():
            return x, y
        self.told = True
        return x, y * float("nan")


@pytest.mark.slow
def test_a_pure_step_in_the_middle_of_its_trials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The trial switches between plain and compiled steps."""
    made = always_trying(monkeypatch, tmp_path)
    data = BadOnce(lambda: made[-1].compile_seconds and not made[-1].decided)
    watch = States()
    builder = training(data=data).engine("auto").pure_step().num_epochs(8)
    handle = builder.guards(every=5).callbacks(watch).run()
    assert data.told
    assert len(watch.rewinds) == 1
    assert made[-1].decided
    assert all(one.isfinite().all() for one in weights(handle))
