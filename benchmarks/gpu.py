"""Everything that has to be measured on a GPU, with one command, and the list of what ran there.

On a machine without a GPU it says so and ends with code 77, which test runners read as *skipped*.

    python -m benchmarks.gpu --plan                                   # what each row will take
    python -m benchmarks.gpu --output docs/benchmarks/gpu_rows.md     # on a machine with a GPU
    python -m benchmarks.gpu --list --output docs/benchmarks/gpu.md   # anywhere: what ran there
    python -m benchmarks.gpu --device cpu --quick                     # try the program

A call takes ten minutes at most: it starts no row that would end later, as far as is known what a
row takes. Rows are kept as they come, the most important ones first. The next call measures what is
missing, then what is older than today.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from benchmarks import ten_models
from benchmarks.gpu_lines import ROOT
from benchmarks.gpu_ran import RAN, never_run, what_ran
from benchmarks.huggingface import material
from benchmarks.measure import (
    command_line,
    environment,
    in_turns,
    interleaved,
    judged,
    median_ratio,
    middle,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from benchmarks.rows import Kept
from benchmarks.ten_models_networks import networks
from fdl.base.files import put

if TYPE_CHECKING:
    from torch import Tensor

PAGE = ROOT / "docs/benchmarks/gpu_rows.md"
NO_GPU = 77
"""Exit code on a machine without a GPU."""


class Way(NamedTuple):
    """How a network is trained: a subject of ``ten_models_subject`` and its engine."""

    subject: str
    engine: str


PLAIN, PURE = "plain", "auto, pure step"
WAYS: dict[str, Way] = {
    PLAIN: Way("eager", "auto"),
    "fused": Way("fused", "auto"),
    "compile": Way("compiled", "auto"),
    "cuda_graph": Way("flodl", "cuda_graph"),
    "auto": Way("flodl", "auto"),
    PURE: Way("pure", "auto"),
}
"""Column of the ten models -> how the step is computed. Ratios are to the first."""

BESIDE_THE_BEST, BESIDE_PLAIN = 1.02, 1.0
"""Most that auto with a pure step may take by the best way, and each way of auto by plain."""

Players: TypeAlias = dict[str, ten_models.Player]

MODELS, PREDICTIONS = "ten models", "predictions"
DTYPES = ("float32", "bfloat16")
PROGRAMS = {
    "trainer overhead": ["trainer_overhead", "--alone"],
    "data feed": ["data_feed", "--rounds", "3"],
}
"""Part -> a program that knows ``--device`` itself, and its options."""

EXPECTED = {MODELS: 42.0, "trainer overhead": 60.0, "data feed": 50.0, PREDICTIONS: 45.0}
"""Seconds that a row of each part takes, until a machine has measured it. A network loads while the
one before it compiles, which takes half of its time."""


class Planned(NamedTuple):
    """A figure of the page.

    Attributes:
        part: The section that it belongs to.
        row: What is trained or asked.
        column: In which way.
    """

    part: str
    row: str
    column: str


def planned() -> list[Planned]:
    """Every figure, in the order of the page."""
    models = [Planned(MODELS, *cell) for cell in itertools.product(networks(), WAYS)]
    answers = [
        Planned(PREDICTIONS, f"256 sentences, {dtype}", name)
        for dtype in DTYPES
        for name in ("flodl", "transformers")
    ]
    others = [Planned(part, " ".join(words), "its own table") for part, words in PROGRAMS.items()]
    return models + answers + others


# --- Measured on a GPU -------------------------------------------------------------------------


def model_rows(
    names: Sequence[str], options: argparse.Namespace
) -> Iterator[tuple[str, list[str]]]:
    """The cells of each network; all its ways take turns.

    While one network compiles, the processes of the next one load.
    """
    with ExitStack() as stack:
        loaded: dict[str, tuple[ExitStack, Players]] = {}

        def load(name: str) -> None:
            if name and name not in loaded:
                ends = stack.enter_context(ExitStack())
                loaded[name] = (ends, begun(ends, name, options))

        for name, after in zip(names, [*names[1:], ""], strict=True):
            load(name)
            ends, players = loaded.pop(name)
            try:
                row = cells(name, *train(players, options, partial(load, after)), options)
            except (RuntimeError, OSError) as error:  # a process has ended; others go on
                sys.stderr.write(f"gpu: {name} was not measured: {error}\n")
            else:
                yield name, row
            ends.close()


def cells(
    name: str,
    seconds: Mapping[str, list[float]],
    steps: int,
    notes: str,
    options: argparse.Namespace,
) -> list[str]:
    """The cells of one network."""
    base = seconds[PLAIN]
    step = {column: median_ratio(taken, base) for column, taken in seconds.items()}
    about = [spread(ratios(seconds["auto"], base)), str(options.rounds), notes]
    figures = [f"{ratio:.3f}" for ratio in list(step.values())[1:]]
    return [name, middle(base, ".3f", 1e3 / steps), *figures, *verdict(step), *about]


def verdict(step: Mapping[str, float]) -> list[str]:
    """Auto with a pure step by the best of all ways, and whether both ways of auto pass.

    Where nothing is declared, auto may neither compile nor capture, so it need not be the best.
    """
    beside = step[PURE] / min(step.values())
    passes = beside <= BESIDE_THE_BEST and max(step["auto"], step[PURE]) <= BESIDE_PLAIN
    return [f"{beside:.3f}", "PASS" if passes else "MISSED"]


def begun(stack: ExitStack, name: str, options: argparse.Namespace) -> Players:
    """Start a process for each way to train a network; they load, and wait for commands."""
    players = {}
    for column, way in WAYS.items():
        told = argparse.Namespace(**{**vars(options), "engine": way.engine})
        player = ten_models.Player(name, way.subject, told, kept_heap=False)
        players[column] = stack.enter_context(player)
    return players


def train(
    players: Players, options: argparse.Namespace, meanwhile: Callable[[], object]
) -> tuple[dict[str, list[float]], int, str]:
    """Seconds of every round by way, steps of a round, and what each engine says.

    Args:
        players: The processes of a network.
        options: Of the command line.
        meanwhile: Called while the ways compile.
    """
    settle(players, options, meanwhile)
    few = 1 if options.quick else 10
    one = float(players[PLAIN].ask(f"train {few}")["seconds"]) / few
    steps = options.steps or max(1, min(200, round(options.turn / one)))

    def turn(column: str) -> float:
        return float(players[column].ask(f"train {steps}")["seconds"])

    seconds = in_turns(list(players), turn, options.rounds)
    reports = {column: player.ask("report") for column, player in players.items()}
    sys.stderr.write(f"gpu: {json.dumps(reports, default=str)}\n")
    told = [f"{column}: {text}" for column, one in reports.items() if (text := _told(one))]
    return seconds, steps, "; ".join(told)


def settle(players: Players, options: argparse.Namespace, meanwhile: Callable[[], object]) -> None:
    """Let every way take its first steps, and the engines decide.

    Loading and compiling take longest, so they run together. Steps are measured by engines that
    decide, which therefore share the device with a compilation only.
    """
    command = f"settle {options.settle} {options.patience}"
    for together in ([PLAIN, "fused", "cuda_graph"], ["compile", PURE]):
        with ThreadPoolExecutor(len(together)) as pool:
            answers = [pool.submit(players[column].ask, command) for column in together]
            if PURE in together:
                meanwhile()
            for one in answers:
                one.result()
    players["auto"].ask(command)


def _told(report: Mapping[str, Any]) -> str:
    """Why an engine runs plainly, or what it has chosen."""
    if "fallback" in report:
        return str(report["fallback"])
    if report.get("decided") is False:
        return "has not decided yet"
    return " + ".join(report["tuning"]) if isinstance(report.get("tuning"), list) else ""


def prediction_rows(options: argparse.Namespace) -> str:
    """Sentences of 5 to 120 tokens, classified by a model of bert-base's size."""
    from flodl.hf.opening import Opening

    texts = material.sentences(options.sentences, 5, 120)
    rows, notes = [], []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "bert-base"
        material.bert(folder)
        for dtype in DTYPES:
            if dtype != "float32" and "dtype" not in Opening.__annotations__:
                notes.append(f"{dtype}: this flodl opens models in float32 only.")
                continue
            rows += _predicted(folder, texts, dtype, options)
    header = ["", "texts/s", "speed of flodl / its speed, bar 1.00", "", "spread", "scores apart"]
    return "\n\n".join([table(header, rows), *notes])


def _predicted(
    folder: Path, texts: list[str], dtype: str, options: argparse.Namespace
) -> list[list[str]]:
    from transformers import AutoModelForSequenceClassification as Reference, AutoTokenizer

    from flodl.hf import AutoModelForSequenceClassification

    kind = {} if dtype == "float32" else {"dtype": dtype}
    opening: Any = {"device": options.device, **kind}
    ours = AutoModelForSequenceClassification.from_pretrained(folder, **opening)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    theirs: Any = Reference.from_pretrained(folder, dtype=getattr(torch, dtype))
    theirs = theirs.to(options.device).eval()

    def scores() -> Tensor:
        found = [{one.label: one.score for one in row} for row in ours.predict(texts)]
        return torch.tensor([[row[label] for label in ours.labels] for row in found])

    @torch.inference_mode()
    def reference() -> Tensor:
        order = sorted(range(len(texts)), key=lambda row: -len(texts[row].split()))
        found = []
        for first in range(0, len(texts), 32):
            batch = tokenizer(
                [texts[row] for row in order[first : first + 32]],
                padding=True,
                return_tensors="pt",
            ).to(options.device)
            found.append(theirs(**batch).logits.float().softmax(-1).cpu())
        return torch.cat(found)[torch.tensor(order).argsort()]

    subjects: Mapping[str, Callable[[], Tensor]] = {
        f"flodl, {dtype}": scores,
        f"transformers, sorted by length, {dtype}": reference,
    }
    apart = float((scores() - reference()).abs().max())
    # Every subject ends with its scores on the host, so no work of the GPU is left over.
    taken = interleaved(subjects, options.rounds)
    mine = taken[f"flodl, {dtype}"]
    return [
        [
            name,
            f"{len(texts) / float(middle(each, '.9f')):.1f}",
            f"{median_ratio(each, mine):.2f}",
            "" if each is mine else judged(median_ratio(each, mine) >= 1.0),
            spread(ratios(each, mine)),
            f"{apart:.1e}",
        ]
        for name, each in taken.items()
    ]


def program_rows(words: Sequence[str], options: argparse.Namespace) -> str:
    """The sections of another program's page, on this device."""
    with tempfile.TemporaryDirectory() as made:
        target = Path(made) / "page.md"
        small = ["--quick"] if options.quick else []
        command = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:], *small]
        command += ["--device", options.device, "--output", str(target)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        text = target.read_text(encoding="utf-8")
    # Its title becomes a line, and its sections go one level down.
    _, _, body = text.partition("\n")
    return body.strip().replace("\n## ", "\n### ")


def measure(options: argparse.Namespace, kept: Kept) -> None:
    """Measure what was asked for, and keep each row at once."""
    began = [time.monotonic()]
    where = environment("torch", "flodl", "transformers").rsplit(", ", 1)
    if options.device != "cpu":
        where[0] = f"{torch.cuda.get_device_name(torch.device(options.device))}; {where[0]}"
    stamp = {"where": where[0], "date": where[1]}

    def keep(name: str, row: Mapping[str, object]) -> None:
        began.append(time.monotonic())
        kept.rows[name] = {**stamp, **row, "seconds": round(began[-1] - began[-2], 1)}
        kept.write()
        sys.stderr.write(f"gpu: {name} is measured\n")

    budget = Budget(options.seconds)
    if MODELS in options.parts:
        names = wanted(options.models, kept, stamp)
        for name, row in model_rows(names[: budget.rows(names, kept)], options):
            keep(name, {"cells": row})
            if not budget.allows(expected(name, kept)):
                break
    others: dict[str, Callable[[], str]] = {
        part: partial(program_rows, words, options) for part, words in PROGRAMS.items()
    }
    others[PREDICTIONS] = partial(prediction_rows, options)
    for name in wanted([part for part in others if part in options.parts], kept, stamp):
        if budget.allows(expected(name, kept)):
            keep(name, {"text": others[name]()})


def expected(name: str, kept: Kept) -> float:
    """Seconds that a row will take: what it took before, else what rows of its part take."""
    before = kept.rows.get(name, {}).get("seconds")
    return float(before or EXPECTED.get(name, EXPECTED[MODELS]))


def plan(options: argparse.Namespace, kept: Kept) -> str:
    """What a call will measure in its time, in this order, and what is left to the next one."""
    names = options.models if MODELS in options.parts else []
    others = [part for part in (*PROGRAMS, PREDICTIONS) if part in options.parts]
    rows, total, today = [], 0.0, {"date": ""}  # as on a day without rows
    for name in (*wanted(names, kept, today), *wanted(others, kept, today)):
        seconds = expected(name, kept)
        fits = total + seconds <= options.seconds
        total += seconds if fits else 0.0
        known = "measured" if "seconds" in kept.rows.get(name, {}) else "expected"
        rows.append([name, f"{seconds:.0f}", known, f"{total:.0f}" if fits else "the next call"])
    return table(["row", "seconds", "", "done after"], rows)


class Budget:
    """How long a call may take.

    Args:
        seconds: Of the whole call.
    """

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def allows(self, seconds: float) -> bool:
        """Whether a row that takes so long would end in time."""
        return time.monotonic() + seconds <= self._ends

    def rows(self, names: Sequence[str], kept: Kept) -> int:
        """How many of some rows fit in, from the first on; one always does."""
        sums = itertools.accumulate(expected(name, kept) for name in names)
        return max(1, sum(map(self.allows, sums)))


def wanted(names: Sequence[str], kept: Kept, stamp: Mapping[str, str]) -> list[str]:
    """The rows to measure: those without a figure, then older ones, and none of today."""
    missing = [name for name in names if name not in kept.rows]
    older = [name for name in names if name in kept.rows]
    return missing + [n for n in older if {**kept.rows[n], **stamp} != kept.rows[n]]


def assembled(options: argparse.Namespace, kept: Kept) -> str:
    """The page of all rows that are kept."""
    header = ["model", "plain ms", *list(WAYS)[1:], f"auto / best, bar {BESIDE_THE_BEST}", ""]
    header += ["spread of auto", "rounds", "chosen, or why it runs plainly"]
    rows = [kept.rows[name]["cells"] for name in networks() if name in kept.rows]
    machines = {_machine(kept.rows[name]): None for name in networks() if name in kept.rows}
    missing = [name for name in networks() if name not in kept.rows]
    parts = ["## Ten models", *machines, table(header, rows)]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.")
    titles = {PREDICTIONS: "Predictions of a model of bert-base's size"}
    for name in (*PROGRAMS, PREDICTIONS):
        row = kept.rows.get(name)
        text = [_machine(row), row["text"]] if row else ["Not measured yet."]
        parts += [f"## {titles.get(name, name.capitalize())}", *text]
    small = ["Quick run with the smallest sizes: no figure here counts."] if options.quick else []
    intro = (
        "Each part names its machine. Interleaved rounds, medians and the middle 80 %. Ten models: "
        "time per step as a ratio to plain PyTorch with Adam as it comes; below 1 is faster. "
        "*fused* and *compile* are by hand. *cuda_graph* and *auto* are engines of flodl. "
        f"Engines are told that the training takes {options.total_steps:,} steps, too few for "
        "torch's autotuning; rows of 2026-11-26 told them 2,500 and knew no graph in *auto*. "
        "*auto / best* is auto with a pure step by the best of all ways. PASS also needs that "
        "neither way of auto is slower than plain. "
        f"`{options.command}`"
    )
    return "\n\n".join(["# Rows of a GPU", intro, *small, *parts]).rstrip()


def _machine(row: Mapping[str, str]) -> str:
    return f"{row['where']}, {row['date']}."


# --- The command -------------------------------------------------------------------------------


def options_from(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line("gpu", __doc__, rounds=5)
    parser.add_argument(
        "--list", action="store_true", help="list what ran on a GPU, and what never did"
    )
    parser.add_argument("--ran", nargs=2, type=Path, help="keep what `pytest -m gpu` ran here")
    parser.add_argument("--device", default="cuda", help="cpu tries the program")
    parser.add_argument("--models", nargs="+", choices=list(networks()), default=list(networks()))
    every = [MODELS, PREDICTIONS, *PROGRAMS]
    parser.add_argument("--parts", nargs="+", choices=every, default=every)
    parser.add_argument("--steps", type=int, help="steps of a turn; default: 0.3 s of plain")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="start no row that would end later"
    )
    parser.add_argument("--plan", action="store_true", help="print what each row will take")
    parser.add_argument("--sentences", type=int, default=256)
    small = {"models": ["mlp"], "rounds": 1, "steps": 1, "settle": 1, "sentences": 4}
    small |= {"total_steps": 100, "patience": 5}
    parser.set_defaults(
        settle=50,
        patience=90,
        turn=0.3,
        total_steps=700_000,
        small=False,
        threads=None,
        memory="kept",
        no_routing=False,
    )
    return read_options(parser, argv, small=True, **small)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish, or list.

    Raises:
        SystemExit: With :data:`NO_GPU` if the device is not here.
    """
    options = options_from(argv)
    if options.list:
        publish(never_run(planned()), options.output)
        return
    if options.plan:
        publish(plan(options, Kept.beside(options.output or PAGE)), None)
        return
    if options.ran:
        put(RAN, f"{json.dumps(what_ran(*options.ran), indent=1)}\n".encode())
        return
    if options.device != "cpu" and not torch.cuda.is_available():
        sys.stderr.write(
            "gpu: this machine has no CUDA device that torch can use, so nothing was measured; "
            "type: python -m benchmarks.gpu --list\n"
        )
        raise SystemExit(NO_GPU)
    # A quick run shows its own rows only, and leaves nothing for the page.
    kept = Kept({}, None) if options.quick else Kept.beside(options.output)
    measure(options, kept)
    publish(assembled(options, kept), options.output)


if __name__ == "__main__":
    main()
