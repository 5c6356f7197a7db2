"""Real computation on unequal ranks: what each way of sharing makes of the sum of their speeds.

Two ranks over Gloo with one thread each; the second takes 2.5 times as long for everything it
computes. ``benchmarks.unequal_ranks`` measures the same with batches that only take their time.

    python -m benchmarks.hetero [--models MLP] [--ways cadence] [--rounds 5]
        [--output docs/benchmarks/hetero.md]

Each call adds its rounds to those kept in a JSON file beside the page, and the page shows all of
them. ``--fresh`` drops the rounds of the models that it measures.

*Ideal* is what both ranks do in the same second, each in a plain loop of torch that exchanges
nothing. They run at the same time, since ranks of one machine share its caches and memory; what
each does while the other is idle is told beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import count, islice
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.measure import (
    NOT_YET,
    Bar,
    command_line,
    middle,
    page,
    publish,
    read_options,
    spread,
    table,
)
from benchmarks.rows import Kept, Row, continued
from benchmarks.unequal_ranks import in_ranks, rate
from flodl import Batch, DataLoader, TensorDataSet, Trainer
from flodl.ddp_bench.models.resnet import Residual
from flodl.ranks.clocks import BatchTimer
from flodl.ranks.group import Group
from flodl.train.runner import this_group

SPEEDS = (1.0, 0.4)
EPOCHS = 2
B = 32
POOL = 512
"""Different batches that plain loops go through again and again; as far beyond the caches as what
is trained on."""

CREDIBLE = 1.03
"""Nobody is faster than both ranks together: beyond this the ideal was measured badly."""


# --- What is trained ---------------------------------------------------------------------------


def resnet_8() -> nn.Module:
    """Three stages of one block, 78 thousand parameters: much computation, little to send."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def perceptron() -> nn.Module:
    """4.2 million parameters: little computation, much to send."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 32 * 32, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


@final
@dataclass(frozen=True)
class Subject:
    """A network, and the part of the ideal that each of these ways has to reach."""

    network: Callable[[], nn.Module]
    bars: Mapping[str, Bar]


SUBJECTS = {
    "ResNet-8": Subject(resnet_8, {"cadence": Bar(0.95, least=True, earlier=(0.94,))}),
    # The first bar was for cadence, which missed it with 0.878: its averages may cost a tenth by
    # default. The second one was added on 2026-11-22, and the bar of the default rose to 0.93.
    "MLP": Subject(
        perceptron,
        {
            "cadence": Bar(0.93, least=True, earlier=(0.90,)),
            "cadence, target 3 %": Bar(0.90, least=True),
        },
    ),
}


@cache
def _samples(batches: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(batches * B, 3, 32, 32, generator=generator)
    return inputs, torch.randint(0, 10, (batches * B,), generator=generator)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


# --- Plain loops of torch ----------------------------------------------------------------------


def _batches(size: int = B) -> Generator[Batch]:
    """Batches of our own loader: what it is ahead is no merit of a way of sharing."""
    loader = DataLoader(TensorDataSet(*_samples(POOL)), size)
    try:
        for epoch in count():
            yield from loader.epoch(epoch)
    finally:
        loader.close()


def alone(subject: Subject, seconds: float, speed: float) -> float:
    """Batches per second of this rank in a loop that exchanges nothing."""
    model = subject.network()
    optimizer = _sgd(model.parameters())
    timer, done = BatchTimer(torch.device("cpu"), speed=speed), 0
    with closing(_batches()) as batches:
        for batch in islice(batches, 2):
            _step(model, optimizer, batch)
        began = time.perf_counter()
        timer.begin()
        while time.perf_counter() - began < seconds:
            _step(model, optimizer, next(batches))
            timer.end_batch()
            done += 1
        return done / (time.perf_counter() - began)


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, scale: float = 1.0
) -> None:
    optimizer.zero_grad()
    (_loss(model, batch) * scale).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def every_step(subject: Subject, steps: int, pad: float) -> None:
    """``DistributedDataParallel``: the gradients of every step."""
    model = DistributedDataParallel(subject.network())
    _take(model, _sgd(model.parameters()), steps, pad)


def cut_by_speed(subject: Subject, steps: int, pad: float) -> None:
    """The same where the samples of a step are cut in proportion to the speeds, told beforehand.

    DDP gives every rank's mean the same weight, so a loss is multiplied by the rank's share.
    """
    model = DistributedDataParallel(subject.network())
    size, whole = own_share(), len(SPEEDS) * B
    scale = len(SPEEDS) * size / whole
    _take(model, _sgd(model.parameters()), steps, pad * size / B, size, scale)


def own_share() -> int:
    """Samples of this rank in a step that is cut by speed."""
    whole, rank = len(SPEEDS) * B, this_group().rank
    first = round(whole * SPEEDS[0] / sum(SPEEDS))
    return (first, whole - first)[rank]


def every_so_often(subject: Subject, steps: int, pad: float, period: int) -> None:
    """``PostLocalSGDOptimizer``: the parameters, every so many steps, all ranks alike."""
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = subject.network()
    averager = PeriodicModelAverager(period=period, warmup_steps=0)
    optimizer = PostLocalSGDOptimizer(optim=_sgd(model.parameters()), averager=averager)
    _take(model, optimizer, steps, pad)


def _take(
    model: nn.Module, optimizer: Any, steps: int, pad: float, size: int = B, scale: float = 1.0
) -> None:
    with closing(_batches(size)) as batches:
        for batch in islice(batches, steps):
            # What torch sends overlaps with what it computes, so a slow rank waits beforehand.
            time.sleep(pad)
            _step(model, optimizer, batch, scale)


# --- What each of the ranks does ---------------------------------------------------------------

BY_SPEED = "torch DDP, cut by speed"
OURS: Mapping[str, Mapping[str, Any]] = {
    "cadence": {"policy": "cadence"},
    "cadence, target 3 %": {"policy": "cadence", "overhead_target": 0.03},
    "cadence, overlapped": {"policy": "cadence", "overlap": True},
    "async": {"policy": "async"},
    "sync": {"policy": "sync"},
}
"""Name -> settings; the first way is what a program gets that sets nothing."""
TORCH: Mapping[str, Callable[..., None]] = {
    "torch DDP": every_step,
    BY_SPEED: cut_by_speed,
    "PostLocalSGD, every 4": partial(every_so_often, period=4),
    "PostLocalSGD, every 16": partial(every_so_often, period=16),
}
WAYS = (*OURS, *TORCH)


@final
@dataclass(frozen=True)
class Way:
    """What one way of sharing came to."""

    rate: float
    """Batches per second, from the first one on."""
    ideal: float
    """Batches per second of both ranks alone, just before and just after."""
    shares: tuple[float, ...]
    """Part of the batches that each rank trained in the last epoch."""
    anchor: int | None = None
    overhead: float | None = None
    """What averages cost, per time of computation, in the last epoch."""
    kept: float | None = None
    """Part of what the ranks would have done, had they computed all the time as they did."""

    @property
    def part(self) -> float:
        """Part of the ideal."""
        return self.rate / self.ideal


@final
@dataclass(frozen=True)
class Round:
    """One measurement of everything."""

    together: tuple[tuple[float, ...], ...]
    """Batches per second of each rank alone, all of them at the same time: before, between and
    after the ways of sharing."""
    one_by_one: tuple[float, ...]
    """The same, while the other ranks are idle; once."""
    ways: Mapping[str, Way]


def compare(
    name: str, rounds: int, seconds: float, engine: str, ways: Sequence[str] = WAYS
) -> list[Round]:
    """Measure some ways of sharing in turns, and the ideal between any two of them."""
    subject, group = SUBJECTS[name], this_group()
    speed = SPEEDS[group.rank]
    alone(subject, 1.0, 1.0)
    found = []
    for number in range(rounds):
        single = 0.0
        for rank in range(group.world_size):
            group.barrier()
            if rank == group.rank:
                single = alone(subject, seconds / 2, speed)
        one_by_one = tuple(row[0] for row in group.gather([single]))
        together = [_together(group, subject, seconds / 2)]
        turn, measured = number % len(ways), {}
        for way in [*ways[turn:], *ways[:turn]]:
            found_way = _measure(way, group, subject, together[-1], seconds, engine)
            together.append(_together(group, subject, seconds / 2))
            ideal = (sum(together[-2]) + sum(together[-1])) / 2
            measured[way] = replace(found_way, ideal=ideal)
        found.append(Round(tuple(together), one_by_one, measured))
    return found


def _together(group: Group, subject: Subject, seconds: float) -> tuple[float, ...]:
    """Speed of each rank that exchanges nothing, all at the same time."""
    group.barrier()
    own = alone(subject, seconds, SPEEDS[group.rank])
    return tuple(row[0] for row in group.gather([own]))


def _measure(
    way: str,
    group: Group,
    subject: Subject,
    together: Sequence[float],
    seconds: float,
    engine: str,
) -> Way:
    """Measure a way of sharing; its ideal is not complete yet."""
    group.barrier()
    ideal, lockstep = sum(together), max(1, round(seconds * min(together)))
    if way in OURS:
        batches = group.world_size * lockstep if way == "sync" else round(seconds * ideal)
        return _ours(OURS[way], subject, max(1, batches // EPOCHS), engine, ideal)
    # Its time without exchanges is known: what is stretched must not be the waiting for others.
    pad = (1 - SPEEDS[group.rank]) / together[group.rank]
    # Ranks that share a step by speed all compute all the time.
    steps = round(seconds * ideal / group.world_size) if way == BY_SPEED else lockstep
    began = time.perf_counter()
    TORCH[way](subject, steps, pad)
    group.barrier()
    per_second = group.world_size * steps / (time.perf_counter() - began)
    equal = (1 / group.world_size,) * group.world_size
    by_speed = tuple(speed / sum(SPEEDS) for speed in SPEEDS)
    return Way(per_second, ideal, by_speed if way == BY_SPEED else equal)


def _ours(
    settings: Mapping[str, Any], subject: Subject, epoch: int, engine: str, ideal: float
) -> Way:
    inputs, targets = _samples(epoch)
    metrics = (
        Trainer.builder(lambda _: subject.network(), _sgd, _loss)
        .dataset(TensorDataSet(inputs, targets))
        .batch_size(B)
        .num_epochs(EPOCHS)
        .engine(engine)
        .progress(False)
        .ddp({"simulate_speed": SPEEDS, **settings})
        .run()
        .poll_metrics()
    )
    batches = [[epoch.per_rank[r].batches for epoch in metrics] for r in range(len(SPEEDS))]
    busy_ms = [[epoch.per_rank[r].busy_ms for epoch in metrics] for r in range(len(SPEEDS))]
    pace = sum(1000 * sum(n) / sum(ms) for n, ms in zip(batches, busy_ms, strict=True))
    last = [own[-1] for own in batches]
    in_windows = settings.get("policy") != "sync"
    return Way(
        rate(metrics),
        ideal,
        tuple(own / sum(last) for own in last),
        metrics[-1].anchor if in_windows else None,
        metrics[-1].comm_ms / max(own[-1] for own in busy_ms),
        rate(metrics) / pace if in_windows else None,
    )


# --- The page ----------------------------------------------------------------------------------


def added(row: Row | None, rounds: Sequence[Round]) -> Row:
    """The rounds of a network, with those measured before on the same machine and versions."""
    row = continued(row, "torch")
    row.setdefault("together", []).extend(each for one in rounds for each in one.together)
    row.setdefault("one_by_one", []).extend(one.one_by_one for one in rounds)
    ways = row.setdefault("ways", {})
    for one in rounds:
        for way, found in one.ways.items():
            ways.setdefault(way, []).append(asdict(found))
    return row


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("hetero", __doc__, rounds=5)
    parser.add_argument("--models", nargs="*", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seconds", type=float, default=12.0, help="of each measurement")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--fresh", action="store_true", help="drop the rounds that are kept")
    options = read_options(parser, argv, seconds=0.2, models=["MLP"])
    options.command = "python -m benchmarks.hetero" + (" --quick" if options.quick else "")
    kept = Kept.beside(options.output)
    for name in options.models:
        arguments = (name, options.rounds, options.seconds, options.engine, options.ways)
        before = None if options.fresh else kept.rows.get(name)
        kept.rows[name] = added(before, in_ranks(len(SPEEDS), compare, *arguments))
        kept.write()  # after each network, so that an interrupted run has it
    intro = (
        f"Two ranks over Gloo, one thread each, batches of {B}; the second "
        f"takes {1 / SPEEDS[1]:g} times as long for everything it computes. Interleaved rounds of "
        f"{options.seconds:g} s per way, medians of ratios within a round, "
        f"warm-up included; engine {options.engine}. *cadence* is what a program gets that sets "
        "nothing. Nothing is told about the speeds. *Ideal* is the sum of what both ranks do at "
        "the same time in plain loops of torch that exchange nothing. It is measured before and "
        "after each way of sharing. *Kept* is what waiting and averages leave of the speeds at "
        "which the ranks computed in that very run."
    )
    rows = kept.rows
    parts = [part for name in SUBJECTS if name in rows for part in describe(name, rows[name])]
    publish(page(options, "Unequal ranks that compute", intro, *parts), options.output)


def part_of_ideal(way: str, rounds: Sequence[Round]) -> float:
    """Median over the rounds of a rate by the ideal around it."""
    return statistics.median(one.ways[way].part for one in rounds)


def describe(name: str, row: Mapping[str, Any]) -> list[str]:
    """Describe what was measured with one network."""
    subject = SUBJECTS[name]
    size = sum(parameter.numel() for parameter in subject.network().parameters())
    together: list[list[float]] = row["together"]
    ideals = [sum(each) for each in together]
    fast = statistics.median(each[0] / sum(each) for each in together)
    alone_row = ["the fast rank alone", middle([each[0] for each in together], ".2f")]
    rows = [[*alone_row, f"{fast:.3f}", *[""] * 7]]
    for way, measured in row["ways"].items():
        ways = [Way(**one) for one in measured]
        last, part = ways[-1], statistics.median(one.part for one in ways)
        rows.append(
            [
                way,
                middle([one.rate for one in ways], ".2f"),
                f"{part:.3f}",
                spread([one.part for one in ways], ".3f"),
                "" if last.kept is None else f"{_kept(ways):.3f}",
                " / ".join(f"{share:.3f}" for share in last.shares),
                "" if last.anchor is None else str(last.anchor),
                "" if last.overhead is None else f"{last.overhead:.1%}",
                str(len(ways)),
                _verdict(part, subject.bars.get(way)),
            ]
        )
    rows.sort(key=lambda row: -float(row[2]))
    rows += [[way, NOT_YET, *[""] * 8] for way in WAYS if way not in row["ways"]]
    header = ["", "batches/s", "of ideal", "spread", "kept", "shares", "anchor"]
    return [
        f"## {name}: {size:,} parameters",
        table([*header, "cost of averages", "rounds", "at least"], rows),
        f"Ideal: {middle(ideals, '.2f')} batches/s (from "
        f"{min(ideals):.2f} to {max(ideals):.2f} in {len(ideals)} measurements), {_each(together)} "
        f"at the same time; {_each(row['one_by_one'])} while the other rank is "
        f"idle. Measured on {' and '.join(row['dates'])}; {row['where']}.",
        *([EARLIER[name]] if name in EARLIER else []),
    ]


EARLIER = {
    "ResNet-8": "On 2026-11-23, before spreads were measured, *cadence* reached 0.988 of the ideal "
    "with engine eager: 0.94 PASS.",
    "MLP": """\
Earlier rows of *cadence*, with engine eager and before spreads were measured:

|  | batches/s | of ideal | kept | shares | anchor | cost of averages |
|---|---|---|---|---|---|---|
| cadence, 2026-11-22 | 133.06 | 0.878 MISSED | 0.889 | 0.753 / 0.247 | 15 | 8.4% |
| cadence, 2026-11-23 | 80.74 | 0.895 MISSED | 0.913 | 0.730 / 0.270 | 10 | 6.2% |

Their bar was 0.90. On 2026-11-22 the program replaced it with a bar for *cadence, target 3 %*,
which reached 0.928 on the next day. Both bars stand now.""",
}
"""Network -> what was measured before."""


def _verdict(reached: float, bar: Bar | None) -> str:
    if bar is None:
        return ""
    if reached > CREDIBLE:
        return "not measured, the machine was busy with something else"
    return bar.verdict(reached)


def _kept(ways: Sequence[Way]) -> float:
    return statistics.median(one.kept for one in ways if one.kept is not None)


def _each(rates: Sequence[Sequence[float]]) -> str:
    return " and ".join(middle(one, ".2f") for one in zip(*rates, strict=True))


if __name__ == "__main__":
    main()
