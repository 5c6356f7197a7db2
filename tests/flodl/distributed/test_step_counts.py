"""Steps of several ranks are counted as on one device: optimizer steps that are done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Batch, Callback, Monitor, RunDirectory, Trainer, record_scalar
from flodl.monitor import EpochRecord, Finish, RunInfo, Sink, StepSeries
from flodl.ranks.group import Group
from flodl.train.runner import carry_out
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import PATIENT, Numbers, linear, plan_of, sgd, train

SAMPLES, BATCH = 64, 8


class Steps(Callback):
    """Keeps what ``on_step_end`` sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.began = -1

    def on_train_start(self, run: Any) -> None:
        self.began = run.global_step

    def on_step_end(self, run: Any) -> None:
        self.seen.append((run.epoch, run.step, run.global_step))


def steps(
    group: Group, policy: str, accumulate: int, epochs: int, root: str, resume: str | None
) -> tuple[int, list[tuple[int, int, int]]]:
    watch = Steps()
    builder: dict[str, Any] = {
        "callbacks": watch,
        "accumulate": accumulate,
        "deterministic": True,
        "resume": resume,
    }
    if group.leads and root:
        builder["run_dir"] = RunDirectory.create(root)
    train(group, n=SAMPLES, batch_size=BATCH, epochs=epochs, policy=policy, builder=builder)
    return watch.began, watch.seen


@pytest.mark.parametrize(("accumulate", "in_epoch"), [(1, 4), (2, 2), (3, 2)])
def test_ranks_that_share_steps_count_each_once(
    ranks: Ranks, accumulate: int, in_epoch: int
) -> None:
    for began, seen in ranks(2, steps, "sync", accumulate, 2, "", None):
        assert began == 0
        assert [step for _, _, step in seen] == list(range(1, 2 * in_epoch + 1))
        assert [epoch for epoch, _, _ in seen] == [0] * in_epoch + [1] * in_epoch
        assert [done for _, done, _ in seen][in_epoch - 1] == SAMPLES // BATCH // 2


def test_ranks_with_steps_of_their_own_count_those(ranks: Ranks) -> None:
    for _, seen in ranks(2, steps, "cadence", 1, 2, "", None):
        assert [step for _, _, step in seen] == list(range(1, len(seen) + 1))


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_a_resumed_training_counts_on(ranks: Ranks, policy: str, tmp_path: Path) -> None:
    first = ranks(2, steps, policy, 1, 1, str(tmp_path / "a"), None)
    (run,) = (tmp_path / "a").iterdir()
    second = ranks(2, steps, policy, 1, 2, "", str(run))
    for (_, before), (began, after) in zip(first, second, strict=True):
        assert began == before[-1][2] == len(before)
        assert [step for _, _, step in after] == list(range(began + 1, began + len(after) + 1))


class Halving:
    """Half the rate after every step."""

    def lr(self, step: int) -> float:
        return 0.1 * 0.5**step


def rates(group: Group) -> list[float]:
    schedule = {"scheduler": lambda _: Halving()}
    seen = train(group, n=SAMPLES, batch_size=BATCH, epochs=1, policy="sync", builder=schedule)
    return seen.rates[1:]  # a batch sees the rate that the step before it has set


def test_the_learning_rate_still_follows_the_batches_of_all_ranks(ranks: Ranks) -> None:
    assert ranks(2, rates) == [pytest.approx([0.1 * 0.5**at for at in (0, 2, 4)])] * 2


class Curves(Sink):
    """Keeps the steps of every curve."""

    def __init__(self) -> None:
        self.found: dict[str, list[int]] = {}

    def open(self, info: RunInfo) -> None:
        """Keep nothing."""

    def record(self, record: EpochRecord) -> None:
        """Keep nothing."""

    def steps(self, series: Sequence[StepSeries]) -> None:
        for one in series:
            self.found.setdefault(one.name, []).extend(one.steps)

    def finish(self, summary: Finish) -> None:
        """Keep nothing."""


def loss_with_scalar(net: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = (net(batch[0]) - batch[1]).square().mean()
    record_scalar("half", loss.detach() / 2)
    return loss


def recorded(group: Group, root: str) -> dict[str, list[int]]:
    monitor, curves = Monitor(2), Curves()
    monitor.add_sink(curves)
    builder = (
        Trainer.builder(linear, sgd, loss_with_scalar)
        .dataset(Numbers(SAMPLES))
        .batch_size(BATCH)
        .num_epochs(2)
        .engine("eager")
        .progress(False)
        .ddp({"policy": "sync"})
        .scheduler(lambda _: Halving())
        .max_grad_norm(10.0)
        .histograms(every=3)
        .monitor(monitor)
    )
    if group.leads:
        builder.run_dir(RunDirectory.create(root))
    carry_out(plan_of(builder), group)
    return curves.found


def test_recorded_values_and_histograms_belong_to_these_steps(ranks: Ranks, tmp_path: Path) -> None:
    curves, _ = ranks(2, recorded, str(tmp_path))
    for name in ("loss", "half", "lr", "grad_norm"):
        assert curves[name] == list(range(8)), name
    (run,) = tmp_path.iterdir()
    weights = json.loads((run / "media/histogram/weights/weight.json").read_text())
    assert [one["step"] for one in weights] == [1, 3, 6]


def some_steps(group: Group, policy: str) -> tuple[str | None, list[Tensor]]:
    """Ask for 25 steps of each rank; the first rank is three times as fast."""
    builder = (
        Trainer.builder(linear, sgd, lambda net, batch: (net(batch[0]) - batch[1]).square().mean())
        .dataset(Numbers(1600))
        .batch_size(8)
        .num_epochs(2)
        .progress(False)
        .ddp({"policy": policy, "backend": "cpu", **PATIENT, "simulate_ms": (1.0, 3.0)})
    )
    handle = carry_out(replace(plan_of(builder), most_steps=25), group)
    return handle.stopped, [one.detach().clone() for one in handle.model.parameters()]


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_ranks_that_were_asked_for_some_steps_stop_together(ranks: Ranks, policy: str) -> None:
    (told, first), (other, second) = ranks(2, some_steps, policy)
    # Which of them has its 25 steps first depends on what else the machine does.
    assert "only 25 steps were asked for" in (told, other)
    assert None not in (told, other)
    if policy == "sync":
        assert told == other  # they take each step together
    assert all(map(torch.equal, first, second))
