"""Ranks that continue from a checkpoint inside an epoch: each goes on as if it had not stopped."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from flodl import Callback, FlowBuilder, RunDirectory, Trainer
from flodl.checkpoint.generators import generator_states
from flodl.checkpoint.training import TrainingFile
from flodl.nn import GradScaler
from flodl.ranks.group import Group, LocalGroup
from flodl.train.run.part_states import observed_states
from flodl.train.runner import carry_out
from tests.flodl.distributed.ranks import RankError, Ranks
from tests.flodl.distributed.trainings import Numbers, linear, plan_of, sgd

SAMPLES, BATCH, EPOCHS = 240, 4, 2
KEPT = "kept.fdl"


class Keep(Callback):
    """Keeps the first checkpoint of a run, as it is when it is written."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.began: list[int] = []
        self.places: list[tuple[int, int, int]] = []

    def on_epoch_start(self, run: Any) -> None:
        self.began.append(run.epoch)

    def on_step_end(self, run: Any) -> None:
        self.places.append((run.epoch, run.step, run.global_step))

    def on_checkpoint(self, run: Any, path: Path) -> None:
        if self.at is not None:
            return
        while not path.is_file():  # another thread writes it
            time.sleep(0.001)
        self.at = run.global_step
        shutil.copy(path, path.with_name(KEPT))


class Seen:
    """What one rank did: the rate of each batch, and everything that it has at the end."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.optimizer: torch.optim.Optimizer
        self.scheduler: Any = None

    def step(self, model: nn.Module, batch: Any) -> Tensor:
        self.rates.append(float(self.optimizer.param_groups[0]["lr"]))
        noisy = batch[0] + random.random() + np.random.rand()
        model.record_scalar("rank", float(batch[2][0]))  # type: ignore[operator]
        return (model(noisy) - batch[1]).square().mean()

    def adam(self, parameters: Any) -> torch.optim.Optimizer:
        self.optimizer = torch.optim.Adam(parameters, lr=0.05)
        return self.optimizer

    def decay(self, optimizer: Any) -> Any:
        self.scheduler = lr_scheduler.ExponentialLR(optimizer, 0.98)
        return self.scheduler


def network(_: torch.device) -> nn.Module:
    flow = FlowBuilder.from_(nn.Linear(3, 8)).through(nn.BatchNorm1d(8)).through(nn.Dropout(0.2))
    return flow.through(nn.Linear(8, 1)).build()


class Falling:
    """A schedule of flodl."""

    def lr(self, step: int) -> float:
        return 0.05 * 0.99**step


def train(
    group: Group,
    policy: str,
    root: Path,
    resume: Path | None,
    rate: str = "torch",
    shuffle: bool = True,
    exchange: str = "float32",
) -> dict[str, Any]:
    """Train on this rank; return all that it knows at the end."""
    seen, keep = Seen(), Keep()
    builder = Trainer.builder(network, seen.adam, seen.step).dataset(Numbers(SAMPLES))
    builder.batch_size(BATCH).num_epochs(EPOCHS).engine("eager").progress(False).ema(0.9)
    builder.checkpoint_steps(20).deterministic().loader_options(shuffle=shuffle)
    settings: dict[str, Any] = {"lr_scale_ratio": 0.0}
    if rate == "torch":
        builder.lr_scheduler(seen.decay, "step")
    else:
        settings = {"lr_scale_ratio": 1.0, "lr_world": "effective"}
    if rate == "flodl":
        builder.scheduler(lambda _: Falling())
        builder.epoch_fn(lambda epoch, worker: worker.set_lr_scale(0.5) if epoch == 0 else None)
    builder.callbacks(keep).grad_scaler(GradScaler(interval=7))
    settings |= {"policy": policy, "simulate_ms": (1.0, 2.0), "exchange": exchange}
    builder.ddp(settings)
    if group.leads:
        builder.run_dir(RunDirectory.create(root, resume=resume))
    plan = plan_of(builder)
    handle = carry_out(plan, group)
    return {
        "rates": seen.rates,
        "model": handle.model.state_dict(),
        "optimizer": seen.optimizer.state_dict(),
        "scheduler": seen.scheduler.state_dict() if seen.scheduler is not None else None,
        "average": handle.average().params,
        "scaler": plan.scaler.state_dict() if plan.scaler is not None else None,
        "random": generator_states(),
        "places": keep.places,
        "began": keep.began,
        "recorded": handle.model.latest_metrics(),
        "counts": observed_states(handle.model)[""]["counts"],
        "averages": handle.version,
        "losses": [metrics.avg_loss for metrics in handle.poll_metrics()],
    }


def different(one: Any, other: Any, path: str = "") -> list[str]:
    """Return the paths at which two values differ."""
    if isinstance(one, Tensor):
        return [] if one.dtype == other.dtype and torch.equal(one, other) else [path]
    if isinstance(one, dict):
        return [p for key in one for p in different(one[key], other[key], f"{path}/{key}")]
    if isinstance(one, Sequence) and not isinstance(one, str):
        if len(one) != len(other):
            return [path]
        pairs = enumerate(zip(one, other, strict=True))
        return [p for at, (a, b) in pairs for p in different(a, b, f"{path}/{at}")]
    return [] if one == other else [path]


def check(whole: list[dict[str, Any]], resumed: list[dict[str, Any]]) -> None:
    """Compare all that each rank has at the end, and its steps since the checkpoint."""
    for before, after in zip(whole, resumed, strict=True):
        assert 0 < len(after["rates"]) < len(before["rates"])
        for name in ("rates", "places"):
            before[name] = before[name][-len(after[name]) :]
        if after["scheduler"] is None:  # a schedule sets the rate after the forward pass
            before["rates"][0] = after["rates"][0]
    assert different(whole, resumed) == []


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_every_rank_goes_on_inside_an_epoch_as_if_it_had_not_stopped(
    ranks: Ranks, policy: str, tmp_path: Path
) -> None:
    whole = ranks(2, train, policy, tmp_path / "whole", None)
    (run,) = (tmp_path / "whole").iterdir()
    check(whole, ranks(2, train, policy, tmp_path / "resumed", run / KEPT))


@pytest.mark.parametrize("exchange", ["int8", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_so_it_does_with_small_exchanges(
    ranks: Ranks, policy: str, exchange: str, tmp_path: Path
) -> None:
    how = "torch", True, exchange
    whole = ranks(2, train, policy, tmp_path / "whole", None, *how)
    (run,) = (tmp_path / "whole").iterdir()
    check(whole, ranks(2, train, policy, tmp_path / "resumed", run / KEPT, *how))


@pytest.mark.parametrize("rate", ["optimizer", "flodl"])
def test_so_does_a_rate_that_follows_the_batch_counts(
    ranks: Ranks, rate: str, tmp_path: Path
) -> None:
    whole = ranks(2, train, "cadence", tmp_path / "whole", None, rate)
    (run,) = (tmp_path / "whole").iterdir()
    check(whole, ranks(2, train, "cadence", tmp_path / "resumed", run / KEPT, rate))


def test_ranks_refuse_another_order_inside_an_epoch(ranks: Ranks, tmp_path: Path) -> None:
    ranks(2, train, "cadence", tmp_path / "whole", None)
    (run,) = (tmp_path / "whole").iterdir()
    with pytest.raises(RankError, match="with shuffle=True, and now it has shuffle=False"):
        ranks(2, train, "cadence", tmp_path / "resumed", run / KEPT, "torch", False)
    assert list((tmp_path / "resumed").iterdir()) == []


class CrashedError(Exception):
    pass


def train_until(
    group: Group, root: Path, resume: Path | None, epochs: int, settings: dict[str, Any]
) -> list[bool]:
    """Train with checkpoints inside epochs; return of each epoch whether it was evaluated.

    The first training plans four epochs without a barrier, and crashes in the first one.
    """
    batches = 0

    def step(model: nn.Module, batch: Any) -> Tensor:
        nonlocal batches
        batches += 1
        if resume is None and batches == 8:
            raise CrashedError
        return (model(batch[0]) - batch[1]).square().mean()

    builder = Trainer.builder(linear, sgd, step).dataset(Numbers(80)).batch_size(BATCH)
    builder.num_epochs(epochs).engine("eager").progress(False).deterministic().ddp(settings)
    if resume is None:
        builder.checkpoint_steps(4).checkpoint_every(epochs)
    else:
        builder.eval_fn(lambda _: {"judged": 1.0})
    if group.leads:
        builder.run_dir(RunDirectory.create(root, resume=resume))
    handle = carry_out(plan_of(builder), group)
    return ["judged" in metrics.scalars for metrics in handle.poll_metrics()]


def crashed_in_its_first_epoch(ranks: Ranks, root: Path, settings: dict[str, Any]) -> Path:
    with pytest.raises(RankError, match="CrashedError"):
        ranks(2, train_until, root, None, 4, settings)
    (run,) = root.iterdir()
    assert TrainingFile.open(run / "last.fdl").value("position")[0] == 0
    return run / "last.fdl"


def test_a_resumed_training_does_what_is_due_after_each_of_its_own_epochs(
    ranks: Ranks, tmp_path: Path
) -> None:
    settings = {"policy": "async"}
    checkpoint = crashed_in_its_first_epoch(ranks, tmp_path / "first", settings)
    judged = ranks(2, train_until, tmp_path / "second", checkpoint, 2, settings)
    assert judged == [[True, True]] * 2
    (run,) = (tmp_path / "second").iterdir()
    assert TrainingFile.open(run / "last.fdl").value("position")[0] == 2


def test_one_rank_goes_on_with_the_settings_of_several(ranks: Ranks, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy": "cadence"}
    checkpoint = crashed_in_its_first_epoch(ranks, tmp_path / "first", settings)
    settings |= {"speeds": (2.0, 1.0), "simulate_ms": (1.0, 2.0)}
    alone = train_until(LocalGroup(), tmp_path / "second", checkpoint, 2, settings)
    assert alone == [True, True]
