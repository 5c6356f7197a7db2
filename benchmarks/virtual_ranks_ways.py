"""The ways of sharing a training, and one training by one of them on a virtual clock."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import cache, partial
from typing import Any, Literal, TypeAlias, final

import torch

from benchmarks.measure import environment
from benchmarks.virtual_ranks_tasks import TASKS, Order, Task, judged_by
from benchmarks.virtual_ranks_work import Repeated, Replicas
from flodl.errors import DivergedError
from flodl.ranks.averaging.outer_optimizer import Nesterov
from flodl.ranks.planning.elche import ElCheConfig
from flodl.ranks.planning.schedule import ScheduleConfig
from flodl.ranks.settings import Policy
from flodl.ranks.simulate import Change, Cluster, Exchange, simulate

Speeds: TypeAlias = Literal["fixed", "drifting", "away"]
Shards: TypeAlias = Literal["iid", "by class"]
Price: TypeAlias = Literal["cheap", "dear"]

DEAR = 40
"""How many times more bytes a dear exchange has; with two ranks it takes as long as four batches
of the fast one."""
BACKWARD = 2 / 3
"""Part of a batch that is the backward pass, behind which DDP hides its exchange."""
AWAY = 10.0
"""How much longer the batches of a rank take that does something else meanwhile."""


@final
@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of sharing a training."""

    about: str
    policy: Policy = Policy.CADENCE
    alone: bool = False
    hidden: bool = False
    """Whether the exchange of gradients hides behind the backward pass."""
    period: int | None = None
    """Local steps of the fastest rank between two averages; None: ElChe decides."""
    by_speed: bool = False
    """Whether ranks share by the speeds that they have at the start."""
    outer: bool = False
    """Whether the outer optimizer of DiLoCo steps from one average to the next."""


WAYS: Mapping[str, Way] = {
    "fast rank alone": Way(
        policy=Policy.SYNC, alone=True, about="the fastest rank trains everything"
    ),
    "DDP": Way(
        policy=Policy.SYNC, hidden=True,
        about="one batch per rank and step, gradients averaged behind the backward pass; the "
        "arithmetic is that of our sync, which the tests compare with torch DDP",
    ),
    "DDP, cut by speed": Way(
        policy=Policy.SYNC, hidden=True, by_speed=True,
        about="the samples of a step are cut in proportion to the speeds at the start",
    ),
    "PostLocalSGD, every 4": Way(period=4, about="4 local steps per rank, then an equal average"),
    "PostLocalSGD, every 16": Way(period=16, about="16 local steps, then an equal average"),
    "DiLoCo, every 16": Way(
        period=16, outer=True,
        about="16 local steps, then Nesterov on the equal average",
    ),
    "DyLU, up to 16": Way(
        period=16, outer=True, by_speed=True,
        about="as DiLoCo, with local steps in proportion to the speeds at the start, 16 on the "
        "fastest rank; all ranks average at once",
    ),
    "sync": Way(policy=Policy.SYNC, about="ours: gradients averaged after the backward pass"),
    "cadence": Way(about="ours: ElChe's windows, averages weighted by samples"),
    "cadence, outer": Way(outer=True, about="the same with Nesterov as outer optimizer"),
    "async": Way(policy=Policy.ASYNC, about="ours: the average arrives during the next window"),
    "async, outer": Way(
        policy=Policy.ASYNC, outer=True, about="the same with Nesterov as outer optimizer"
    ),
}  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of the map; a row of the file."""

    task: str
    ranks: int
    ratio: float
    speeds: Speeds = "fixed"
    shards: Shards = "iid"
    exchange: Price = "cheap"
    way: str
    lr: float
    length: float = 1
    """How many times the epochs of the task."""
    momentum: float | None = None
    """Of the outer optimizer; None without one."""
    seeds: tuple[int, ...]

    @property
    def key(self) -> str:
        """The same for the same training."""
        return repr(tuple(asdict(self).values()))


@final
@dataclass(frozen=True)
class Place:
    """A place of the map: ranks with their speeds, their data and the price of their exchange."""

    ranks: int
    ratio: float
    """How many times slower the slowest rank is than the fastest."""
    speeds: Speeds = field(default="fixed", kw_only=True)
    shards: Shards = field(default="iid", kw_only=True)
    exchange: Price = field(default="cheap", kw_only=True)
    length: float = field(default=1, kw_only=True)
    """How many times the epochs of the task; other lengths compare a few ways only."""


def grid(task: str, place: Place) -> Iterator[Cell]:
    """Return every training of a place: each way with every rate that is tried."""
    for seeds in TASKS[task].seeds:
        for name, way in WAYS.items():
            if place.length != 1 and name not in AT_ANY_LENGTH:
                continue
            for lr in TASKS[task].rates:
                for momentum in TASKS[task].momenta if way.outer else (None,):
                    cell = Cell(
                        task=task, way=name, lr=lr, momentum=momentum, seeds=seeds,
                        **asdict(place),
                    )  # fmt: skip
                    yield settled(cell)


AT_ANY_LENGTH = ("DDP", "cadence", "async")
"""What shorter and longer trainings compare: whether few averages are what costs accuracy."""


def task_of(cell: Cell) -> Task:
    """Return the task of a cell, with the epochs of its length."""
    task = TASKS[cell.task]
    return replace(task, epochs=max(1, round(task.epochs * cell.length)))


def settled(cell: Cell) -> Cell:
    """Return the cell that has the same result: the fast rank does not know the others."""
    if not WAYS[cell.way].alone or cell.shards != "iid" or cell.speeds == "drifting":
        return cell
    return replace(cell, ranks=1, ratio=1.0, speeds="fixed", exchange="cheap")


def arithmetic(cell: Cell) -> Cell | None:
    """Return the cell with the same batches, gradients and averages, whatever its clock.

    None: the times decide who trains what.
    """
    way = WAYS[cell.way]
    if not (way.alone or way.period or way.policy is Policy.SYNC):
        return None
    same = "DDP" if cell.way == "sync" else cell.way  # they differ in when gradients travel
    priced = replace(cell, way=same, exchange="cheap")
    # Shares follow the speeds at the start, which drifting leaves as they are.
    return replace(priced, speeds="fixed", ratio=priced.ratio if way.by_speed else 1.0)


def cluster_of(cell: Cell) -> Cluster:
    """Return the ranks of a cell: from the fastest to the slowest by equal factors."""
    task = task_of(cell)
    last = max(1, cell.ranks - 1)
    ms = tuple(task.batch_ms * cell.ratio ** (rank / last) for rank in range(cell.ranks))
    until = 3 * task.epochs * task.batches * task.batch_ms
    exchange = Exchange(bytes=task.bytes * (DEAR if cell.exchange == "dear" else 1))
    return Cluster(ms=ms, exchange=exchange, changes=tuple(_changes(cell.speeds, ms, until)))


def _changes(speeds: Speeds, ms: Sequence[float], until: float) -> list[Change]:
    if speeds == "drifting":
        # Every rank gets another speed 60 times, up to twice or half the one at the start.
        drawn = random.Random(0)
        return [
            Change(until * turn / 60, rank, pace * 2 ** drawn.uniform(-1, 1))
            for turn in range(1, 60)
            for rank, pace in enumerate(ms)
        ]
    if speeds == "away":
        # The last rank is away for every second of 30 spans.
        rank, pace = len(ms) - 1, ms[-1]
        return [
            Change(until * turn / 30, rank, pace * (AWAY if turn % 2 else 1.0))
            for turn in range(1, 30)
        ]
    return []


def plan_of(cell: Cell, cluster: Cluster) -> tuple[Cluster, ScheduleConfig]:
    """Return the ranks that take part, and the settings of their schedule."""
    way, task = WAYS[cell.way], task_of(cell)
    if way.alone:
        changes = tuple(change for change in cluster.changes if change.rank == 0)
        cluster = Cluster(ms=cluster.ms[:1], changes=changes)
    if way.hidden:
        hidden = max(0.0, cluster.average_ms - BACKWARD * min(cluster.ms))
        cluster = Cluster(ms=cluster.ms, sync_ms=hidden, changes=cluster.changes)
    world, settings = len(cluster.ms), dict[str, Any]()
    elche = ElCheConfig(world_size=world)
    speeds = tuple(1 / pace for pace in cluster.ms)
    if way.period is not None:
        # The speeds at the start decide; the planner keeps its windows.
        ratios = speeds if way.by_speed else (1.0,) * world
        anchor = max(1, round(way.period * min(ratios) / max(ratios)))
        elche = ElCheConfig(world_size=world, anchor=anchor, min_anchor=anchor, max_anchor=anchor)
        settings = {
            "partition_ratios": tuple(ratio / sum(ratios) for ratio in ratios),
            "progressive": False, "timed": False, "divergence_guard": False,
        }  # fmt: skip
    elif way.policy is Policy.SYNC:
        settings = {"progressive": False, "stream_epochs": False}
        if way.by_speed:
            settings["partition_ratios"] = tuple(speed / sum(speeds) for speed in speeds)
    return cluster, ScheduleConfig(
        elche=elche, policy=way.policy, epochs=task.epochs, batches_per_epoch=task.batches,
        **settings,
    )  # fmt: skip


def repeat(cell: Cell, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a cell whose arithmetic is that of another row, on the cell's clock."""
    new = {**row, **asdict(cell), **origin(), "repeats": row["commit"]}
    if "diverged" in row:
        return new
    began = time.perf_counter()
    work = Repeated(task_of(cell), row["looks"])
    history = simulate(*plan_of(cell, cluster_of(cell)), work=work)
    if len(work.looks) != len(row["looks"]) or work.averages != row["averages"]:
        raise AssertionError(f"{cell.key} does not average when the repeated training did")
    return {
        **new,
        "ms": round(history.ms, 1),
        "looks": [[round(ms), *rest] for ms, *rest in work.looks],
        "seconds": round(time.perf_counter() - began, 2),
    }


def train(cell: Cell) -> dict[str, Any]:
    """Train a cell; return its row."""
    way, task, began = WAYS[cell.way], task_of(cell), time.perf_counter()
    cluster, config = plan_of(cell, cluster_of(cell))
    samples = task.samples()
    labels = samples.train[1]
    if cell.shards == "iid":
        kind = None
    else:  # a text has no classes: its parts come one after the other
        kind = labels if labels.dim() == 1 else torch.arange(len(labels))
    order = Order(len(labels), task.batch, cell.seeds, kind, cell.ranks)
    work = Replicas(
        task, cell.seeds, len(cluster.ms), cell.lr, order,
        ratios=config.partition_ratios if way.policy is Policy.SYNC else None,
        equal=way.period is not None,
        outer=None if cell.momentum is None else partial(Nesterov, 0.7, cell.momentum),
    )  # fmt: skip
    row: dict[str, Any] = {**asdict(cell), **origin()}
    try:
        history = simulate(cluster, config, work=work)
    except DivergedError:
        return {**row, "diverged": True}
    finally:
        work.close()
    if cell.shards == "iid" and not work.ledger_is_complete():
        raise AssertionError(f"the sample ledger of {cell.key} does not have every sample once")
    chosen = judged_by(task, work.models[0], samples.choose, len(cell.seeds))[0]
    loss, accuracy = judged_by(task, work.models[0], samples.test, len(cell.seeds))
    return {
        **row,
        "choose": [round(value, 5) for value in chosen.tolist()],
        "loss": [round(value, 5) for value in loss.tolist()],
        "accuracy": [round(value, 5) for value in accuracy.tolist()],
        "ms": round(history.ms, 1),
        "averages": work.averages,
        "anchor": history.anchor,
        "looks": [
            [round(ms), trained, round(one, 4), round(right, 4)]
            for ms, trained, one, right in work.looks
        ],
        "seconds": round(time.perf_counter() - began, 2),
    }


@cache
def origin() -> dict[str, str]:
    """Return the commit, the machine with its versions, and the date."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    where = environment("torch").rsplit(", ", 1)[0]
    return {"commit": commit, "where": where, "date": date.today().isoformat()}
