"""The page about virtual ranks: maps, curves and tables from the rows that are there."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import final

from benchmarks.measure import NOT_YET, table
from benchmarks.virtual_ranks_real import described as validations
from benchmarks.virtual_ranks_rows import Row, Rows, cell_of
from benchmarks.virtual_ranks_tasks import TASKS
from benchmarks.virtual_ranks_ways import BACKWARD, WAYS, Place, grid
from flodl.ranks.planning.elche import ElCheConfig
from flodl.ranks.planning.schedule import ScheduleConfig
from flodl.ranks.settings import DdpRunConfig, Policy
from flodl.ranks.simulate import Cluster, Exchange, predict
from flodl.train.policies.choice import FEW_WINDOWS

ANCHOR = DdpRunConfig().anchor
DDP, DEFAULT = "DDP", "cadence"
OURS = ("cadence", "cadence, outer", "async", "async, outer")
TARGETS = {"iid": 0.95, "by class": 0.85}
"""Accuracy of the held-out samples that counts as reached, by the shards."""


@final
@dataclass(frozen=True)
class Best:
    """What a way reached at a place, with its best rates."""

    rate: str
    accuracy: tuple[float, ...]
    """One per seed."""
    loss: float
    ms: float
    averages: float
    looks: tuple[Sequence[float], ...]
    """Time, trained samples, loss and accuracy on the way; means of the seeds."""

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.fmean(self.accuracy)

    @property
    def seeds(self) -> int:
        """How many seeds it has."""
        return len(self.accuracy)

    @property
    def deviation(self) -> float:
        """Standard deviation of the seeds."""
        return statistics.stdev(self.accuracy) if len(self.accuracy) > 1 else 0.0

    def reached(self, target: float) -> float | None:
        """Return the time at which the accuracy reaches a target; None if it never does."""
        before = (0.0, 0.0)
        for ms, _, _, accuracy in self.looks:
            if accuracy >= target:
                part = (target - before[1]) / (accuracy - before[1])
                return before[0] + part * (ms - before[0])
            before = ms, accuracy
        return None

    def loss_at(self, at: float, axis: int) -> float | None:
        """Return the loss at a time (axis 0) or after some samples (axis 1)."""
        for one, two in pairwise(self.looks):
            if one[axis] <= at <= two[axis]:
                part = (at - one[axis]) / ((two[axis] - one[axis]) or 1)
                return one[2] + part * (two[2] - one[2])
        last = self.looks[-1]
        return last[2] if at >= last[axis] * 0.999 else None


Found = Mapping[str, Best]
"""The best of each way at a place."""


def found_at(rows: Rows, task: str, place: Place) -> Found:
    """Return the ways whose trainings at a place are all there, each with its best rates."""
    trained: dict[str, dict[str, list[Row]]] = {}
    missing = set()
    for cell, way in ((cell, cell.way) for cell in grid(task, place)):
        row = rows.rows.get(cell.key)
        if row is None:
            missing.add(way)
        else:
            rate = f"{cell.lr:g}" + ("" if cell.momentum is None else f", {cell.momentum:g}")
            trained.setdefault(way, {}).setdefault(rate, []).append(row)
    return {
        way: best
        for way, rates in trained.items()
        if way not in missing and (best := _best(rates)) is not None
    }


def _best(rates: Mapping[str, Sequence[Row]]) -> Best | None:
    """Return the result with the rates whose loss on the samples kept for this is least."""
    sound = {rate: own for rate, own in rates.items() if not any("diverged" in r for r in own)}
    if not sound:
        return None
    rate = min(sound, key=lambda one: _mean(sound[one], "choose"))
    own = sound[rate]
    looks = zip(*(row["looks"] for row in own), strict=False)
    return Best(
        rate,
        tuple(value for row in own for value in row["accuracy"]),
        _mean(own, "loss"),
        statistics.fmean(row["ms"] for row in own),
        statistics.fmean(row["averages"] for row in own),
        tuple(
            tuple(statistics.fmean(values) for values in zip(*look, strict=True)) for look in looks
        ),
    )


def _mean(rows: Sequence[Row], name: str) -> float:
    return statistics.fmean(value for row in rows for value in row[name])


# --- Maps ----------------------------------------------------------------------------------------


def a_map(rows: Rows, places: Sequence[Place], text: Callable[[Found], str], shards: str) -> str:
    """Return a table of ratios × ranks with a text for each place."""
    own = [place for place in places if _plain(place) and place.shards == shards]
    many = sorted({place.ranks for place in own})
    cells = {(place.ratio, place.ranks): place for place in own}
    body = [
        [f"1:{ratio:g}", *(text(found_at(rows, "MLP", cells[ratio, ranks])) for ranks in many)]
        for ratio in sorted({place.ratio for place in own})
    ]
    if all(told == NOT_YET for row in body for told in row[1:]):
        return NOT_YET.capitalize() + "."
    return table(["slowest rank", *(f"{ranks} ranks" for ranks in many)], body)


def _plain(place: Place) -> bool:
    return place.speeds == "fixed" and place.exchange == "cheap" and place.length == 1


def behind_ddp(found: Found, way: str = DEFAULT) -> str:
    """Return the accuracy of a way minus that of DDP, at equal samples, and a verdict."""
    if DDP not in found or way not in found:
        return NOT_YET
    one, ddp = found[way], found[DDP]
    text = f"{one.mean - ddp.mean:+.4f} (σ {ddp.deviation:.4f}, {one.averages:.0f} averages)"
    return f"{text} **loses**" if loses(one, ddp) else text


def loses(one: Best, ddp: Best) -> bool:
    """Whether a way is worse than DDP by more than one standard deviation of DDP's seeds."""
    return ddp.mean - one.mean > ddp.deviation


def first_at_target(found: Found, target: float) -> str:
    """Return the way that reaches the target first, and by how much it is ahead."""
    if set(found) != set(WAYS):
        return NOT_YET
    times = {way: ms for way, best in found.items() if (ms := best.reached(target)) is not None}
    if not times:
        return "none reaches it"
    first = min(times, key=lambda way: times[way])
    ours = [way for way in OURS if way in times]
    told = f"{first} {times[first] / 1000:.2f} s"
    if first in OURS:
        others = {way: ms for way, ms in times.items() if way not in OURS}
        if not others:
            return f"**{told}**"
        next_one = min(others, key=lambda way: others[way])
        return f"**{told}** ({next_one} {others[next_one] / 1000:.2f})"
    if not ours:
        return f"{told} (ours never)"
    best = min(ours, key=lambda way: times[way])
    return f"{told} ({best} {times[best] / 1000:.2f})"


# --- One place -----------------------------------------------------------------------------------


def described(rows: Rows, task: str, place: Place) -> list[str]:
    """Describe a place: every way, then the loss over samples and over time."""
    found = found_at(rows, task, place)
    title = f"### {task}, {place.ranks} ranks, 1:{place.ratio:g}{_special(place)}"
    if len(found) < 2:
        return [title, NOT_YET.capitalize() + "."]
    target, ddp = TARGETS[place.shards], found.get(DDP)
    body = []
    for way in WAYS:
        if way not in found:
            body.append([way, NOT_YET, *[""] * 6])
            continue
        best = found[way]
        reached = best.reached(target)
        body.append(
            [
                way,
                f"{best.mean:.4f}"
                + (f" ± {best.deviation:.4f}" if best.seeds > 1 else ", one seed"),
                "" if ddp is None or way == DDP else f"{best.mean - ddp.mean:+.4f}",
                f"{best.loss:.3f}",
                f"{best.ms / 1000:.2f}",
                "never" if reached is None else f"{reached / 1000:.2f}",
                f"{best.averages:.0f}",
                best.rate,
            ]
        )
    header = ["way", "accuracy", "− DDP", "loss", "seconds", f"to {target:g}", "averages", "rates"]
    return [title, table(header, body), *_curves(found)]


def _special(place: Place) -> str:
    parts = []
    if place.speeds == "drifting":
        parts.append("speeds that drift")
    if place.speeds == "away":
        parts.append("the slowest comes and goes")
    if place.exchange == "dear":
        parts.append("dear exchange")
    if place.shards != "iid":
        parts.append("shards by class")
    return "".join(f", {part}" for part in parts)


def _curves(found: Found) -> Iterator[str]:
    """Describe the held-out loss over samples, and over the time that DDP takes."""
    if DDP not in found:
        return
    ddp, parts = found[DDP], (0.2, 0.4, 0.6, 0.8, 1.0)
    for axis, whole, title in ((1, ddp.looks[-1][1], "samples"), (0, ddp.ms, "time of DDP")):
        body = [
            [way, *(_number(found[way].loss_at(part * whole, axis)) for part in parts)]
            for way in WAYS
            if way in found
        ]
        yield table([f"loss after … of the {title}", *(f"{part:.0%}" for part in parts)], body)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


# --- What an exchange costs ----------------------------------------------------------------------

MODELS = (("ResNet-20", 0.27e6), ("ResNet-50", 25.6e6), ("GPT of 124 M", 124e6), ("7 B", 7e9))
NETWORKS = (("1 Gbit/s", 0.125e9), ("10 Gbit/s", 1.25e9), ("100 Gbit/s", 12.5e9))


def prices() -> str:
    """Return how much of the ideal each policy keeps, by size of the model and bandwidth."""
    ms, body = (100.0, 400.0), []
    for model, parameters in MODELS:
        for network, bandwidth in NETWORKS:
            exchange = Exchange(bytes=int(4 * parameters), bandwidth=bandwidth)
            cluster = Cluster(ms=ms, exchange=exchange)
            config = ScheduleConfig(
                elche=ElCheConfig(world_size=2), policy=Policy.AUTO, epochs=4,
                batches_per_epoch=500,
            )  # fmt: skip
            found = {one.mode: one.efficiency for one in predict(cluster, config)}
            step = 1000 / sum(1000 / pace for pace in ms) * len(ms)
            by_speed = step / (step + max(0.0, exchange.ms(2) - BACKWARD * step))
            body.append(
                [
                    model,
                    network,
                    f"{exchange.ms(2):,.1f}",
                    *(f"{found[mode]:.3f}" for mode in ("solo", "sync")),
                    f"{by_speed:.3f}",
                    *(f"{found[mode]:.3f}" for mode in ("cadence", "async")),
                ]
            )
    return table(
        ["model", "network", "exchange ms", "fast rank alone", "sync", "DDP, cut by speed",
         "cadence", "async"],
        body,
    )  # fmt: skip


# --- The whole -----------------------------------------------------------------------------------

INTRO = """\
**Simulated clock.** Every batch, gradient, average and optimizer step is computed for real, in \
the order that a virtual clock gives. The times are given, not measured: no figure here says how \
fast a machine is. The planning of windows, the averages, the outer optimizer and the sample \
ledger are those of flodl. The clock is that of `fdl plan --simulate`. Where samples are not \
sharded by class, the ledger of each training was checked: every sample once in every epoch."""

LIMITS = """\
- A part of a batch takes the part of its time. On a GPU, small parts take longer than that, which \
*DDP, cut by speed* would pay.
- DDP hides its exchange behind the backward pass at no cost, two thirds of the fastest rank's \
batch. Ours does not hide it with *sync*.
- Speeds for *DDP, cut by speed* and *DyLU* are known exactly at the start. Ours measures them.
- *DyLU* averages all ranks at once here; in the paper each rank sends its update when it is done.
- A rank that comes and goes stays in the group: its batches take ten times as long meanwhile.
- The seeds of the small network are trained beside each other and share the clock, so the guard \
of the windows sees them together.
- The largest rate that was tried is often the best, and 128 samples decide between rates. A way \
may be a little better than it looks here.
- The networks are small and the trainings short: 1,200 batches. Few averages cost most there.
- The GPT trains for one epoch. With eight ranks, all ways but *fast rank alone* have learned \
nothing more by then than the most frequent character, so their accuracies are equal."""

PRIOR = """\
Others came before:

- Local SGD; torch has it as `PostLocalSGDOptimizer`.
- [DiLoCo](https://arxiv.org/abs/2311.08105): the outer optimizer here has its update. In \
Decoupled DiLoCo, ranks do not wait for each other.
- [DyLU](https://arxiv.org/abs/2401.09135): local steps in proportion to speed.
- [torchft](https://github.com/pytorch/torchft): DiLoCo for ranks that come and go.
- [Poplar](https://arxiv.org/abs/2408.12596): batches cut by measured speed.
- [Hivemind](https://github.com/learning-at-home/hivemind): peers that average over the internet.

ElChe's part is that windows follow measured speeds and the cost of averages. It is told neither."""


def _preferred(rows: Rows, places: Sequence[Place]) -> str:
    """Say which momentum the small task prefers; the large ones are trained with that one."""
    best = [
        one.rate.partition(", ")[2]
        for place in places
        for way, one in found_at(rows, "MLP", place).items()
        if WAYS[way].outer
    ]
    if not best:
        return ""
    return (
        "The large tasks are trained with one momentum: of the MLP's trainings with an outer "
        f"optimizer, {best.count('0.5')} of {len(best)} are best with 0.5."
    )


def _tried(numbers: Sequence[float]) -> str:
    return " ".join(f"{one:g}" for one in numbers)


def sections(rows: Rows, places: Mapping[str, Sequence[Place]]) -> list[str]:
    """Return the parts of the page."""
    small = places["MLP"]
    parts = [
        INTRO,
        "## What is trained, and how",
        table(["task", "", "batch on the fastest rank", "rates tried", "momenta tried"], [
            [name, task.about, f"{task.batch_ms:g} ms", _tried(task.rates), _tried(task.momenta)]
            for name, task in TASKS.items()
        ]),
        "Outer optimizers are Nesterov with rate 0.7, as in DiLoCo. The best rates of each way at "
        "each place are those with the least loss on samples that are neither trained nor judged "
        f"by. All ways train equally many samples. {_preferred(rows, small)}",
        table(["way", "what it does"], [[name, way.about] for name, way in WAYS.items()]),
        *_maps(rows, small),
        "## Shorter and longer trainings",
        *_lengths(rows, small),
        "## Every way, place by place",
        *(part for place in small if _shown(place) for part in described(rows, "MLP", place)),
        *(
            part
            for task in places
            if task != "MLP"
            for place in places[task]
            for part in described(rows, task, place)
        ),
        "## Beside real ranks",
        "Two real processes and two virtual ranks plan the same windows and end with the same "
        "weights, bit by bit. A test compares them with *sync*, *cadence* and *async*, with and "
        "without the outer optimizer. Another test trains two real replicas with DiLoCo of torchft "
        "0.2.0: after six outer steps, our weights differ by at most 1.5e-7.",
        "Times of ranks of 40 and 100 ms per batch whose batches and averages really take that "
        "long:",
        validations(list(rows.validations.values())),
        "## What an exchange costs",
        "Part of what two ranks of 100 and 400 ms per batch could train, predicted: float32 "
        "parameters, 0.05 ms of latency.",
        prices(),
        "## What the figures leave out",
        LIMITS,
        "## Prior work",
        PRIOR,
    ]  # fmt: skip
    return [part for part in parts if part]


def _shown(place: Place) -> bool:
    return place.length == 1 and (place.ranks, place.ratio) in ((2, 4.0), (8, 4.0), (32, 10.0))


def _maps(rows: Rows, places: Sequence[Place]) -> Iterator[str]:
    for shards, target in TARGETS.items():
        yield f"## Map of the MLP, shards {shards if shards == 'iid' else 'of two classes or so'}"
        yield (
            f"Which way reaches accuracy {target:g} first, in seconds of the virtual clock. Where "
            "ElChe wins, it stands in bold, with the best of the others in brackets. Elsewhere "
            "ElChe's best stands in brackets."
        )
        yield a_map(rows, places, partial(first_at_target, target=target), shards)
        yield (
            "Accuracy of *cadence* minus that of DDP at equal samples; σ is the standard deviation "
            "of DDP's seeds. It loses where it is worse by more than σ. Averages are those of "
            "*cadence*."
        )
        yield a_map(rows, places, behind_ddp, shards)


def _lengths(rows: Rows, places: Sequence[Place]) -> Iterator[str]:
    lengths = {(place.ranks, place.ratio) for place in places if place.length != 1}
    own = [
        place
        for place in places
        if replace(place, length=1) == Place(place.ranks, place.ratio)
        and (place.ranks, place.ratio) in lengths
    ]
    own.sort(key=lambda place: (place.ranks, place.length))
    yield (
        "Accuracy of *cadence* and *async* minus that of DDP at equal samples, by the length of "
        "the training; σ is the standard deviation of DDP's seeds. *Windows* is how many equally "
        f"fast ranks would have with the first anchor, {ANCHOR} batches per rank."
    )
    body, chosen = [], {True: f"*{DEFAULT}*", False: "*sync*"}
    for place in own:
        found, epochs = found_at(rows, "MLP", place), round(15 * place.length)
        body.append(
            [str(place.ranks), f"1:{place.ratio:g}", str(80 * epochs),
             f"{windows(place):.1f}", behind_ddp(found), behind_ddp(found, "async"),
             chosen[windows(place) >= FEW_WINDOWS]]
        )  # fmt: skip
    yield table(
        ["ranks", "slowest rank", "batches", "windows", "cadence − DDP", "async − DDP",
         "`auto` on devices that differ"],
        body,
    )  # fmt: skip
    yield where_it_loses(rows, places)
    yield (
        f"So policy `auto` does not choose *{DEFAULT}* for a training of fewer than {FEW_WINDOWS} "
        "windows, even where the devices differ: it takes every step together, as DDP does. It "
        "knows neither the speeds nor whether shards are of unequal kind before the training "
        "begins. Ranks on devices of one name always take every step together."
    )
    yield "What `auto` chooses for the map where the devices differ:"
    many = sorted({place.ranks for place in places})
    row = [chosen[windows(Place(ranks, 4.0)) >= FEW_WINDOWS] for ranks in many]
    yield table([f"{ranks} ranks" for ranks in many], [row])


def where_it_loses(rows: Rows, places: Sequence[Place]) -> str:
    """Say up to how many windows the default loses, where shards are alike; empty if nowhere."""
    judged: dict[bool, list[float]] = {True: [], False: []}
    for place in places:
        found = found_at(rows, "MLP", place)
        if place.shards == "iid" and DDP in found and DEFAULT in found:
            judged[loses(found[DEFAULT], found[DDP])].append(windows(place))
    if not judged[True]:
        return ""
    most = max(judged[True])
    later = [count for count in judged[False] if count > most]
    few = len(judged[True]) + len(judged[False]) - len(later)
    text = (
        f"Where shards are alike, *{DEFAULT}* loses at {len(judged[True])} of {few} places with "
        f"up to {most:.1f} windows"
    )
    if later:
        text += f", and at none of the {len(later)} places with {min(later):.1f} windows or more"
    return text + "."


def windows(place: Place) -> float:
    """Return the windows of the first length in a training of the MLP, as policy auto counts."""
    task = TASKS["MLP"]
    return max(1, round(task.epochs * place.length)) * task.batches / (ANCHOR * place.ranks)


def counted(rows: Rows) -> str:
    """Say how many trainings there are, and where and when they ran."""
    if not rows.rows:
        return "No training has run yet."
    where = sorted({row["where"] for row in rows.rows.values()})
    dates = sorted({row["date"] for row in rows.rows.values()})
    seeds = sum(len(cell_of(row).seeds) for row in rows.rows.values())
    again = sum("repeats" in row for row in rows.rows.values())
    told = f"{len(rows.rows):,} rows, {seeds:,} trainings, {' and '.join(dates)}; "
    told += "; ".join(where) + "."
    if again:
        told += (
            f" {again:,} of the rows repeat a training whose arithmetic does not depend on the "
            "times: only the clock ran again."
        )
    return told
