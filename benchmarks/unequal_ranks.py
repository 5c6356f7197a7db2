"""Batches per second of ranks that are not equally fast, against torch's DDP in the same run.

Run with ``python -m benchmarks.unequal_ranks [--output docs/benchmarks/unequal_ranks.md]``. Every
rank is a process of its own over Gloo and waits until each of its batches has lasted as long as
declared: what is measured is how the work is shared, not how fast this machine computes.
``benchmarks.hetero`` measures the same with real computation.

``--cold-start`` measures only the first 20 seconds, with default settings and nothing known.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import (
    Bar,
    command_line,
    in_turns,
    page,
    publish,
    read_options,
    spread,
    table,
)
from flodl import Batch, EpochMetrics, TensorDataSet, Timeline, Trainer
from flodl.ranks.clocks import BatchTimer
from flodl.ranks.launch.start_ranks import launch_ranks
from flodl.train.runner import this_group

Figures = Mapping[str, float]
T = TypeVar("T")

EPOCH = 350
"""Batches: 10 s for ranks of 40 and 100 ms per batch that never wait."""
B = 16
TWO = (40.0, 100.0)
THREE = (25.0, 40.0, 100.0)
EQUAL = (40.0, 40.0)


def ideal(ms: Sequence[float]) -> float:
    """Batches per second of ranks that never wait."""
    return sum(1000 / one for one in ms)


# --- One training, as each of the ranks runs it ------------------------------------------------


def _data(batches: int) -> TensorDataSet:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(batches * B, 4, generator=generator)
    noise = torch.randn(batches * B, 1, generator=generator)
    return TensorDataSet(inputs, inputs.sum(1, keepdim=True) + noise)


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = (model(batch[0]) - batch[1]).square().mean()
    return loss


def train(
    ms: Sequence[float],
    epochs: int,
    settings: Mapping[str, Any],
    train_fn: Callable[[nn.Module, Batch], Tensor] = _loss,
    timeline: Timeline | None = None,
    batches: int = EPOCH,
    engine: str = "eager",
) -> list[EpochMetrics]:
    """Train on this rank, one of ``len(ms)``."""
    builder = (
        Trainer.builder(
            lambda _: nn.Linear(4, 1), lambda ps: torch.optim.SGD(ps, lr=0.01), train_fn
        )
        .dataset(_data(batches))
        .batch_size(B)
        .num_epochs(epochs)
        .engine(engine)
        .progress(False)
        .ddp({"simulate_ms": ms, **settings})
    )
    if timeline is not None:
        builder.timeline(timeline)
    return builder.run().poll_metrics()


def rate(metrics: Sequence[EpochMetrics]) -> float:
    """Batches per second over all epochs, the warm-up included."""
    seconds = sum(epoch.epoch_ms for epoch in metrics) / 1000
    return sum(rank.batches for epoch in metrics for rank in epoch.per_rank) / seconds


def torch_ddp(ms: Sequence[float], batches: int, period: int | None = None) -> float:
    """Batches per second of torch, each rank a batch per step.

    Args:
        ms: Milliseconds per batch of each rank.
        batches: Batches of all ranks.
        period: Steps between two averages of ``PostLocalSGDOptimizer``; None:
            ``DistributedDataParallel``.
    """
    group = this_group()
    model: nn.Module = nn.Linear(4, 1)
    if period is None:
        model = DistributedDataParallel(model)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    if period is not None:
        from torch.distributed.optim import PostLocalSGDOptimizer

        averager = PeriodicModelAverager(period=period, warmup_steps=0)
        optimizer = PostLocalSGDOptimizer(optim=optimizer, averager=averager)
    inputs, targets = torch.randn(B, 4), torch.randn(B, 1)
    pad = ms[group.rank] / 1000
    group.barrier()
    begin = until = time.perf_counter()
    steps = batches // group.world_size
    for _ in range(steps):
        started = until = max(until, time.perf_counter() - pad)
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        until = started + pad
        time.sleep(max(0.0, until - time.perf_counter()))
    group.barrier()
    return steps * group.world_size / (time.perf_counter() - begin)


def fast_alone(ms: Sequence[float]) -> float:
    """Batches per second of the fastest rank, while the others wait for it."""
    group = this_group()
    fast = min(range(len(ms)), key=lambda rank: ms[rank])
    rates = group.gather([_unshared(ms[fast], 5.0) if group.rank == fast else 0.0])
    return rates[fast][0]


# --- What each of the ranks does -----------------------------------------------------------------


def compare(ms: Sequence[float], modes: Sequence[str], rounds: int, epochs: int) -> list[Figures]:
    """Rates of some modes, interleaved: one mapping per round."""
    rates = in_turns(modes, lambda mode: _rate_of(mode, ms, epochs), rounds, warmup=0)
    return [{mode: rates[mode][number] for mode in modes} for number in range(rounds)]


def _rate_of(mode: str, ms: Sequence[float], epochs: int) -> float:
    if mode in OTHERS:
        return OTHERS[mode](ms)
    # Half as much is enough where nothing has to be learned about the ranks.
    return rate(train(ms, 1 if mode == "sync" else epochs, {"policy": mode}))


@final
@dataclass(frozen=True)
class Steady:
    """What ranks do once they know each other."""

    rate: float
    """Batches per second."""
    counts: tuple[int, ...]
    """Batches of each rank in a window."""


def steady(ms: Sequence[float], policy: str, seconds: float = 30.0) -> Steady:
    """Count the batches of some seconds, after ten in which the ranks get to know each other."""
    stamps: list[float] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        stamps.append(time.perf_counter())
        return _loss(model, batch)

    epochs = math.ceil((seconds + 15) * ideal(ms) / EPOCH)
    metrics = train(ms, epochs, {"policy": policy}, loss)
    everything = this_group().gather_objects(stamps)
    begin = max(own[0] for own in everything) + 10
    batches = sum(begin <= stamp < begin + seconds for own in everything for stamp in own)
    return Steady(batches / seconds, metrics[-1].counts)


def by_ratios(ms: Sequence[float]) -> float:
    """Batches per second in lockstep, each batch cut in proportion to the speeds."""
    pace = ms[this_group().rank] / B
    ideals = [1000 / one for one in ms]
    until = 0.0

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal until
        # Ranks may have parts of other sizes in every step, which a fixed time could not follow.
        until = max(until, time.perf_counter()) + pace * len(batch[0]) / 1000
        value = _loss(model, batch)
        time.sleep(max(0.0, until - time.perf_counter()))
        return value

    settings = {"policy": "sync", "partition_ratios": ideals, "simulate_ms": None}
    return rate(train(ms, 1, settings, loss))


def whole_training(ms: Sequence[float], policies: Sequence[str]) -> Figures:
    """Seconds of five epochs, from nothing known about the ranks."""
    return {
        policy: sum(epoch.epoch_ms for epoch in train(ms, 5, {"policy": policy})) / 1000
        for policy in policies
    }


def costly_average(ms: Sequence[float], sync_ms: float) -> Figures:
    """What ElChe makes of averages that take long."""
    last = train(ms, 3, {"policy": "cadence", "simulate_sync_ms": sync_ms})[-1]
    busy = max(rank.busy_ms for rank in last.per_rank)
    return {"anchor": float(last.anchor or 0), "overhead": last.comm_ms / busy}


def slow_down(ms: Sequence[float], slow_ms: float) -> list[Figures]:
    """Rank 1 becomes slow within a window: length and rate of the windows from that one on."""
    group = this_group()
    stamps: list[float] = []
    switch = 45  # in the fifth window or so

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        stamps.append(time.perf_counter())
        if group.rank == 1 and len(stamps) > switch:
            time.sleep(slow_ms / 1000)
        return _loss(model, batch)

    timeline = Timeline(clock=time.perf_counter, sampler=_NoSampler())
    zero = time.perf_counter() - timeline.elapsed_ms / 1000
    train(ms, 1, {"policy": "cadence"}, loss, timeline, batches=500)
    ends = [zero + event.t_ms / 1000 for event in timeline.events if event.kind == "sync_end"]
    everything = group.gather_objects((stamps, ends))
    slow_at = everything[1][0][switch]
    edges = everything[0][1]
    first = next(index for index, end in enumerate(edges) if end > slow_at)
    windows: list[Figures] = []
    for begin, end in zip(edges[first - 1 :], edges[first:], strict=False):
        batches = sum(begin < stamp <= end for stamps, _ in everything for stamp in stamps)
        windows.append({"ms": (end - begin) * 1000, "rate": batches / (end - begin)})
    return windows


@final
@dataclass(frozen=True)
class ColdStart:
    """The first seconds of a training, each in batches per second of all ranks together."""

    alone: float
    """Ranks that exchange nothing, just before: what this machine leaves of the declared speeds."""
    rate: float


def cold_start(ms: Sequence[float], mode: str, seconds: float) -> ColdStart:
    """Count the batches of the first seconds, from the first one of any rank on.

    The engine is auto. All settings of ranks are the defaults, except for the policy, which is
    ``mode``; ``torch-ddp`` is torch's.
    """
    group = this_group()
    group.barrier()
    unshared = sum(row[0] for row in group.gather([_unshared(ms[group.rank], seconds / 2)]))
    if mode == "torch-ddp":
        steps = round(seconds * len(ms) * 1000 / max(ms))
        return ColdStart(unshared, torch_ddp(ms, steps))
    stamps: list[float] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        stamps.append(time.perf_counter())
        return _loss(model, batch)

    batches = round(1.2 * seconds * ideal(ms))
    train(ms, 1, {"policy": mode}, loss, batches=batches, engine="auto")
    everything = group.gather_objects(stamps)
    until = min(own[0] for own in everything) + seconds
    # A batch that ends later does not count.
    pairs = zip(everything, ms, strict=True)
    done = sum(stamp + one / 1000 <= until for own, one in pairs for stamp in own)
    return ColdStart(unshared, done / seconds)


def _unshared(ms: float, seconds: float) -> float:
    """Batches per second of this rank in a loop of torch that waits for nobody."""
    model, timer, done = nn.Linear(4, 1), BatchTimer(torch.device("cpu"), batch_ms=ms), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(B, 4), torch.randn(B, 1)
    began = time.perf_counter()
    timer.begin()
    while time.perf_counter() - began < seconds:
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        timer.end_batch()
        done += 1
    return done / (time.perf_counter() - began)


class _NoSampler:
    """A timeline whose events alone matter."""

    def sample(self) -> Any:
        raise AssertionError("the timeline of a benchmark is not started")


OTHERS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "torch-ddp": lambda ms: torch_ddp(ms, EPOCH),
    "sync, cut by speed": by_ratios,
    "PostLocalSGD, every 4": lambda ms: torch_ddp(ms, EPOCH, 4),
    "PostLocalSGD, every 16": lambda ms: torch_ddp(ms, EPOCH, 16),
    "the fast rank alone": fast_alone,
}
"""Ways that know the speeds, or that do not use them."""


# --- The page ---------------------------------------------------------------------------------


def in_ranks(count: int, function: Callable[..., T], *args: object) -> T:
    """Run a function on so many ranks and return what it gave on rank 0."""
    result: T = launch_ranks(function, args, count, max_restarts=0, simulated=True)[0]
    return result


def solo(ms: float, epochs: int) -> float:
    """Seconds of a training on one rank alone."""
    timer = BatchTimer(torch.device("cpu"), batch_ms=ms)
    begun = False

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal begun
        # The loop itself knows of no simulation: each batch waits for the end of the one before.
        if begun:
            timer.end_batch()
        else:
            timer.begin()
        begun = True
        return _loss(model, batch)

    metrics = train([ms], epochs, {"simulate_ms": None, "ranks": 1}, loss)
    return (sum(epoch.epoch_ms for epoch in metrics) + timer.end_batch()) / 1000


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("unequal_ranks", __doc__, rounds=5)
    parser.add_argument("--cold-start", action="store_true", help="only the first seconds")
    parser.add_argument("--seconds", type=float, default=COLD_SECONDS, help="of a cold start")
    # The whole page has trainings of fixed length; a quick run takes its shortest part.
    options = read_options(parser, argv, rounds=1, cold_start=True, seconds=1.0)
    text = measure_cold_start(options) if options.cold_start else measure(options)
    publish(text, options.output)


COLD_MODES = ("cadence", "async", "torch-ddp")
COLD_SECONDS = 20.0
COLD_BAR = Bar(0.95, least=True)
"""Part of the sum of the speeds that cadence has to reach from a cold start."""


def measure_cold_start(options: argparse.Namespace) -> str:
    """Measure the first seconds of new trainings, each in new processes, and describe them."""
    modes = COLD_MODES[: 1 if options.quick else None]
    found: dict[str, list[ColdStart]] = in_turns(
        modes,
        lambda mode: in_ranks(2, cold_start, TWO, mode, options.seconds),
        options.rounds,
        warmup=0,
    )
    rows = []
    for mode in modes:
        rate = statistics.median(one.rate for one in found[mode])
        alone = statistics.median(one.alone for one in found[mode])
        part = statistics.median(one.rate / one.alone for one in found[mode])
        rows.append(
            [
                mode,
                f"{rate:.2f}",
                f"{rate / ideal(TWO):.3f}",
                spread([one.rate / ideal(TWO) for one in found[mode]], ".3f"),
                f"{alone:.2f}",
                f"{part:.3f}",
                COLD_BAR.verdict(rate / ideal(TWO)) if mode == "cadence" else "",
            ]
        )
    return page(
        options,
        f"The first {options.seconds:g} seconds of two unequal ranks",
        f"Simulated ranks of 40 and 100 ms per batch, {options.rounds} rounds, "
        "medians, new processes each time. Nothing is known or told about the ranks; the "
        "policy and engine auto are set, other settings are the defaults. Counted from the first "
        "batch of any rank on. *Alone*: "
        "both ranks in plain loops that exchange nothing, just before, which shows what the "
        "machine leaves of the declared speeds. The bar is for cadence.",
        table(
            ["mode", "batches/s", f"of {ideal(TWO):.0f}/s", "spread", "alone", "of alone", "bar"],
            rows,
        ),
    )


def measure(options: argparse.Namespace) -> str:
    """Measure everything, and describe it as a page."""
    rounds = options.rounds
    modes = ("cadence", "async", "sync", *OTHERS)
    two = in_ranks(2, compare, TWO, modes, rounds, 2)
    three = in_ranks(3, compare, THREE, ("cadence", "async"), rounds, 2)
    equal = in_ranks(2, compare, EQUAL, ("cadence", "async"), 1, 2)
    costly = in_ranks(2, costly_average, TWO, 150.0)
    windows = in_ranks(2, slow_down, TWO, 200.0)
    whole = dict(in_ranks(2, whole_training, TWO, ("cadence", "async")))
    whole["the fast rank alone"] = solo(TWO[0], 5)
    return page(
        options,
        "Unequal ranks: the sum of their speeds",
        f"Simulated ranks, {rounds} interleaved rounds, medians and the middle 80 %; "
        "warm-up included. *Ideal* is what the ranks would train if none ever waited.",
        f"## 40 and 100 ms per batch (ideal {ideal(TWO):.0f}/s)",
        _rates(two, TWO),
        "*sync, cut by speed* has `partition_ratios` of 5/7 and 2/7: it is told the speeds.",
        f"## 25, 40 and 100 ms (ideal {ideal(THREE):.0f}/s)",
        _rates(three, THREE),
        "## 40 and 40 ms (ideal 50/s)",
        _rates(equal, EQUAL),
        "## Five epochs of 350 batches at 40 and 100 ms, nothing known beforehand",
        table(
            ["", "seconds", "faster than the fast rank alone"],
            [
                [name, f"{seconds:.1f}", f"{whole['the fast rank alone'] / seconds:.2f}×"]
                for name, seconds in whole.items()
            ],
        ),
        "Ideal: 50 s, 1.40×.",
        "## An average that takes 150 ms",
        f"The anchor settles at {costly['anchor']:.0f} batches of the slow rank; averages take "
        f"{costly['overhead']:.1%} of the time of the batches (target 10 %).",
        "## The slow rank becomes half as fast within a window (ideal then 30/s)",
        table(
            ["window", "ms", "batches/s", "of the new ideal"],
            [
                [str(at), f"{one['ms']:.0f}", f"{one['rate']:.1f}", f"{one['rate'] / 30:.2f}"]
                for at, one in enumerate(windows[:6])
            ],
        ),
        "Window 0 is the one in which it happens.",
    )


def _rates(found: Sequence[Figures], ms: Sequence[float]) -> str:
    base = "torch-ddp" if "torch-ddp" in found[0] else None
    header = ["mode", "batches/s", "of ideal", "spread", *(["against torch-ddp"] if base else [])]
    rows = []
    for mode in sorted(found[0], key=lambda name: -found[0][name]):
        rate = statistics.median(one[mode] for one in found)
        row = [mode, f"{rate:.2f}", f"{rate / ideal(ms):.3f}"]
        row.append(spread([one[mode] / ideal(ms) for one in found], ".3f"))
        if base is not None:
            row.append(f"{statistics.median(one[mode] / one[base] for one in found):.2f}×")
        rows.append(row)
    return table(header, rows)


if __name__ == "__main__":
    main()
