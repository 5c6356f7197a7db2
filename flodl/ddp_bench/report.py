"""Write a report of a folder of runs, as one Markdown page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flodl.ddp_bench.analyze import (
    EVAL_WITHIN,
    Cause,
    as_good,
    calibration,
    epoch_overlaps,
    idle_by_cause,
    idle_times,
    sampled,
)
from flodl.ddp_bench.comparison import what_is_missing
from flodl.ddp_bench.data import NOTES
from flodl.ddp_bench.models import TASKS
from flodl.ddp_bench.summary import ALONE, FiledRun, ModelSummary, ModeSummary, Unread, summarise

if TYPE_CHECKING:
    from flodl.monitor import Timeline

_GAPS = 10
_GIB = 2**30
_SPEED_GUIDE = (
    "Ideal is the time in which the devices would share the work without any loss, "
    "`1 / (1/t0 + 1/t1 + …)` from the times of each alone; efficiency is ideal ÷ measured. "
    "Evaluation and loading are in no time."
)


def report(runs: Sequence[FiledRun], unread: Sequence[Unread] = ()) -> str:
    """Return the page as Markdown.

    Args:
        runs: Complete runs.
        unread: Folders without a complete run.
    """
    models = summarise(runs)
    parts = ["# ddp-bench", *_hardware(runs), *_speed_ratios(models), *_notes(runs)]
    parts += _incomplete(unread)
    for model in models:
        parts += _model(model)
    timed = [(run, run.timeline) for run in runs if run.timeline is not None]
    parts += [*_memory(runs), *_idle(timed), *_calibrations(timed), *_overlaps(timed)]
    return "\n\n".join(parts) + "\n"


def _hardware(runs: Sequence[FiledRun]) -> list[str]:
    if not runs:
        return ["No complete run was found."]
    lines = []
    widest = max(runs, key=lambda run: run.record.world_size).record
    lines += [f"- gpu{rank}: {name}" for rank, name in enumerate(widest.devices)]
    transports = sorted({run.record.transport for run in runs} - {"nobody"})
    versions = sorted({run.record.torch for run in runs})
    threads = sorted({run.record.threads for run in runs})
    lines.append(
        f"- torch {', '.join(versions)}; exchange by {', '.join(transports) or 'nobody'}; "
        f"{', '.join(map(str, threads))} threads per rank"
    )
    return ["## Hardware", "\n".join(lines)]


def _speed_ratios(models: Sequence[ModelSummary]) -> list[str]:
    rows = []
    for model in models:
        alone = [one for one in model.modes if one.mode.startswith("solo-")]
        if len(alone) < 2:
            continue
        fastest = min(one.seconds for one in alone)
        times = ", ".join(f"{one.mode} {one.seconds:.2f} s" for one in alone)
        ratios = " : ".join(f"{one.seconds / fastest:.2f}" for one in alone)
        rows.append([model.model, times, ratios])
    if not rows:
        return []
    return ["## Devices alone", _table(["model", "training time", "relative"], rows)]


def _notes(runs: Sequence[FiledRun]) -> list[str]:
    lines = [
        f"- {NOTES[source]}"
        for source in sorted({run.record.data for run in runs})
        if NOTES.get(source)
    ]
    lines += [
        f"- declared pace: {pace}" for pace in sorted({run.record.simulated for run in runs} - {""})
    ]
    if any(run.record.devices[0].startswith("CPU") for run in runs):
        lines.append("- ranks on processors exchange by Gloo whatever the name of the mode says")
    return ["## Notes", "\n".join(lines)] if lines else []


def _incomplete(unread: Sequence[Unread]) -> list[str]:
    rows = [[f"`{one.folder}`", one.reason] for one in unread]
    return _section("Incomplete runs", ["folder", "what happened"], rows)


def _model(model: ModelSummary) -> list[str]:
    flag = "" if model.data == "real" else f" ({model.data} data)"
    metric = model.modes[0].first.metric
    parts = [f"## {model.model}{flag}", _results(model, metric)]
    if model.mode(ALONE) is not None and len(model.modes) > 1:
        parts += [_best(model), _against_alone(model), *_faults(model)]
        parts += [*what_is_missing(model), _SPEED_GUIDE]
    return [*parts, _trajectory(model)]


def _faults(model: ModelSummary) -> list[str]:
    found = [(one.mode, fault) for one in model.modes if (fault := model.fault(one))]
    return ["\n".join(f"- {mode}: {fault}" for mode, fault in found)] if found else []


def _results(model: ModelSummary, metric: str) -> str:
    header = ["mode", "loss", metric, "vs reference", "total s", "syncs", "sync ms"]
    header += ["busy per rank", "idle s", "comm", "wait"]
    return _table(header, [_result(model, one) for one in model.modes])


def _result(model: ModelSummary, one: ModeSummary) -> list[str]:
    record, timeline = one.first, one.runs[0].timeline
    spread = f" ±{one.spread / 2:.2g} ({len(one.runs)} seeds)" if len(one.runs) > 1 else ""
    idle = _or_dash(_idle_seconds(timeline), "{:.1f}")
    return [
        one.mode,
        f"{one.loss:.4g}",
        f"{one.eval:.4g}{spread}",
        _reference(model, one.eval),
        f"{one.seconds:.2f}",
        str(record.syncs) if record.syncs is not None else "–",
        _or_dash(record.sync_ms, "{:.2f}"),
        " / ".join(f"{part:.0%}" for part in one.busy()) or "–",
        idle,
        _or_dash(one.part("comm_ms"), "{:.1%}"),
        _or_dash(one.part("wait_ms"), "{:.1%}"),
    ]


def _idle_seconds(timeline: Timeline | None) -> float | None:
    if timeline is None or not any(one.gpus or one.busy is not None for one in timeline.samples):
        return None
    return sum(one.ms for one in idle_times(timeline.samples, timeline.events)) / 1000


def _reference(model: ModelSummary, figure: float) -> str:
    task = TASKS.get(model.model)
    if model.data != "real" or task is None or task.reference is None:
        return "–"
    return f"{figure - task.reference:+.4f} ({task.reference:g})"


def _best(model: ModelSummary) -> str:
    alone = model.mode(ALONE)
    assert alone is not None  # noqa: S101 - asked for only then
    up = alone.first.higher_is_better
    if model.data == "synthetic":
        return "Nothing can be learned from noise: results are not compared."
    finite = [one for one in model.modes if math.isfinite(one.eval)]
    if not finite or not math.isfinite(alone.eval):
        return "No result is a number: results are not compared."
    best = max(finite, key=lambda one: one.eval if up else -one.eval)
    near = [one for one in finite if as_good(one.eval, alone.eval, higher_is_better=up)]
    fastest = min(near, key=lambda one: one.seconds)
    return (
        f"Best {alone.first.metric}: **{best.mode}** ({best.eval:.4g}). Fastest within "
        f"{EVAL_WITHIN:.0%} of {ALONE}: **{fastest.mode}** ({fastest.seconds:.2f} s)."
    )


def _against_alone(model: ModelSummary) -> str:
    alone = model.mode(ALONE)
    assert alone is not None  # noqa: S101 - asked for only then
    rows = []
    for one in model.modes:
        ranks = one.first.world_size
        ideal, used, judged = model.ideal(ranks), model.efficiency(one), model.verdict(one)
        several = ranks > 1
        rows.append(
            [
                one.mode,
                f"{one.eval - alone.eval:+.4f}",
                f"{one.loss / alone.loss:.3f}" if alone.loss else "–",
                f"{alone.seconds / one.seconds:.2f}×",
                _or_dash(ideal if several else None, "{:.2f} s"),
                _or_dash(used if several else None, "{:.0%}"),
                judged.value if judged is not None else "–",
            ]
        )
    header = ["mode", f"eval − {ALONE}", "loss ratio", "speed-up", "ideal", "efficiency", "verdict"]
    return _table(header, rows)


def _trajectory(model: ModelSummary) -> str:
    epochs = sampled(max(len(one.first.rows) for one in model.modes))
    rows = [
        [
            one.mode,
            *(
                f"{one.first.rows[epoch].loss:.4g}" if epoch < len(one.first.rows) else "–"
                for epoch in epochs
            ),
        ]
        for one in model.modes
    ]
    header = ["training loss after epoch", *(str(epoch + 1) for epoch in epochs)]
    return _table(header, rows)


def _memory(runs: Sequence[FiledRun]) -> list[str]:
    rows = [
        [run.title, f"{vram['peak'] / _GIB:.2f}", f"{vram['mean'] / _GIB:.2f}"]
        for run in runs
        if (vram := run.record.vram) is not None
    ]
    return _section("Memory of the first GPU", ["run", "peak GiB", "mean GiB"], rows)


def _idle(timed: Iterable[tuple[FiledRun, Timeline]]) -> list[str]:
    gaps, causes = [], []
    for run, timeline in timed:
        idle = idle_times(timeline.samples, timeline.events)
        if not idle:
            continue
        gaps += [
            [run.title, one.device, f"{one.start_ms / 1000:.1f}", f"{one.ms:.0f}", one.cause]
            for one in idle[:_GAPS]
        ]
        sums = idle_by_cause(idle)
        causes.append([run.title, *(f"{sums.get(cause, 0.0) / 1000:.1f}" for cause in Cause)])
    if not gaps:
        return []
    return [
        "## Idle devices",
        f"Used less than 5 % for at least half a second; the {_GAPS} longest of each run.",
        _table(["run", "device", "at s", "ms", "cause"], gaps),
        "Seconds by cause:",
        _table(["run", *Cause], causes),
    ]


def _calibrations(timed: Iterable[tuple[FiledRun, Timeline]]) -> list[str]:
    rows = []
    for run, timeline in timed:
        found = calibration(timeline.events)
        if not found.syncs:
            continue
        anchors = " → ".join(map(str, found.anchors[:12])) or str(run.record.rows[-1].k)
        rows.append(
            [
                run.title,
                anchors + (" → …" if len(found.anchors) > 12 else ""),
                " / ".join(map(str, run.record.rows[-1].counts)) or "–",
                str(found.throttles),
                str(found.syncs),
                _or_dash(found.p50_ms, "{:.0f}"),
                _or_dash(found.p95_ms, "{:.0f}"),
            ]
        )
    header = ["run", "anchor", "last counts", "throttled", "syncs", "P50 ms", "P95 ms"]
    return _section("Calibration of the windows", header, rows)


def _overlaps(timed: Iterable[tuple[FiledRun, Timeline]]) -> list[str]:
    rows = []
    for run, timeline in timed:
        found = epoch_overlaps(timeline.events)
        if found:
            longest = max(found, key=lambda one: one.ms)
            mean = sum(one.ms for one in found) / len(found)
            rows.append([run.title, str(len(found)), f"{mean:.0f}", f"{longest.ms:.0f}"])
    header = ["run", "overlapping epochs", "mean ms", "longest ms"]
    return _section("Epochs that overlap", header, rows)


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A heading and its table; nothing without rows."""
    return [f"## {title}", _table(header, rows)] if rows else []


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
