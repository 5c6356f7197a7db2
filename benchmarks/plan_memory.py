"""The memory that ``fdl plan --try --gpu`` predicts for twelve trainings, beside what they take.

    python -m benchmarks.plan_memory [--models mlp ...] [--output docs/benchmarks/plan_memory.md]

Every model is tried twice, each time in a process of its own: once for the prediction and once for
the memory that the process takes here. Both are rehearsals of the same training, with Adam. No GPU
is needed, and none was used: a CPU is the check until a GPU can be had.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    NOT_YET,
    Bar,
    command_line,
    page,
    publish,
    read_options,
    spread,
    table,
)
from benchmarks.plan_memory_subject import NAMES
from benchmarks.rows import Kept, Row, continued
from fdl.base.units import format_bytes
from flodl.train.peak_memory import CONTEXT_BYTES, MARGIN, VARIABLE
from flodl.train.run.run_records import REHEARSAL

GB = 10**9
WRONG = Bar(0, form="d")
"""Trainings that would fit by the prediction, and take more than the whole GPU."""
REFUSED = Bar(1, form="d")
"""Trainings that fit into the part of the GPU that a prediction may use, and are refused."""


def tried(name: str, options: argparse.Namespace, *, predicts: bool) -> dict[str, Any]:
    """Try a training in a process of its own; what the rehearsal found."""
    words = [name, *(["small"] if options.quick else [])]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rehearsal.json")
        about = {VARIABLE: f"{1000 * GB} any"} if predicts else {}
        subprocess.run(
            [sys.executable, "-m", "benchmarks.plan_memory_subject", *words],
            env={**os.environ, REHEARSAL: str(file), **about},
            check=True,
        )
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def measured(name: str, options: argparse.Namespace) -> Row:
    """One model: the parts of the prediction, and the memory that its steps took here."""
    gpu = tried(name, options, predicts=True)["gpu"]
    taken = []
    for _ in range(options.rounds):
        here = tried(name, options, predicts=False)
        steps = max(one["peak_bytes"] for one in here["phases"] if one["name"] != "checkpoint")
        taken.append(steps - here["before_bytes"] + gpu["parameter_bytes"])
    return {"gpu": gpu, "batch": here["batch_size"], "taken": taken}


def smallest(needed: float) -> int:
    """The smallest GPU of whole gigabytes that holds so many bytes with 10 % free."""
    return math.ceil(needed / MARGIN / GB)


def judged(row: Row) -> str:
    """What the prediction says of the GPUs around the one that is large enough."""
    taken = statistics.median(row["taken"]) + CONTEXT_BYTES
    predicted, true = smallest(row["gpu"]["needed_bytes"]), smallest(taken)
    if predicted > true:
        return "refused"
    return "wrong" if taken > predicted * GB else "right"


def text_of(rows: Mapping[str, Row], options: argparse.Namespace) -> str:
    """The page."""
    body, verdicts = [], [judged(rows[name]) for name in rows]
    for name, verdict in zip(rows, verdicts, strict=True):
        gpu, taken = rows[name]["gpu"], rows[name]["taken"]
        parts = ("parameter", "gradient", "optimizer", "activation")
        middle = statistics.median(taken)
        body.append(
            [
                name,
                str(rows[name]["batch"]),
                *(format_bytes(gpu[f"{part}_bytes"]) for part in parts),
                format_bytes(gpu["reserved_bytes"]),
                format_bytes(int(middle)),
                f"{gpu['reserved_bytes'] / middle:.2f}",
                spread([gpu["reserved_bytes"] / one for one in taken]),
                f"{smallest(gpu['needed_bytes'])} GB",
                f"{smallest(middle + CONTEXT_BYTES)} GB",
                str(len(taken)),
                verdict,
            ]
        )
    header = ["model", "batch", "parameters", "gradients", "optimizer", "activations", "predicted",
              "taken here", "predicted / taken", "spread", "fits from, predicted",
              "fits from, taken", "rounds", "verdict"]  # fmt: skip
    body += [[name, NOT_YET, *[""] * 12] for name in NAMES if name not in rows]
    counts = [verdicts.count("wrong"), verdicts.count("refused")]
    bars = [
        bar.verdict(count) if len(rows) == len(NAMES) else NOT_YET
        for bar, count in zip((WRONG, REFUSED), counts, strict=True)
    ]
    return page(
        options,
        "Memory on a GPU that is not here",
        "Two steps with Adam, medians of the rounds. **No GPU was used.** *Taken here* "
        "is what the steps take on a CPU: the peak of the process, without what it held before "
        "the model. It checks the sum of the tensors, and not the kernels of a GPU. *Predicted* is "
        "what PyTorch's allocator for CUDA would reserve. *Fits from* is the smallest GPU of whole "
        f"gigabytes, with {CONTEXT_BYTES / GB:.2f} GB for CUDA itself and 10 % free.",
        table(header, body),
        table(
            ["", f"of {len(rows)}", "at most"],
            [
                ["would fit, and takes more than the GPU has", str(counts[0]), bars[0]],
                ["refused, and would fit", str(counts[1]), bars[1]],
            ],
        ),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Try all models, and publish."""
    parser = command_line("plan_memory", __doc__, rounds=3)
    parser.add_argument("--models", nargs="*", choices=NAMES, default=list(NAMES))
    options = read_options(parser, argv, rounds=1, models=list(NAMES[:1]))
    # The page holds what several calls with --models have measured.
    options.command = f"{parser.prog}{' --quick' if options.quick else ''}"
    kept = Kept.beside(options.output)
    for name in options.models:
        kept.rows[name] = {**continued(kept.rows.get(name), "torch"), **measured(name, options)}
        kept.write()
    ordered = {name: kept.rows[name] for name in NAMES if name in kept.rows}
    publish(text_of(ordered, options), options.output)


if __name__ == "__main__":
    main()
