"""Memory of a model after each use, and a server of eight threads over one model.

The checkpoint has random weights at the size of bert-base. Each part can be measured on its own,
and as often as wanted: its rounds are kept in a JSON file beside the page, which shows all of them.

    python -m benchmarks.hf_memory [--only memory ...] [--rounds 5] [--folder FOLDER]
        [--output docs/benchmarks/hf_memory.md]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.huggingface import material, residence, serving
from benchmarks.huggingface.rates import OURS
from benchmarks.huggingface.residence import IMPORTED, SUBJECTS, Stage
from benchmarks.measure import (
    command_line,
    in_turns,
    judged,
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

PACKAGES = ("torch", "transformers", "tokenizers")
_MIB = 1 / 2**20


@dataclass(frozen=True, slots=True)
class Bench:
    """What a run measures.

    Attributes:
        folder: The checkpoint.
        rounds: Of every part.
        rows: Of a training batch.
        length: Tokens of a row.
        requests: Of one round of serving.
    """

    folder: Path
    rounds: int
    rows: int
    length: int
    requests: int


# --- What is measured --------------------------------------------------------------------------


def stages(bench: Bench) -> Row:
    """The stages of each library, every round in processes of their own."""
    found = in_turns(
        list(SUBJECTS),
        lambda name: residence.measured(name, bench.folder, bench.rows, bench.length),
        bench.rounds,
        warmup=0,
    )
    size = (bench.folder / "model.safetensors").stat().st_size
    return {"rounds": found, "size": size, "batch": [bench.rows, bench.length]}


def pairs(bench: Bench) -> Row:
    """Two processes that use the same files."""
    names = list(SUBJECTS)
    found = in_turns(
        names, lambda name: residence.beside_another(name, bench.folder), bench.rounds, warmup=0
    )
    return {"rounds": found}


def threads(count: int) -> Callable[[Bench], Row]:
    """A server whose operations of torch use so many threads each."""
    return lambda bench: dict(serving.measured(bench.folder, bench.requests, bench.rounds, count))


# --- What is shown -----------------------------------------------------------------------------


def stages_shown(row: Row) -> str:
    """MiB over the imports: one line per stage and library."""
    lines = []
    for stage in residence.STAGES:
        for name, rounds in row["rounds"].items():
            kinds = [_over(one, stage) for one in rounds]
            lines.append(
                [
                    stage,
                    name,
                    *(_shown([one[key] for one in kinds]) for key in ("anon", "file", "all")),
                    _shown([one["peak"] for one in kinds]),
                ]
            )
    header = ["after", "with", "RssAnon", "RssFile", "both", "peak of the stage"]
    rows, length = row["batch"]
    told = (
        f"The file of the weights has {row['size'] * _MIB:.0f} MiB. Figures are MiB over the same "
        "process after its imports, with the spread. *RssFile* is the part of files in memory: "
        "weights as they are in the file, and code of libraries. The system can drop it at any "
        "time and read it again, and processes share it. *RssAnon* belongs to one process. "
        f"{OURS} reads every weight once while it opens a model, to warn of values that are not "
        "finite. The others map the file and read a weight when it is used; of the table of words "
        "they read the rows of a text. Training writes to all weights, so they become *RssAnon*. "
        f"Fine-tuning is {residence.STEPS} steps of AdamW on a batch of {rows} × {length} tokens. "
        f"{residence.FLOOR} maps the weights with `safetensors`, multiplies without modules, and "
        "trains without dropout."
    )
    return f"{table(header, lines)}\n\n{told}"


def _over(stages: Mapping[str, Stage], stage: str) -> Stage:
    """The memory after a stage, over that after the imports."""
    found, base = stages[stage], stages[IMPORTED]
    anon, file = found["anon"] - base["anon"], found["file"] - base["file"]
    peak = found["peak"] - base["anon"] - base["file"]
    return {"anon": anon, "file": file, "all": anon + file, "peak": peak}


def _shown(values: Sequence[float]) -> str:
    low_and_high = spread(values, ".0f", _MIB)
    return f"{middle(values, '.0f', _MIB)} ({low_and_high})"


def pairs_shown(row: Row) -> str:
    """MiB of a process that classified one text, alone and beside another one."""
    lines = []
    for name, rounds in row["rounds"].items():
        cells = [
            _shown([one[when][key] for one in rounds])
            for when in ("one", "two")
            for key in ("private", "proportional")
        ]
        lines.append([name, *cells])
    header = ["with", "private, alone", "Pss, alone", "private, of two", "Pss, of two"]
    told = (
        "MiB of a whole process after one prediction, from `smaps_rollup`, with the spread. "
        "*Private* is what no other process uses. *Pss* adds its part of what it shares. The "
        "second process reads the same files; other processes of the machine share code of "
        "libraries too."
    )
    return f"{table(header, lines)}\n\n{told}"


def threads_shown(row: Row) -> str:
    """Requests per second of each way, beside ours, and whether its answers are equal."""
    seconds = row["seconds"]
    ours = seconds[serving.OURS]
    lines = []
    for name, times in seconds.items():
        unequal, apart = row["unequal"][name], row["difference"][name]
        same = "all, to the bit" if not unequal else f"{unequal} differ, by at most {apart:.0e}"
        lines.append(
            [
                name,
                middle([row["amount"] / one for one in times], ".1f"),
                f"{median_ratio(times, ours):.2f}",
                spread(ratios(times, ours)),
                same,
            ]
        )
    header = ["", "requests/s", "speed of ours / its speed", "spread", "equal to one thread"]
    equal = judged(row["unequal"][serving.OURS] == 0)
    return f"{table(header, lines)}\n\nAll answers of {serving.OURS} are those of one: {equal}."


class Part(NamedTuple):
    """A part of the page."""

    title: str
    measure: Callable[[Bench], Row]
    show: Callable[[Row], str]


_SERVED = "A server of eight threads, {} of torch"
PARTS: Mapping[str, Part] = {
    "memory": Part("Memory after each use of a model", stages, stages_shown),
    "processes": Part("Two processes over one file", pairs, pairs_shown),
    "threads": Part(_SERVED.format("two threads"), threads(2), threads_shown),
    "threads-1": Part(_SERVED.format("one thread"), threads(1), threads_shown),
}
_LISTS = ("rounds", "seconds")


def added(row: Row | None, found: Row) -> Row:
    """The rounds of a part, with those measured before on the same machine and versions."""
    row = continued(row, *PACKAGES)
    if any(found.get(key) != row.get(key) for key in ("amount", "batch", "size")):
        row = continued(None, *PACKAGES)
    merged: dict[str, Any] = {**row, **found}
    for key in _LISTS:
        for name, values in row.get(key, {}).items():
            merged[key][name] = [*values, *found[key][name]]
    for name, count in row.get("unequal", {}).items():
        merged["unequal"][name] += count
        merged["difference"][name] = max(merged["difference"][name], row["difference"][name])
    return merged


def sections(rows: Mapping[str, Row]) -> list[str]:
    """The parts that were measured."""
    shown = []
    for name, part in PARTS.items():
        if name not in rows:
            continue
        row = rows[name]
        rounds = len(next(iter(row[next(key for key in _LISTS if key in row)].values())))
        when = " and ".join(row["dates"])
        count = f", {row['amount']} requests each" if "amount" in row else ""
        shown.append(f"## {part.title}\n\n{part.show(row)}\n\n{rounds} rounds{count}, {when}.")
    return shown


def checkpoint(folder: Path, *, small: bool) -> None:
    """Make the model, if it is not there: of bert-base's size, or narrow for a quick run."""
    if (folder / "config.json").exists():
        return
    if small:
        material.tiny_bert(folder)
    else:
        material.bert(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = command_line("hf_memory", __doc__, rounds=5)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rows", type=int, default=8, help="rows of a training batch")
    parser.add_argument("--length", type=int, default=64, help="tokens of a row")
    parser.add_argument("--requests", type=int, default=64, help="requests of a round")
    parser.add_argument("--folder", type=Path, help="keep the checkpoint here for the next run")
    options = read_options(parser, arguments, rounds=1, rows=2, length=8, requests=16)
    options.command = "python -m benchmarks.hf_memory" + (" --quick" if options.quick else "")
    kept = Kept.beside(options.output)
    with tempfile.TemporaryDirectory() as made:
        folder = (options.folder or Path(made)) / "model"
        if options.only:
            checkpoint(folder, small=options.quick)
        bench = Bench(folder, options.rounds, options.rows, options.length, options.requests)
        for name in options.only:
            sys.stderr.write(f"{name}\n")
            kept.rows[name] = added(kept.rows.get(name), PARTS[name].measure(bench))
            kept.write()  # after each part, so that an interrupted run has it
    intro = (
        "A classifier of bert-base's size in float32, with random weights. Interleaved rounds; "
        "medians; ratios are medians of the ratios of each round; *spread* is the middle 80 %. "
        f"A part is measured with `--only PART`. {OURS} and transformers open the same files."
    )
    text = page(options, "Memory and threads", intro, *sections(kept.rows), packages=PACKAGES)
    publish(text, options.output)


if __name__ == "__main__":
    main()
