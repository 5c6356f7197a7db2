"""What the record of every step costs: a Trainer with ``steps.trace`` against one without it.

The ten models and a tiny perceptron train with the Trainer in a run directory, eager. Three
trainings run in turns of some steps: one with the trace between two without it. The time of a step
contains everything that the Trainer does between two steps. Work that is done after few steps is
timed by itself.

Turns are kept as JSON beside the page, so a call measures one model and adds to its turns:

    python -m benchmarks.trace_cost --histograms --also guards --models mlp --output PAGE
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measure import (
    NOT_YET,
    Bar,
    command_line,
    end_on_sigterm,
    page,
    publish,
    read_options,
    table,
)
from benchmarks.rows import Kept, Row, continued
from benchmarks.ten_models_networks import networks
from benchmarks.trace_cost_turns import (
    TINY_NAME,
    WAYS,
    Task,
    Turns,
    benchmark_of,
    measure,
    seconds_of_step,
)
from flodl.train.observers.digests import SHARE as DIGEST_SHARE

SHARE = Bar(1.0)
"""Percent of a step that everything together may take."""
TINY = Bar(5.0)
"""Microseconds that it may add to a step of the tiny perceptron."""

EVERY = 100
"""Steps between two records of histograms."""


def taken_by(options: argparse.Namespace) -> str:
    """The names of what is measured."""
    parts = ["trace", *(["histograms"] if options.histograms else []), *options.also]
    return " + ".join(parts)


def task_of(name: str, options: argparse.Namespace) -> Task:
    """What is trained, for about as long as the options say."""
    step = seconds_of_step(benchmark_of(name, small=options.quick))
    of_turn = max(1, round(options.turn / step))
    turns = max(options.least, round(options.seconds / (len(WAYS) * step * of_turn)))
    # Shorter than EVERY where the steps are long, or no record would fall into the turns.
    every = min(EVERY, max(1, of_turn * turns // 4)) if options.histograms else None
    return Task(name, options.quick, of_turn, turns, every, tuple(options.also))


def added(row: Row | None, found: Turns, what: str) -> Row:
    """The row of a model with the turns of another call."""
    row = continued(row, "torch")
    if row.get("with") != what:
        row = {**continued(None, "torch"), "with": what}
    known = row.get("rare", {})
    return {
        **row,
        "turns": [
            *row.get("turns", []),
            *([found.steps, *map(_rounded, turn)] for turn in found.seconds),
        ],
        "rare": {
            kind: [*known.get(kind, []), *map(_rounded, times)]
            for kind, times in found.rare.items()
        },
        "threads": row.get("threads", 0.0) + found.threads,
    }


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.6g}")


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a model, as parts of its step.

    Attributes:
        step: Seconds of a step without anything.
        always: What is done in every step.
        low: The low end of the middle 80 % of ``always``, when the turns are drawn again.
        high: Its high end.
        rare: Kind -> what is done after few steps.
        nothing: How far two equal trainings differ.
        threads: What the threads of the monitor take of a second processor.
    """

    step: float
    always: float
    low: float
    high: float
    rare: Mapping[str, float]
    nothing: float
    threads: float

    @property
    def together(self) -> float:
        """All of it."""
        return self.always + sum(self.rare.values())


def costs_of(row: Row) -> Costs:
    """The costs of a model, from its turns and the times of its rare work.

    The median of the turns is what every step costs, without rare work. The training chooses after
    how many steps digests and snapshots are taken; this uses the same rule.
    """
    turns = row["turns"]
    steps = sum(turn[0] for turn in turns)
    step = sum(turn[1] + turn[3] for turn in turns) / (2 * steps)
    more = [(taken - extra) / ((one + two) / 2) - 1 for _, one, taken, two, extra in turns]
    low, high = drawn_again(more)
    rare = {}
    for kind, times in row["rare"].items():
        if not times:
            continue
        each = statistics.fmean(times)
        if kind == "losses":
            rare[kind] = sum(times) / steps / step
        elif kind == "histograms":
            rare[kind] = each / (EVERY * step)
        else:
            rare[kind] = each / (steps_between(each, step) * step)
    nothing = statistics.median(two / one - 1 for _, one, _, two, _ in turns)
    threads = row["threads"] / steps / step
    return Costs(step, statistics.median(more), low, high, rare, nothing, threads)


def steps_between(cost: float, step: float) -> int:
    """Steps between two digests that take ``cost`` seconds: a power of two."""
    return 1 << math.ceil(math.log2(max(1.0, cost / (DIGEST_SHARE * step))))


def drawn_again(values: Sequence[float]) -> tuple[float, float]:
    """The middle 80 % of the medians when as many values are drawn again, 1000 times."""
    draw = random.Random(0)
    found = [statistics.median(draw.choices(values, k=len(values))) for _ in range(1000)]
    parts = statistics.quantiles(found, n=10)
    return parts[0], parts[-1]


HEADER = (
    "model", "ms per step without", "every step, % (middle 80 %)", "digests, %", "snapshots, %",
    "histograms, %", "losses, %", "together, %", "together, µs", "bar", "nothing, %", "threads, %",
    "turns", "dates",
)  # fmt: skip


def cells_of(name: str, row: Row) -> list[str]:
    """A row of the table."""
    costs = costs_of(row)
    extra = 1e6 * costs.step * costs.together
    is_tiny = name == TINY_NAME
    bar, figure, unit = (TINY, extra, "µs") if is_tiny else (SHARE, 100 * costs.together, "%")
    return [
        name,
        f"{1e3 * costs.step:.3f}",
        f"{100 * costs.always:+.2f} ({100 * costs.low:.2f} … {100 * costs.high:.2f})",
        *(
            f"{100 * costs.rare[kind]:.2f}" if kind in costs.rare else ""
            for kind in ("digests", "snapshots", "histograms", "losses")
        ),
        f"{100 * costs.together:+.2f}",
        f"{extra:+.1f}",
        f"{bar.verdict(figure)} {unit}",
        f"{100 * costs.nothing:+.2f}",
        f"{100 * costs.threads:.2f}",
        str(len(row["turns"])),
        " and ".join(row["dates"]),
    ]


def options_of(found: Mapping[str, Row]) -> list[str]:
    """The options that rows were measured with."""
    parts = {part for row in found.values() for part in row["with"].split(" + ")} - {"trace"}
    also = sorted(parts - {"histograms"})
    return [
        *(["--histograms"] if "histograms" in parts else []),
        *(["--also"] if also else []),
        *also,
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("trace_cost", __doc__, rounds=1)
    parser.add_argument("--seconds", type=float, default=120, help="of a round, about")
    parser.add_argument("--least", type=int, default=16, help="turns of a training, at least")
    parser.add_argument("--turn", type=float, default=0.1, help="seconds of a turn, about")
    names = [*networks(small=True), TINY_NAME]
    parser.add_argument("--models", nargs="*", choices=names, default=names, metavar="MODEL")
    parser.add_argument("--histograms", action="store_true", help="also measure histograms")
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="CALL", help="further calls of the builder"
    )
    quick = {"least": 2, "seconds": 0.01, "turn": 0.001, "models": ["mlp", TINY_NAME]}
    options = read_options(parser, argv, **quick)
    end_on_sigterm()
    kept = Kept.beside(options.output)
    for name in options.models:
        task = task_of(name, options)
        for _ in range(options.rounds):
            kept.rows[name] = added(kept.rows.get(name), measure(task), taken_by(options))
            kept.write()  # after each round, so that an interrupted call has it
        print(*cells_of(name, kept.rows[name]), sep=" | ", file=sys.stderr)
    if not options.quick:  # the rows of the page come from several calls
        options.command = " ".join(["python -m benchmarks.trace_cost", *options_of(kept.rows)])
    text = page(
        options,
        "Cost of the step trace",
        "Engine eager, Adam, float32. `--models MODEL` adds turns to one row.",
        table(
            HEADER,
            [
                cells_of(name, kept.rows[name])
                if name in kept.rows
                else [name, NOT_YET, *[""] * (len(HEADER) - 2)]
                for name in names
                if name in kept.rows or not options.quick
            ],
        ),
        NOTES,
    )
    publish(text, options.output)


NOTES = """\
Three trainings of a network run in turns, each in a process of its own: one with the trace, guards
and histograms, between two without them. They share the memory of the parameters. A turn is 0.1 s
or one step.

*Every step* is the median of the turns, compared with the mean of the turns before and after,
without rare work. The middle 80 % are the medians when the turns are drawn again. *Nothing*
compares the two trainings without a trace.

Rare work is timed by itself. Digests and snapshots are taken after multiples of a power of two that
the training chooses. Each takes at most 0.25 % of the time of the steps. Histograms are taken every
100 steps. A model with long steps takes them more often here; its figure is for every 100 steps.
Losses are written in blocks. *Together* is the sum.

*Threads* is the time of a processor that the threads of the monitor take more than without. It is
not in the sum, because a training has other processors for them. The media folder is written once
a second, also in the turns of the others, so this figure is too high for short steps. Work before
the first step and after the last one is in none of these figures."""


if __name__ == "__main__":
    main()
