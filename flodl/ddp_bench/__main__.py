"""Train models in modes, validate, and report: ``python -m flodl.ddp_bench``."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import field_validator

from fdl.base import output
from fdl.base.errors import reason_of
from fdl.base.files import write_text
from fdl.programs.args import DdpArgs, option
from flodl import log
from flodl.ddp_bench.baselines import TOLERANCE, compare, failures, read_baselines, save_baselines
from flodl.ddp_bench.cell import MODES
from flodl.ddp_bench.comparison import control_failures, table_of
from flodl.ddp_bench.controls import CONTROLS
from flodl.ddp_bench.data import NOTES, Source
from flodl.ddp_bench.models import TASKS
from flodl.ddp_bench.records import RunRecord
from flodl.ddp_bench.report import report
from flodl.ddp_bench.request import ALL, Request, cells_of, chosen, ensure_data
from flodl.ddp_bench.summary import FiledRun, read_folder, summarise
from flodl.ddp_bench.sweep import Outcome, sweep
from flodl.errors import DataError
from flodl.ranks.launch.launcher import detect
from flodl.ranks.settings import DdpRunConfig, settings_of

_REPORT = "runs/report.md"
_Numbers: TypeAlias = list[float]
"""An alias, because ``list`` is a flag in the class below."""
_SUCCESS, _FAILED, _REFUSED = 0, 1, 2


class Args(DdpArgs):
    """Train small models in every mode, under the same rules, and compare."""

    model: str | None = option(help="Model to train; several by commas, or all")
    mode: str | None = option(help="How to train it; several by commas, or all (--list names them)")
    epochs: int | None = option(help="Passes over the data (default: as many as the model needs)")
    batches: int | None = option(help="Batches per epoch (default: all)")
    batch_size: int = option(default=64, help="Samples per batch of one rank")
    lr: float | None = option(help="Learning rate (default: that of the model)")
    lr_scale: float | None = option(help="Multiply the learning rate by this (default: 1)")
    seed: int = option(default=42, help="Seed of weights, order and augmentation")
    seeds: int = option(default=1, help="Number of seeds to train with, one after the other")
    output: Path = option(default=Path("runs"), help="Folder of the runs")
    data_dir: Path = option(default=Path("data"), help="Folder of the real data sets")
    data: Literal["real", "packaged", "synthetic"] = option(
        default="real", help="Real data, the small data that flodl ships, or noise of their shape"
    )
    synthetic: bool = option(help="The same as --data synthetic")
    offline: bool = option(help="Download nothing")
    sim_ms: _Numbers = option(help="The same as --simulate-ms")
    monitor: int | None = option(default=0, help="Serve the live page at a port, or at a free one")
    report: str | None = option(
        default=_REPORT, help="Write the report of all runs in the output folder; - prints it"
    )
    validate: bool = option(help="Compare results with the baselines; exit 1 if one is worse")  # type: ignore[assignment]
    save_baseline: bool = option(help="Keep the results as baselines")
    baseline: Path = option(default=Path("baselines/baseline.json"), help="File of the baselines")
    tolerance: float = option(
        default=TOLERANCE, help="Fraction by which a result may be worse than its baseline"
    )
    allow_missing: bool = option(help="Accept results without a baseline")
    list: bool = option(help="List the models and modes")

    @field_validator("mode")
    @classmethod
    def _known_mode(cls, text: str | None) -> str | None:
        """Check the names of modes; the benchmark has more modes than a training."""
        if text is not None:
            chosen(text.split(","), MODES, "mode")
        return text

    @property
    def source(self) -> Source:
        """Source of the data."""
        return "synthetic" if self.synthetic else self.data

    @property
    def trains(self) -> bool:
        """Whether the arguments ask for a training."""
        return any(one is not None for one in (self.model, self.mode, self.policy, self.backend))

    @property
    def follows_up(self) -> bool:
        """Whether the arguments ask to validate, save or report existing runs."""
        return self.validate or self.save_baseline or self.report is not None


def request_of(args: Args) -> Request:
    """Translate the arguments to a request.

    Raises:
        ValueError: Two arguments contradict each other, or a value is out of its range.
    """
    settings = args.ddp_settings()
    if args.sim_ms:
        if args.simulate_ms:
            raise ValueError("--sim-ms and --simulate-ms are the same: give only one of them")
        settings["simulate_ms"] = args.sim_ms
    ranks = settings.pop("ranks", None)
    mode = settings.pop("mode", None)
    policy, backend = settings.pop("policy", None), settings.pop("backend", None)
    if policy or backend:
        mode = f"{backend or 'nccl'}-{policy or 'cadence'}"
    launch = {name: str(settings[name]) for name in ("nodes", "rdzv") if name in settings}
    own: dict[str, Any] = {
        "models": tuple((args.model or ALL).split(",")),
        "modes": tuple((mode or "solo-0").split(",")),
        "ranks": ranks if isinstance(ranks, int) else None,
        "ddp": DdpRunConfig(**settings_of(settings)),
        "keep_timelines": args.timeline,
        "launch": tuple(launch.items()),
    }
    same = {one.name: getattr(args, one.name) for one in fields(Request) if one.name not in own}
    return Request(**same, **own)


def main(args: Args) -> int:
    """Run the benchmark and return the exit code."""
    try:
        return _benchmarked(args)
    except OSError as error:
        output.error(reason_of(error))
        return _FAILED


def _benchmarked(args: Args) -> int:
    if args.list:
        sys.stdout.write(_listing())
        return _SUCCESS
    if not (args.trains or args.follows_up):
        output.error("nothing to do: give --model and --mode, or --report, --validate, --list")
        return _REFUSED
    outcomes: list[Outcome] = []
    if args.trains:
        try:
            request = request_of(args)
            cells = cells_of(request)
            ensure_data(request)
            args.output.mkdir(parents=True, exist_ok=True)  # before anything is trained
        except (ValueError, DataError) as error:
            output.error(str(error))
            return _REFUSED
        outcomes = sweep(cells)
    launched = detect(os.environ)
    if launched is not None and launched.rank > 0:
        return _SUCCESS
    return max(_told(args, outcomes), _compared(outcomes), _followed_up(args, outcomes))


def _told(args: Args, outcomes: list[Outcome]) -> int:
    """Print a summary of the new runs and return the exit code."""
    for outcome in outcomes:
        run = outcome.record
        if run is not None:
            flag = f" [{NOTES[args.source]}]" if NOTES[args.source] else ""
            log.msg(
                f"{run.model}/{run.mode}: {run.metric} {run.eval:.4g}, loss {run.loss:.4g}, "
                f"{run.seconds:.2f} s{flag}"
            )
    return _FAILED if any(outcome.record is None for outcome in outcomes) else _SUCCESS


def _compared(outcomes: list[Outcome]) -> int:
    """Compare the modes; fail if the analysis cannot tell broken from healthy averaging."""
    models = summarise(
        [FiledRun(one.cell.folder, one.record, None) for one in outcomes if one.record is not None]
    )
    for model in models:
        for line in table_of(model):
            log.msg(line)
    wrong = list(control_failures(models))
    for line in wrong:
        output.error(line)
    return _FAILED if wrong else _SUCCESS


def _followed_up(args: Args, outcomes: list[Outcome]) -> int:
    if not args.follows_up:
        return _SUCCESS
    runs, unread = read_folder(args.output)
    mine = [one.record for one in outcomes if one.record is not None] or [
        run.record for run in runs
    ]
    code = _SUCCESS
    try:
        if args.validate:
            code = _validated(args, mine)
        if args.save_baseline:
            count = save_baselines(args.baseline, mine)
            log.msg(f"{args.baseline}: {count} baselines")
    except DataError as error:
        output.error(str(error))
        code = _FAILED
    if args.report is not None:
        page = report(runs, unread)
        if args.report == "-":
            sys.stdout.write(page)
        else:
            path = args.output / "report.md" if args.report == _REPORT else Path(args.report)
            write_text(path, page)
            log.msg(f"report: {path}")
    return code


def _validated(args: Args, mine: list[RunRecord]) -> int:
    if not mine:
        output.error(f"{args.output}: no complete run to validate")
        return _FAILED
    findings = compare(mine, read_baselines(args.baseline), tolerance=args.tolerance)
    for finding in findings:
        log.msg(finding.line())
    return _FAILED if failures(findings, allow_missing=args.allow_missing) else _SUCCESS


def _listing() -> str:
    lines = ["models:"]
    for task in TASKS.values():
        parameters = sum(one.numel() for one in task.build().parameters())
        aim = "no reference" if task.reference is None else f"reference {task.reference:g}"
        lines.append(
            f"  {task.name:<14}{task.data:<13}{parameters:>9,} parameters, {task.epochs} epochs, "
            f"{task.judgement.name}, {aim}"
        )
    lines += ["modes:", *(f"  {mode}" for mode in MODES)]
    lines += ["controls, whose averaging is broken:", *(f"  {mode}" for mode in CONTROLS)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(Args.parse_or_schema()))
