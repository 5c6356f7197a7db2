"""The same training on two real ranks: what virtual ranks predict must be what happens.

``python -m benchmarks.virtual_ranks --validate`` compares times, which needs a machine that does
nothing else. The weights must be equal to the bit; ``tests/benchmarks`` checks that as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from torch import Tensor, nn

from benchmarks.measure import judged, table
from benchmarks.unequal_ranks import in_ranks
from benchmarks.virtual_ranks_tasks import TASKS, Order, Task, judged_by
from benchmarks.virtual_ranks_work import Replicas
from flodl import Batch, TensorDataSet, Trainer
from flodl.ranks.averaging.outer_optimizer import Nesterov
from flodl.ranks.planning.elche import ElCheConfig
from flodl.ranks.planning.schedule import ScheduleConfig
from flodl.ranks.settings import Policy
from flodl.ranks.simulate import Cluster, simulate
from flodl.train.builder import TrainerBuilder

CLOSE = 0.05
"""How far a predicted time may be from a measured one."""
LR = 3e-3


@final
@dataclass(frozen=True)
class Pair:
    """One training that is done twice: by virtual ranks and by real ones."""

    policy: Policy
    ms: tuple[float, ...] = (40.0, 100.0)
    average_ms: float = 15.0
    epochs: int = 2
    momentum: float | None = None
    """Of the outer optimizer; None without one."""
    exact: bool = False
    """Whether declared times replace measured ones, so that every run plans the same windows. Real
    ranks then take an average that arrives during a window as late as they may."""
    anchor: int | None = None
    """Batches of the slowest rank in every window; None: as ElChe decides."""

    @property
    def task(self) -> Task:
        """The network of the map."""
        return replace(TASKS["MLP"], epochs=self.epochs)


PAIRS = (
    Pair(Policy.SYNC),
    Pair(Policy.CADENCE),
    Pair(Policy.ASYNC),
    Pair(Policy.CADENCE, momentum=0.9),
)


def _limits(pair: Pair) -> dict[str, Any]:
    if pair.anchor is None:
        return {}
    return {"anchor": pair.anchor, "min_anchor": pair.anchor, "max_anchor": pair.anchor}


def _outer(pair: Pair) -> Nesterov | None:
    return None if pair.momentum is None else Nesterov(0.7, pair.momentum)


def virtual(pair: Pair, seed: int) -> tuple[float, list[Tensor], float]:
    """Train on virtual ranks; return the time in ms, the weights and the held-out loss."""
    task = pair.task
    samples, world = task.samples(), len(pair.ms)
    sync = pair.policy is Policy.SYNC
    config = ScheduleConfig(
        elche=ElCheConfig(world_size=world, **_limits(pair)), policy=pair.policy,
        epochs=task.epochs, batches_per_epoch=task.batches, progressive=not sync,
        stream_epochs=not sync, timed=not pair.exact,
    )  # fmt: skip
    order = Order(len(samples.train[1]), task.batch, (seed,), None, world)
    work = Replicas(
        task, (seed,), world, LR, order,
        outer=None if pair.momentum is None else partial(Nesterov, 0.7, pair.momentum),
    )  # fmt: skip
    try:
        history = simulate(Cluster(ms=pair.ms, sync_ms=pair.average_ms), config, work=work)
    finally:
        work.close()
    weights = [parameter.detach().clone() for parameter in work.models[0].parameters()]
    return history.ms, weights, _held_out(task, work.models[0])


def _held_out(task: Task, model: nn.Module) -> float:
    return float(judged_by(task, model, task.samples().test, 1)[0])


def builder(pair: Pair, seed: int) -> TrainerBuilder:
    """Describe the training for real ranks."""
    task = pair.task

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return task.loss(model(batch[0][None]), batch[1][None]).sum()

    described = (
        Trainer.builder(lambda _: task.network((seed,)), lambda own: task.optimizer(own, LR), loss)
        .dataset(TensorDataSet(*task.samples().train))
        .batch_size(task.batch)
        .num_epochs(task.epochs)
        .seed(seed)
        .engine("eager")
        .progress(False)
        .ddp(
            {
                "policy": pair.policy,
                "simulate_ms": pair.ms,
                "simulate_sync_ms": 0.0 if pair.exact else pair.average_ms,
                **_limits(pair),
                "outer_optimizer": _outer(pair),
            }
        )
    )
    return described.deterministic() if pair.exact else described


def real(pair: Pair, seed: int) -> tuple[float, list[Tensor]]:
    """Train on this rank with the others; return the time in ms and the weights."""
    handle = builder(pair, seed).run()
    weights = handle.join().params
    return sum(epoch.epoch_ms for epoch in handle.poll_metrics()), weights


def validated(seed: int = 1000, pairs: Sequence[Pair] = PAIRS) -> list[dict[str, Any]]:
    """Compare predicted and real trainings; the time of processes that start is not counted."""
    rows = []
    for pair in pairs:
        predicted_ms, _, loss = virtual(pair, seed)
        measured_ms, weights = in_ranks(len(pair.ms), real, pair, seed)
        model = pair.task.network((seed,))
        for own, theirs in zip(model.parameters(), weights, strict=True):
            own.data.copy_(theirs)
        rows.append(
            {
                "validates": str(pair.policy) + (", outer" if pair.momentum else ""),
                "ms": list(pair.ms),
                "average_ms": pair.average_ms,
                "predicted_ms": round(predicted_ms, 1),
                "measured_ms": round(measured_ms, 1),
                "predicted_loss": round(loss, 5),
                "measured_loss": round(_held_out(pair.task, model), 5),
            }
        )
    return rows


def described(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of validations, or that there are none."""
    if not rows:
        return "Times: not measured yet on a machine that did nothing else."
    body = []
    for row in rows:
        part = row["measured_ms"] / row["predicted_ms"]
        body.append(
            [
                row["validates"],
                f"{row['predicted_ms'] / 1000:.2f}",
                f"{row['measured_ms'] / 1000:.2f}",
                f"{part:.3f}",
                judged(abs(part - 1) <= CLOSE),
                f"{row['predicted_loss']:.3f}",
                f"{row['measured_loss']:.3f}",
                row["date"],
            ]
        )
    return table(
        ["policy", "predicted s", "measured s", "measured / predicted", "within 5 %",
         "predicted loss", "measured loss", "date"],
        body,
    )  # fmt: skip
