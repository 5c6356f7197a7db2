"""Guards: a training survives bad batches, and is not changed without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Callback, Trainer
from flodl.data import Batch
from flodl.errors import DivergedError
from flodl.train import RunDirectory, TrainerBuilder
from flodl.train.handle import TrainerHandle
from flodl.train.observers.guards.guard import SpikeRule
from flodl.train.observers.journal import Act, Journal
from tests.rows import each_row

BATCH = 8
EVERY: dict[str, Any] = {"every": 10}
"""Snapshots do not depend on the speed of the machine."""


def points(samples: int = 640, *, corrupt: int | None = None, by: float = 1e6) -> Any:
    """Noisy values of a linear function; one target may be far too large."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 4, generator=random)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(samples, 1, generator=random)
    if corrupt is not None:
        y[corrupt] += by
    return x, y


def network(_: object = None) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)
    )


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def training(data: Any, *, epochs: int = 2, model: Any = network, fn: Any = None) -> TrainerBuilder:
    return (
        Trainer.builder(
            model,
            lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
            fn or squared_error,
        )
        .dataset(data)
        .batch_size(BATCH)
        .num_epochs(epochs)
        .device("cpu")
        .engine("eager")
    )


def weights(handle: TrainerHandle) -> list[Tensor]:
    return list(handle.model.state_dict().values())


def same(one: TrainerHandle, other: TrainerHandle) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def losses(handle: TrainerHandle) -> list[float]:
    return [metrics.avg_loss for metrics in handle.poll_metrics()]


def batch_of(sample: int, epoch: int, *, samples: int = 640, seed: int = 42) -> int:
    """The batch in which an epoch has a sample."""
    random = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(samples, generator=random).tolist()
    return order.index(sample) // BATCH


def acts(run: RunDirectory, name: str) -> list[Act]:
    return [act for act in Journal.read(run.path / "acts.jsonl") if act.act == name]


class _BadStep:
    """A ``train_fn`` that spoils the loss of one call of one batch, or of every call of it."""

    def __init__(self, batch: int, value: float, *, always: bool = True) -> None:
        self.rows = points()[0][_order(0)[batch * BATCH : (batch + 1) * BATCH]]
        self.value, self.always, self.calls = value, always, 0

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        loss = squared_error(model, batch)
        if torch.equal(batch[0], self.rows):
            self.calls += 1
            if self.always or self.calls == 1:
                return loss * self.value
        return loss


def _order(epoch: int) -> Tensor:
    return torch.randperm(640, generator=torch.Generator().manual_seed(42 + epoch))


# --- An undisturbed training ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [EVERY, pytest.param({}, marks=pytest.mark.slow)], ids=["every 10 steps", "by time"]
)
def test_an_undisturbed_training_is_the_same_to_the_bit(options: Any, tmp_path: Path) -> None:
    seen: list[list[tuple[int, int]]] = [[], []]

    class Steps(Callback):
        def __init__(self, into: list[tuple[int, int]]) -> None:
            self.into = into

        def on_step_end(self, run: Any) -> None:
            self.into.append((run.epoch, run.global_step))

    plain = training(points()).callbacks(Steps(seen[0])).run()
    run = RunDirectory.create(tmp_path)
    guarded = training(points()).callbacks(Steps(seen[1])).guards(**options).run_dir(run).run()
    assert same(plain, guarded)
    assert losses(plain) == losses(guarded)
    assert seen[0] == seen[1]
    assert not (run.path / "acts.jsonl").exists()


def test_guards_with_accumulation_adam_average_and_schedule_change_nothing() -> None:
    def build() -> TrainerBuilder:
        return (
            Trainer.builder(network, lambda p: torch.optim.AdamW(p, lr=0.01), squared_error)
            .dataset(points())
            .batch_size(BATCH)
            .num_epochs(2)
            .device("cpu")
            .accumulate(3)
            .ema(0.9)
            .max_grad_norm(1.0)
            .engine("eager")
        )

    assert same(build().run(), build().guards(every=4).run())


def test_small_outliers_of_a_converged_loss_are_not_spikes() -> None:
    rule = SpikeRule(30.0, 64)
    start = [4.0 + 0.1 * (at % 5) for at in range(64)]
    small = [1e-6 * (1 + at % 7) for at in range(128)]
    assert rule.first_bad([*start, *small, 1e-3, *small]) is None
    assert SpikeRule(30.0, 64).load(rule.state()).first_bad([1e-3, 3.0]) == 1
    assert SpikeRule(None, 64).first_bad([*start, 1e30, float("inf")]) == 65


# --- A bad batch ---------------------------------------------------------------------------------


def test_a_corrupt_batch_is_left_out_and_named_by_its_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path)
    guarded = training(points(corrupt=301), epochs=1).guards(**EVERY).run_dir(run).run()
    bad = batch_of(301, 0)
    (skip,) = acts(run, "skip")
    assert skip.value["epoch"] == 0
    assert skip.value["batches"] == [bad]
    assert skip.value["samples"] == _order(0)[bad * BATCH : (bad + 1) * BATCH].tolist()
    assert "301" in skip.detail
    shown = ", ".join(map(str, skip.value["samples"]))
    assert f"without batch {bad} (samples {shown}); attempt 1" in capsys.readouterr().err
    (rewind,) = acts(run, "rewind")
    assert rewind.by == "guard"
    assert rewind.value == rewind.step <= bad < rewind.old
    assert not acts(run, "lower_lr")
    plain = losses(training(points(), epochs=1).run())[0]
    assert losses(guarded)[0] == pytest.approx(plain, rel=0.1)


def test_the_steps_before_the_bad_batch_are_repeated_to_the_bit() -> None:
    """So the result is that of a training which never saw the batch, whatever snapshot it used."""
    results = [
        training(points(corrupt=301), epochs=1).guards(every=every).run() for every in (3, 10, 64)
    ]
    assert same(results[0], results[1])
    assert same(results[1], results[2])

    bad = batch_of(301, 0)
    seen: list[int] = []

    def without(model: nn.Module, batch: Batch) -> Tensor:
        seen.append(len(seen))
        return squared_error(model, batch)

    kept = torch.cat([_order(0)[: bad * BATCH], _order(0)[(bad + 1) * BATCH :]])

    x, y = points(corrupt=301)
    data = x[kept], y[kept]
    never = training(data, epochs=1, fn=without).loader_options(shuffle=False).run()
    assert len(seen) == 79
    assert same(never, results[0])


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_in_mixed_precision_the_result_is_that_of_a_training_without_the_batch(name: str) -> None:
    results = [
        training(points(corrupt=301), epochs=1).precision(name).guards(every=every).run()
        for every in (3, 10)
    ]
    assert same(*results)
    bad = batch_of(301, 0)
    kept = torch.cat([_order(0)[: bad * BATCH], _order(0)[(bad + 1) * BATCH :]])
    x, y = points(corrupt=301)
    never = training((x[kept], y[kept]), epochs=1).loader_options(shuffle=False)
    assert same(never.precision(name).run(), results[0])


def test_an_undisturbed_bf16_training_is_the_same_with_guards_to_the_bit() -> None:
    plain = training(points()).precision("bf16").run()
    guarded = training(points()).precision("bf16").guards(**EVERY).run()
    assert same(plain, guarded)
    assert losses(plain) == losses(guarded)
    assert not same(plain, training(points()).run())


def test_a_loss_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    step = _BadStep(40, float("nan"))
    training(points(), epochs=1, fn=step).guards(**EVERY).run_dir(run).run()
    (skip,) = acts(run, "skip")
    assert skip.value["batches"] == [40]
    (rewind,) = acts(run, "rewind")
    assert (rewind.step, rewind.old) == (40, 40)
    assert "the loss is nan in epoch 0, batch 40" in rewind.detail


def test_all_batches_of_an_accumulated_step_are_left_out(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    step = _BadStep(40, float("inf"))
    training(points(), epochs=1, fn=step).accumulate(3).guards(every=5).run_dir(run).run()
    (skip,) = acts(run, "skip")
    assert skip.value["batches"] == [39, 40, 41]
    assert len(skip.value["samples"]) == 3 * BATCH


class _BadGradient(torch.autograd.Function):
    """Passes values on; the gradient is nan where a value is above a limit."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bad: bool) -> Tensor:
        ctx.bad = bad
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return (gradient * float("nan") if ctx.bad else gradient), None


class Fragile(nn.Module):
    """Breaks the gradient of one batch."""

    def __init__(self, *, always: bool = False) -> None:
        super().__init__()
        self.bad, self.always = False, always

    def forward(self, x: Tensor) -> Tensor:
        passed: Tensor = _BadGradient.apply(x, self.bad or self.always)  # type: ignore[no-untyped-call]
        return passed


def fragile_network(_: object = None) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), Fragile(), nn.Linear(16, 1))


def _breaks_gradient(from_batch: int, count: int) -> Any:
    rows = points()[0][_order(0)]
    bad = [rows[at * BATCH : (at + 1) * BATCH] for at in range(from_batch, from_batch + count)]

    def step(model: Any, batch: Batch) -> Tensor:
        model[2].bad = any(torch.equal(batch[0], one) for one in bad)
        return squared_error(model, batch)

    return step


def test_a_gradient_that_is_not_finite_leaves_out_its_own_batch(tmp_path: Path) -> None:
    """Its loss is finite; the parameters break, and the next loss shows it."""
    run = RunDirectory.create(tmp_path)
    step = _breaks_gradient(40, 1)
    training(points(), epochs=1, model=fragile_network, fn=step).guards(**EVERY).run_dir(run).run()
    (skip,) = acts(run, "skip")
    assert skip.value["batches"] == [40, 41]


def test_the_last_step_of_an_epoch_is_judged_by_the_parameters(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    step = _breaks_gradient(79, 1)
    training(points(), epochs=2, model=fragile_network, fn=step).guards(**EVERY).run_dir(run).run()
    (skip,) = acts(run, "skip")
    assert (skip.value["epoch"], skip.value["batches"]) == (0, [79])
    (rewind,) = acts(run, "rewind")
    assert "hold values that are not finite" in rewind.detail


@pytest.mark.slow
def test_further_attempts_leave_out_more_and_lower_the_rate(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    step = _breaks_gradient(40, 4)
    handle = training(points(), epochs=1, model=fragile_network, fn=step)
    handle.guards(**EVERY, attempts=4).run_dir(run).run()
    skips = [act.value["batches"] for act in acts(run, "skip")]
    assert skips[0] == [40, 41]
    assert skips[-1][-1] >= 43
    assert [act.value["lr_factor"] for act in acts(run, "skip")[1:]] == [0.5] * (len(skips) - 1)
    (first, *_) = acts(run, "lower_lr")
    assert (first.value, first.old) == (0.01, 0.02)


# --- Giving up -----------------------------------------------------------------------------------


def test_giving_up_names_the_first_module_whose_gradient_is_not_finite(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    step = _breaks_gradient(40, 40)
    builder = training(points(), epochs=1, model=fragile_network, fn=step)
    with pytest.raises(DivergedError) as failure:
        builder.guards(**EVERY, attempts=2).run_dir(run).run()
    told = str(failure.value)
    assert "the gradient of the input of module 2 (Fragile)" in told
    assert "give up after 2 of 2 attempts" in told
    (end,) = acts(run, "give_up")
    assert "module 2 (Fragile)" in end.detail
    assert json.loads((run.path / "run.json").read_text())["state"] == "diverged"


class Overflow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tensor(1e38) * 1e38


def test_giving_up_names_the_first_module_whose_output_is_not_finite() -> None:
    model = nn.Sequential(nn.Linear(4, 8), Overflow(), nn.Linear(8, 1))
    with pytest.raises(DivergedError, match=r"the output of module 1 \(Overflow\), in step 1 of"):
        training(points(), model=lambda _: model).guards(attempts=1).run()


def test_a_spike_without_a_value_that_is_not_finite_says_so() -> None:
    class Everywhere:
        calls = 0

        def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
            loss = squared_error(model, batch)
            self.calls += 1
            return loss * 1e4 if self.calls > 40 else loss

    with pytest.raises(DivergedError, match="outputs and gradients of all modules were finite"):
        training(points(), fn=Everywhere()).guards(**EVERY).run()


@pytest.mark.parametrize(("by", "left"), [(20.0, 0), (float("nan"), 1)], ids=["spike", "nan"])
def test_without_a_limit_only_losses_that_are_not_finite_are_left_out(
    by: float, left: int, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path)
    training(points(corrupt=301, by=by), epochs=1).guards(spike=None, **EVERY).run_dir(run).run()
    assert len(acts(run, "skip")) == left


# --- Records -------------------------------------------------------------------------------------


def test_the_trace_of_a_run_that_went_back_is_that_of_its_last_way(tmp_path: Path) -> None:
    from fdl.runs.trace_file import read_trace

    run = RunDirectory.create(tmp_path)
    training(points(corrupt=301), epochs=1).guards(**EVERY).run_dir(run).run()
    bad = batch_of(301, 0)
    trace = read_trace(run.path)
    assert not trace.damage
    assert (trace.first, trace.last, len(trace.losses)) == (1, 79, 79)
    assert max(trace.losses) < 1e3
    steps = [list(trace.samples(number) or ()) for number in range(79)]
    batches = [number for number in range(80) if number != bad]
    assert steps == [_order(0)[at * BATCH : (at + 1) * BATCH].tolist() for at in batches]


def test_a_resumed_training_leaves_the_same_batches_out(tmp_path: Path) -> None:
    """The checkpoint is from before the bad batch; its journal says what to leave out."""
    step = _BadStep(40, float("nan"))
    whole = RunDirectory.create(tmp_path / "whole")
    uninterrupted = training(points(), fn=step).guards(**EVERY).run_dir(whole).run()

    class Stop(Callback):
        def on_step_end(self, run: Any) -> None:
            if run.global_step == 60:
                raise KeyboardInterrupt

    first = RunDirectory.create(tmp_path / "first")
    builder = training(points(), fn=_BadStep(40, float("nan"))).checkpoint_steps(30)
    with pytest.raises(KeyboardInterrupt):
        builder.guards(**EVERY).callbacks(Stop()).run_dir(first).run()
    assert acts(first, "skip")[0].value["batches"] == [40]

    second = RunDirectory.create(tmp_path / "second")
    again = training(points()).guards(**EVERY).resume(first.path).run_dir(second)
    resumed = again.run()  # its own loss is good: only the journal knows the batch
    assert same(uninterrupted, resumed)
    (skip,) = acts(second, "skip")
    assert skip.detail.endswith(f"(as in {first.path.name})")


def test_a_resumed_training_without_guards_leaves_the_same_batches_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its data are those of the training that it continues, also after a second resume."""

    class Stop(Callback):
        def __init__(self, at: int) -> None:
            self.at = at

        def on_step_end(self, run: Any) -> None:
            if run.global_step == self.at:
                raise KeyboardInterrupt

    uninterrupted = training(points(), fn=_BadStep(40, float("nan"))).guards(**EVERY).run()
    first, second, third = (RunDirectory.create(tmp_path / name) for name in "abc")
    builder = training(points(), fn=_BadStep(40, float("nan"))).checkpoint_steps(30)
    with pytest.raises(KeyboardInterrupt):
        builder.guards(**EVERY).callbacks(Stop(60)).run_dir(first).run()
    again = training(points()).resume(first.path).checkpoint_steps(35).callbacks(Stop(38))
    capsys.readouterr()
    with pytest.raises(KeyboardInterrupt):
        again.run_dir(second).run()
    told = capsys.readouterr().out
    assert f"the guards of {first.path.name} left out 1 batch after this checkpoint" in told
    (skip,) = acts(second, "skip")
    assert skip.value["batches"] == [40]
    resumed = training(points()).resume(second.path).run_dir(third).run()
    assert same(uninterrupted, resumed)
    capsys.readouterr()
    training(points(), epochs=3).resume(third.path).run_dir(RunDirectory.create(tmp_path)).run()
    assert "left out" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_lower_rate_survives_a_resume(tmp_path: Path) -> None:
    def build(folder: str) -> tuple[RunDirectory, TrainerBuilder]:
        run = RunDirectory.create(tmp_path / folder)
        step = _breaks_gradient(40, 4)
        model = fragile_network
        return run, training(points(), epochs=2, model=model, fn=step).run_dir(run).guards(
            every=10, attempts=4
        )

    whole, builder = build("whole")
    uninterrupted = builder.run()
    run, builder = build("first")

    class Stop(Callback):
        def on_step_end(self, run: Any) -> None:
            if run.global_step == 60:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        builder.checkpoint_steps(50).callbacks(Stop()).run()
    _, builder = build("second")
    assert same(uninterrupted, builder.resume(run.path).run())
    assert acts(whole, "lower_lr")


def test_callbacks_see_the_repeated_steps_and_no_bad_loss() -> None:
    seen: list[tuple[int, float]] = []

    class Steps(Callback):
        def on_step_end(self, run: Any) -> None:
            seen.append((run.global_step, run.loss))

    training(points(corrupt=301), epochs=1).guards(every=10).callbacks(Steps()).run()
    bad = batch_of(301, 0)
    again = bad // 10 * 10
    assert [step for step, _ in seen] == [*range(1, bad + 1), *range(again + 1, 80)]
    assert max(loss for _, loss in seen) < 1e3
    losses_of = dict(seen[:bad])
    assert all(losses_of[step] == loss for step, loss in seen[bad : 2 * bad - again])


# --- Settings ------------------------------------------------------------------------------------


def test_fewer_snapshots_fit_into_a_small_budget(capsys: pytest.CaptureFixture[str]) -> None:
    training(points(), epochs=1).guards(snapshots=5, every=5, memory=40_000).run()
    assert "of 5 snapshots of" in capsys.readouterr().err


def test_a_budget_below_one_snapshot_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a snapshot of this training takes .* allows 100"):
        training(points()).guards(memory=100).run()


@each_row(
    ("options", "told"),
    [
        ({"spike": 1}, "a number above 1"),
        ({"window": 15}, "at least 16"),
        ({"snapshots": 0}, "at least 1"),
        ({"attempts": True}, "whole number"),
        ({"lower_lr": 0}, "above 0 and at most 1"),
        ({"every": 0}, "at least 1"),
    ],
)
def test_values_out_of_range_are_refused(options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        training(points()).guards(**options)


def test_what_cannot_go_back_is_refused_before_the_training() -> None:
    def samples() -> Any:
        yield from zip(*points(), strict=True)

    def scheduler(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 10)

    with pytest.raises(ValueError, match="guards: data that can only be iterated"):
        training(samples).guards().run()
    with pytest.raises(ValueError, match="engine='cuda_graph' repeats one captured step"):
        training(points()).engine("cuda_graph").guards().run()
    with pytest.raises(ValueError, match=r"\.sharded\(\) spreads it over the ranks"):
        training(points()).sharded().guards().run()
    with pytest.raises(ValueError, match="a guard cannot lower it"):
        training(points()).lr_scheduler(scheduler).guards().run()


def test_a_manifest_switches_guards_on_and_the_program_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLODL_GUARDS", '{"every": 10, "attempts": 1}')
    step = _breaks_gradient(40, 40)
    builder = training(points(), epochs=1, model=fragile_network, fn=step)
    with pytest.raises(DivergedError, match="after 1 of 1 attempts"):
        builder.run()
    with pytest.raises(DivergedError, match="Lower the learning rate") as failure:
        builder.guards(False).run()
    assert "guards" not in str(failure.value)
    monkeypatch.setenv("FLODL_GUARDS", '{"often": 10}')
    with pytest.raises(ValueError, match=r"FLODL_GUARDS=.*use one of spike, window"):
        training(points()).run()


# --- Five hundred steps --------------------------------------------------------------------------


def _final_losses(steps: int, bad: int, value: float) -> tuple[float, float]:
    """The loss over all data after a training without and with a bad batch that guards survive."""
    data = points(BATCH * steps)
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(42))
    rows = data[0][order[(bad - 1) * BATCH : bad * BATCH]]

    def plain(_: object = None) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def step(model: nn.Module, batch: Batch) -> Tensor:
        loss = squared_error(model, batch)
        return loss * value if torch.equal(batch[0], rows) else loss

    def final(builder: TrainerBuilder) -> float:
        model = builder.run().model
        with torch.no_grad():
            return float(nn.functional.mse_loss(model(data[0]), data[1]))

    undisturbed = final(training(data, epochs=2, model=plain))
    return undisturbed, final(training(data, epochs=2, model=plain, fn=step).guards())


def test_a_bad_batch_costs_less_than_two_percent_of_the_loss() -> None:
    undisturbed, guarded = _final_losses(300, 100, 1e6)
    assert guarded == pytest.approx(undisturbed, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("value", [1e6, float("nan")], ids=["spike", "nan"])
def test_a_bad_batch_at_step_500_costs_less_than_two_percent_of_the_loss(value: float) -> None:
    undisturbed, guarded = _final_losses(800, 500, value)
    assert guarded == pytest.approx(undisturbed, rel=0.02)
