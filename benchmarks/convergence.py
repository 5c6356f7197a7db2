"""Whether two ranks learn as much as one from equally many samples: every mode, several seeds.

Small models on the data that ships with flodl, so nothing has to be downloaded: hand-written digits
and a text. Each mode sees every training sample once per epoch; the figure is that of the whole
held-out part after the last epoch.

    python -m benchmarks.convergence --output docs/benchmarks/convergence.md
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import final

from benchmarks.measure import (
    command_line,
    judged,
    page,
    publish,
    read_options,
    table,
)
from flodl.ddp_bench.cell import MODES, Cell
from flodl.ddp_bench.models import TASKS
from flodl.ddp_bench.records import is_complete, read_run
from flodl.ddp_bench.request import Request, cells_of
from flodl.ddp_bench.sweep import Outcome, sweep
from flodl.ranks.settings import DdpRunConfig

ALONE = "solo-0"
ACCURACY_MARGIN = 0.005
LOSS_MARGIN = 0.05

PEER = "torch-ddp"
HEADER = ["model", "mode", "mean", "seeds", f"− {ALONE}", f"− {PEER}", "margin", "within"]

EARLIER = (
    "Earlier on 2026-11-27, with 3 seeds, *mlp* with *nccl-cadence* was 0.0084 below one device. "
    "The held-out part has 359 samples, so one sample of one seed changes a mean of 3 seeds by "
    "0.0009."
)
"""What a page with more seeds says of one with fewer."""

AVERAGED = (
    "On *gpt-nano*, every way that averages weights ends near one device, torch's PostLocalSGD "
    "(2.3473) as well as *cadence* (2.3495). Ways that average gradients end 0.11 lower. So the "
    "difference is that of the algorithm, with this rate and five epochs. Rates of ranks are "
    "multiplied by their number here, which is not the default."
)
"""What the rows of a text model have in common."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How long a model trains here, and with what."""

    epochs: int
    lr: float
    batch_size: int
    batches: int | None = None


RECIPES = {
    "logistic": Recipe(epochs=30, lr=1e-3, batch_size=64),
    "mlp": Recipe(epochs=20, lr=1e-3, batch_size=64),
    "lenet": Recipe(epochs=20, lr=1e-3, batch_size=64),
    "char-rnn": Recipe(epochs=9, lr=2e-3, batch_size=16),
    "gpt-nano": Recipe(epochs=5, lr=2e-4, batch_size=4),
}


def cells(options: argparse.Namespace, folder: Path) -> list[Cell]:
    """Return the runs: each model in each mode with each seed."""
    found: list[Cell] = []
    for model in options.models:
        recipe = RECIPES[model]
        found += cells_of(
            Request(
                models=(model,),
                modes=tuple(options.modes),
                output=folder,
                source="packaged",
                epochs=recipe.epochs,
                batches=recipe.batches,
                batch_size=recipe.batch_size,
                lr=recipe.lr,
                seeds=options.seeds,
                ranks=options.ranks,
                ddp=DdpRunConfig(lr_scale_ratio=options.lr_scale_ratio),
            )
        )
    return found


def measured(planned: Sequence[Cell]) -> list[Outcome]:
    """Carry out the runs that their folders do not have yet.

    Ctrl-C ends it; a later call with the same folders continues with the next run.
    """
    found: list[Outcome] = []
    with suppress(KeyboardInterrupt):
        found = sweep([cell for cell in planned if not _is_kept(cell)])
    failed = [outcome for outcome in found if outcome.record is None]
    kept = [Outcome(cell, read_run(cell.folder)) for cell in planned if _is_kept(cell)]
    return failed + kept


def _is_kept(cell: Cell) -> bool:
    """Whether the folder of a run has its results, from the same settings."""
    if not is_complete(cell.folder):
        return False
    return bool(read_run(cell.folder).config == json.loads(json.dumps(cell.config())))


def lacking(options: argparse.Namespace, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the models and modes that are left out, because not all of their seeds have run."""
    for model in options.models:
        for mode in options.modes:
            ran = [one for one in outcomes if (one.cell.model, one.cell.mode) == (model, mode)]
            if len(ran) < options.seeds:
                yield f"{model} {mode}"


_DATED = re.compile(r"^## Measured on (.*)$|, (20\d\d-\d\d-\d\d)")


def earlier_rows(page: Path | None, names: Iterable[str]) -> list[str]:
    """Return parts of a page for rows that are left out now, as the page has them, by their date.

    Args:
        page: The page that is replaced; None or no file: nothing is kept.
        names: Models and modes, such as ``gpt-nano sync``.
    """
    if page is None or not page.exists():
        return []
    wanted, date = set(names), ""
    kept: dict[str, list[list[str]]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and " ".join(cells[:2]) in wanted and len(cells) == len(HEADER):
            kept.setdefault(date, []).append(cells)
        elif found := _DATED.search(line):
            date = found[1] or (date or found[2])
    return [f"## Measured on {day}\n\n{table(HEADER, rows)}" for day, rows in kept.items()]


def figures(outcomes: Sequence[Outcome], model: str, mode: str) -> list[float]:
    """Return the results of one model in one mode, by seed."""
    return [
        outcome.record.eval
        for outcome in outcomes
        if outcome.record is not None and (outcome.cell.model, outcome.cell.mode) == (model, mode)
    ]


def row(outcomes: Sequence[Outcome], model: str, mode: str) -> list[str]:
    """Return one line of the table."""
    judgement = TASKS[model].judgement
    mine, alone, peer = (figures(outcomes, model, one) for one in (mode, ALONE, PEER))
    if not mine:
        return [model, mode, "failed", *["–"] * 4, "MISSED"]
    mean = fmean(mine)
    gain = mean - fmean(peer) if peer else 0.0
    margin = ACCURACY_MARGIN if judgement.higher_is_better else LOSS_MARGIN
    within = (-gain if judgement.higher_is_better else gain) <= margin
    return [
        model,
        mode,
        f"{judgement.name} {mean:.4f}",
        f"{min(mine):.4f} … {max(mine):.4f}",
        f"{mean - fmean(alone):+.4f}" if alone else "–",
        f"{gain:+.4f}" if peer else "–",
        f"{margin:g}",
        judged(within) if peer and mode not in (ALONE, PEER) else "",
    ]


def described(options: argparse.Namespace, outcomes: Sequence[Outcome]) -> str:
    """Return the Markdown page."""
    left_out = set(lacking(options, outcomes))
    rows = [
        row(outcomes, model, mode)
        for model in options.models
        for mode in options.modes
        if f"{model} {mode}" not in left_out
    ]
    recipes = [
        [
            model,
            str(recipe.epochs),
            str(recipe.batch_size),
            str(recipe.batches or "all"),
            f"{recipe.lr:g}",
        ]
        for model, recipe in RECIPES.items()
        if model in options.models
    ]
    judgements = [one[-1] for one in rows if one[-1]]
    return page(
        options,
        "Convergence of the modes",
        f"{options.ranks} ranks, {options.seeds} seeds. Where the ranks do not share one batch, "
        f"the learning rate of each is multiplied by 1 + {options.lr_scale_ratio:g}·(W − 1). The "
        "data ships with flodl, so no figure is comparable with a published one. "
        f"Judged by torch DDP on the same samples: {judgements.count('PASS')} of "
        f"{len(judgements)} are worse by no more than the margin.",
        table(HEADER, rows),
        table(["model", "epochs", "batch size", "batches", "learning rate"], recipes),
        *([f"Not measured: {', '.join(sorted(left_out))}."] if left_out else []),
        *earlier_rows(options.output, left_out),
        *([EARLIER] if "mlp" in options.models and options.seeds > 3 else []),
        *([AVERAGED] if "gpt-nano" in options.models else []),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and publish the table."""
    parser = command_line("convergence", __doc__)
    parser.add_argument("--models", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=[one for one in MODES if one != "solo-1"]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--lr-scale-ratio", type=float, default=DdpRunConfig().lr_scale_ratio)
    parser.add_argument("--runs", type=Path, help="keep the runs there, and do not repeat them")
    # Only a model of seconds, in one mode: the seeds of the mode and of one device.
    options = read_options(parser, argv, models=["logistic"], modes=[ALONE], seeds=1)
    if options.runs is not None:
        options.command = options.command.replace(f" --runs {shlex.quote(str(options.runs))}", "")
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = measured(cells(options, options.runs or Path(scratch)))
        publish(described(options, outcomes), options.output)


if __name__ == "__main__":
    main()
