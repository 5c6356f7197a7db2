"""Compare the modes that the benchmark has just trained, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flodl.ddp_bench.analyze import ENOUGH_SECONDS, ENOUGH_SEEDS, Verdict
from flodl.ddp_bench.controls import CONTROLS, STANDS_FOR
from flodl.ddp_bench.summary import ALONE, ModelSummary, ModeSummary
from flodl.terminal import aligned

_HEADER = ("mode", "result", "seconds", "speed-up", "efficiency", "verdict")


def table_of(model: ModelSummary) -> list[str]:
    """Return a table with the modes of a model, and which data a verdict still needs.

    It is empty unless the first device was trained alone, along with other modes.
    """
    alone = model.mode(ALONE)
    if alone is None or len(model.modes) < 2:
        return []
    rows = [_HEADER, *(_row(model, one, alone) for one in model.modes)]
    lines = [f"  {line}" for line in aligned(rows, left=(0, len(_HEADER) - 1))]
    return [f"{model.model}: {alone.first.metric}, by mode", *lines, *what_is_missing(model)]


def control_failures(models: Sequence[ModelSummary]) -> Iterator[str]:
    """Yield errors where the analysis cannot tell broken from healthy averaging.

    A control must show a fault, and the other modes must not. Without controls nothing is yielded.
    """
    for model in models:
        controls = [one for one in model.modes if one.mode in CONTROLS]
        if not controls or model.data == "synthetic":
            continue
        if model.mode(ALONE) is None:
            yield (
                f"{model.model}: a control says something only beside {ALONE}: "
                f"--mode {ALONE},{STANDS_FOR},{controls[0].mode}"
            )
            continue
        for one in model.modes:
            fault = model.fault(one)
            if one.mode in CONTROLS and not fault:
                yield (
                    f"{model.model}/{one.mode}: its averaging is broken on purpose, and the "
                    "analysis took it for a healthy one; the other results prove nothing. Train "
                    "longer (--epochs) or report a defect"
                )
            elif one.mode not in CONTROLS and fault:
                yield f"{model.model}/{one.mode}: averaging is broken: {fault}"


def _row(model: ModelSummary, one: ModeSummary, alone: ModeSummary) -> tuple[str, ...]:
    used = model.efficiency(one) if one.first.world_size > 1 else None
    judged = model.verdict(one)
    fault = model.fault(one)
    told = "" if judged is None else f"{judged}: {fault}" if fault else str(judged)
    return (
        one.mode,
        f"{one.eval:.4g}",
        f"{one.seconds:.2f}",
        f"{alone.seconds / one.seconds:.2f}×",
        "–" if used is None else f"{used:.0%}",
        told,
    )


def what_is_missing(model: ModelSummary) -> list[str]:
    """Describe which data verdicts need and how to get it; empty if nothing is missing."""
    judged = [one for one in model.modes if model.verdict(one) is Verdict.NOT_ENOUGH]
    if not judged:
        return []
    alone = model.mode(ALONE)
    lacks = next((one.shortage for one in (*judged, alone) if one and one.shortage), "")
    return [
        f"not enough data for a verdict ({lacks} of {judged[0].mode}): it needs {ENOUGH_SEEDS} "
        f"seeds and {ENOUGH_SECONDS:g} s of training per mode: --seeds {ENOUGH_SEEDS} "
        f"--epochs {_epochs_for_a_verdict(model)}"
    ]


def _epochs_for_a_verdict(model: ModelSummary) -> int:
    """Return the epochs with which every mode trains long enough in the required seeds."""
    fastest = min(model.modes, key=lambda one: one.seconds)
    per_epoch = fastest.seconds / len(fastest.first.rows)
    return max(len(fastest.first.rows), int(1.2 * ENOUGH_SECONDS / ENOUGH_SEEDS / per_epoch) + 1)
