"""What gradient checkpointing saves in memory and costs in time: flodl beside transformers.

python -m benchmarks.gradient_checkpointing --output docs/benchmarks/gradient_checkpointing.md
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.huggingface.recomputing import Found, measured
from benchmarks.measure import (
    Bar,
    command_line,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)

KEPT, OURS = "flodl, kept", "flodl, recomputed"
THEIRS_KEPT, THEIRS = "transformers, kept", "transformers, recomputed"
SUBJECTS = (KEPT, OURS, THEIRS_KEPT, THEIRS)
MEMORY = {OURS: Bar(0.5), THEIRS: Bar(1.05)}
"""The most memory of our recomputed step, in parts of that of another step.

Beside our own kept step, and beside the recomputed step of transformers.
"""
TIME = Bar(1.5)
"""The most time of our recomputed step, in parts of our kept step."""


def rounds_of(count: int, layers: int, rows: int, length: int) -> dict[str, list[Found]]:
    """All subjects in turns, each round in processes of their own."""
    found: dict[str, list[Found]] = {name: [] for name in SUBJECTS}
    for number in range(count):
        turn = number % len(SUBJECTS)
        for name in SUBJECTS[turn:] + SUBJECTS[:turn]:
            found[name].append(measured(name, layers, rows, length))
    return found


def rows_of(found: dict[str, list[Found]]) -> list[list[str]]:
    """Memory and time of each subject, beside the step of the same library that keeps values."""
    sizes = {name: [float(one["bytes"]) for one in each] for name, each in found.items()}
    times = {name: [one["seconds"] for one in each] for name, each in found.items()}
    shown = []
    for name in SUBJECTS:
        base = KEPT if name.startswith("flodl") else THEIRS_KEPT
        part, slower = (
            median_ratio(sizes[name], sizes[base]),
            median_ratio(times[name], times[base]),
        )
        shown.append(
            [
                name,
                middle(sizes[name], ".0f", 1 / 2**20),
                f"{part:.2f}",
                MEMORY[OURS].verdict(part) if name == OURS else "",
                middle(times[name], ".2f"),
                f"{slower:.2f}",
                spread(ratios(times[name], times[base])),
                TIME.verdict(slower) if name == OURS else "",
            ]
        )
    return shown


def beside(found: dict[str, list[Found]]) -> str:
    """Our recomputed step beside that of transformers, and what recomputing changes."""
    ours = [float(one["bytes"]) for one in found[OURS]]
    ratio = median_ratio(ours, [float(one["bytes"]) for one in found[THEIRS]])
    same = all(
        (one["loss"], one["gradient"]) == (other["loss"], other["gradient"])
        for one, other in zip(found[KEPT], found[OURS], strict=True)
    )
    return (
        f"Memory of flodl, recomputed / that of transformers, recomputed: {ratio:.2f}, bar "
        f"{MEMORY[THEIRS].verdict(ratio)}. Loss and gradients of flodl with dropout are "
        f"{'equal bit for bit' if same else 'different'} with kept and recomputed values."
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = command_line("gradient_checkpointing", __doc__, rounds=3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    options = read_options(parser, argv, rounds=1, layers=2, rows=2, length=16)
    options.command = "python -m benchmarks.gradient_checkpointing" + (
        " --quick" if options.quick else ""
    )
    found = rounds_of(options.rounds, options.layers, options.rows, options.length)
    text = page(
        options,
        "Gradient checkpointing",
        f"A step of a classifier with {options.layers} layers of bert-base's width, a batch of "
        f"{options.rows} × {options.length} tokens, float32, dropout 0.1. {options.rounds} rounds "
        "in turns, each in a process of its own. Memory is the peak of the step over the model "
        "with its gradients. *Kept* keeps all values for the backward, *recomputed* is after "
        "`gradient_checkpointing_enable()`.",
        table(
            ["step", "MiB", "/ kept", "bar", "s", "/ kept", "spread", "bar"],
            rows_of(found),
        ),
        beside(found),
        packages=("torch", "transformers"),
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
