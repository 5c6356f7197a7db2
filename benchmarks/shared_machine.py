"""Trainings on a shared machine: alone, beside two busy processes, and two at once.

Three models train in each situation with plain torch as it comes, with one thread, with sleeping
threads (``OMP_WAIT_POLICY=passive``), and with the Trainer's engines. Each training has a process
of its own.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from benchmarks.measure import (
    NOT_YET,
    Bar,
    command_line,
    in_turns,
    median_ratio,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from benchmarks.rows import Kept
from benchmarks.shared_machine_subject import DEFAULT, MODELS, OURS
from flodl.openmp import VARIABLES

ROOT = Path(__file__).resolve().parents[1]

OF_BEST = Bar(1.15)
"""Time with engine auto by the time of the best of the three plain ways."""

OF_PLAIN = Bar(1.00)
"""Time with engine auto by the time of plain torch as it comes."""

DEFAULT_OF_PLAIN = Bar(1.15)
"""Time with the default engine by the time of plain torch as it comes."""

SITUATIONS = ("alone", "two busy", "two at once")

AS_IT_COMES = "as it comes"
WAYS: dict[str, dict[str, str]] = {
    AS_IT_COMES: {},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    OURS: {},
    DEFAULT: {},
}
"""Way -> variables of its process."""

BUSY = "while True: pass"

_CLEARED = (*VARIABLES, "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GLIBC_TUNABLES", "FDL_PLAN")


@dataclass(frozen=True, slots=True)
class Taken:
    """One training.

    Attributes:
        seconds: Of the training. The limit, if it did not end before.
        total: With the imports.
        ended: Whether it ended before the limit.
    """

    seconds: float
    total: float
    ended: bool = True


@final
class Subject:
    """A process that is ready to train."""

    def __init__(self, way: str, variables: Mapping[str, str], model: str, scale: float) -> None:
        environ = {name: text for name, text in os.environ.items() if name not in _CLEARED}
        words = ["benchmarks.shared_machine_subject", way, model, str(scale)]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words],
            env={**environ, **variables},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait_for("ready", 120.0)
        self._imports = time.perf_counter() - began

    def go(self) -> None:
        """Start the training."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self._started = time.perf_counter()

    def result(self, limit: float) -> Taken:
        """Wait for the end of the training, at most until ``limit`` seconds after its start."""
        try:
            line = self._wait_for("{", self._started + limit - time.perf_counter())
        except TimeoutError:
            self._process.kill()
            self._end()
            return Taken(limit, self._imports + limit, ended=False)
        self._end()
        seconds = float(json.loads(line)["seconds"])
        return Taken(seconds, self._imports + seconds)

    def _end(self) -> None:
        self._reader.join()
        self._process.communicate()  # closes the pipes

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line)
        self._lines.put("")

    def _wait_for(self, begin: str, seconds: float) -> str:
        due = time.perf_counter() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, due - time.perf_counter()))
            except queue.Empty:
                raise TimeoutError(begin) from None
            if line.startswith(begin):
                return line
            if not line:
                raise RuntimeError(f"a training ended with exit code {self._process.wait()}")


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep cores busy with other processes."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        time.sleep(0.2 if others else 0.0)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(
    situation: str, way: str, variables: Mapping[str, str], model: str, options: Namespace
) -> Taken:
    """Train once in a situation; of two at once, return the one that took longer."""
    number = 2 if situation == "two at once" else 1
    subjects = [Subject(way, variables, model, options.scale) for _ in range(number)]
    with busy(2 if situation == "two busy" else 0):
        for subject in subjects:
            subject.go()
        return max((s.result(options.limit) for s in subjects), key=lambda taken: taken.seconds)


def measure(
    ways: Mapping[str, Mapping[str, str]], model: str, options: Namespace
) -> dict[str, dict[str, list[Taken]]]:
    """Situation -> way -> what each round gave."""

    def train(name: str) -> Taken:
        situation, _, way = name.partition(": ")
        return measured(situation, way, ways[way], model, options)

    # All situations of a way stand beside each other in a round, so drift affects all alike.
    names = [f"{situation}: {way}" for situation in SITUATIONS for way in ways]
    found = in_turns(names, train, options.rounds, warmup=0)
    return {one: {way: found[f"{one}: {way}"] for way in ways} for one in SITUATIONS}


# --- The page ----------------------------------------------------------------------------------


Rounds = dict[str, dict[str, list[Taken]]]


def _row(taken: Taken) -> list[object]:
    return [round(taken.seconds, 4), round(taken.total, 4), taken.ended]


def kept_of(models: Mapping[str, Rounds]) -> dict[str, Any]:
    """The figures as JSON values."""
    return _models(models, _row)


def read(rows: Mapping[str, Any]) -> dict[str, Rounds]:
    """The figures that are kept: model -> situation -> way -> rounds."""
    return _models(rows, lambda one: Taken(*one))


def _models(models: Mapping[str, Any], convert: Any) -> dict[str, Any]:
    return {
        model: {
            situation: {way: [convert(one) for one in rounds] for way, rounds in ways.items()}
            for situation, ways in rows.items()
        }
        for model, rows in models.items()
    }


def seconds(rounds: Sequence[Taken]) -> list[float]:
    """The seconds of each round."""
    return [taken.seconds for taken in rounds]


def shown(rounds: Sequence[Taken]) -> str:
    """The median in seconds, marked if the training was ended at the limit."""
    middle = statistics.median(seconds(rounds))
    return f"{'>' if cut(rounds) else ''}{middle:.2f}"


def cut(rounds: Sequence[Taken]) -> bool:
    """Whether the median is the limit, so that the true one is not known."""
    return sum(not taken.ended for taken in rounds) > len(rounds) // 2


def best_of(ways: Mapping[str, Sequence[Taken]]) -> str:
    """The way with the smallest median, without those of flodl."""
    plain = [way for way in ways if way not in (OURS, DEFAULT)]
    return min(plain, key=lambda way: statistics.median(seconds(ways[way])))


def compared(ways: Mapping[str, Sequence[Taken]], way: str, base: str, bar: Bar) -> list[str]:
    """A way of flodl beside another way: ratio with its spread, and the verdict.

    A training that was ended at the limit gives a bound. Where the bound is on the wrong side of
    the bar, nothing is decided.
    """
    if way not in ways:
        return [NOT_YET, NOT_YET]
    late, slow = cut(ways[way]), cut(ways[base])
    if late and slow:
        return ["both at the limit", "not decided"]
    mine, theirs = seconds(ways[way]), seconds(ways[base])
    ratio = median_ratio(mine, theirs)
    verdict = bar.verdict(ratio)
    if (late and bar.passes(ratio)) or (slow and not bar.passes(ratio)):
        verdict = "not decided"
    sign = ">" if late else "<" if slow else ""
    return [f"{sign}{ratio:.2f} ({spread(ratios(mine, theirs))})", verdict]


def trainings_table(models: Mapping[str, Rounds]) -> str:
    """One row for each model and situation."""
    rows = []
    for model, rounds in models.items():
        for situation, ways in rounds.items():
            best = best_of(ways)
            total = statistics.median(taken.total for taken in ways[OURS])
            seen = (shown(ways[way]) if way in ways else NOT_YET for way in WAYS)
            figures = [*seen, f"{total:.2f}", best]
            verdicts = [
                *compared(ways, OURS, best, OF_BEST),
                *compared(ways, OURS, AS_IT_COMES, OF_PLAIN),
                *compared(ways, DEFAULT, AS_IT_COMES, DEFAULT_OF_PLAIN),
            ]
            rows.append([model, situation, f"{len(ways[OURS])}", *figures, *verdicts])
    header = ["model", "situation", "rounds", *(f"{way}, s" for way in WAYS)]
    header += [f"{OURS} with imports, s", "best plain way", f"{OURS} / best", "bar"]
    for way in (OURS, DEFAULT):
        header += [f"{way} / {AS_IT_COMES}", "bar"]
    return table(header, rows)


def pairs_table(models: Mapping[str, Rounds]) -> str:
    """One row for each model and situation: the default engine beside plain torch as it comes."""
    rows = []
    for model, rounds in models.items():
        for situation, ways in rounds.items():
            both = (ways[AS_IT_COMES], ways[DEFAULT])
            shares = [f"{shown(way)} ({spread(seconds(way), '.1f')})" for way in both]
            verdict = compared(ways, DEFAULT, AS_IT_COMES, DEFAULT_OF_PLAIN)
            rows.append([model, situation, f"{len(both[0])}", *shares, *verdict])
    header = ["model", "situation", "rounds", f"{AS_IT_COMES}, s", f"{DEFAULT}, s"]
    return table([*header, f"{DEFAULT} / {AS_IT_COMES}", "bar"], rows)


def text_of(
    trainings: Mapping[str, Rounds], pairs: Mapping[str, Rounds], options: Namespace
) -> str:
    """The page."""
    return page(
        options,
        "A shared machine",
        "Rounds in turns, medians; ratios are medians of the ratios within a round, with the range "
        "of all rounds.",
        "*As it comes*, *one thread* and *passive* are plain loops of torch; *auto* and "
        "*eager* are the Trainer with these engines; eager is the default. *auto* is in its "
        "first run, so it finds no decision. Seconds are those of the training, without "
        "imports. The best plain way is the one with the smallest median. *Two busy* are two "
        "processes of Python that count. Of two trainings at once, the slower one counts. A "
        "training that is not done after some seconds is ended there: `>8.00`.",
        trainings_table(trainings),
        "## The default beside plain PyTorch, in many rounds",
        "Beside other programs, the threads of OpenMP wait for each other at the end of each "
        "operation. A thread that has to wait for a core holds up the others, so the time of one "
        "and the same program varies widely. A few rounds cannot compare two programs there.",
        pairs_table(pairs),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("shared_machine", __doc__, rounds=3)
    parser.add_argument("--scale", type=float, default=1.0, help="length of the trainings")
    parser.add_argument("--limit", type=float, default=8.0, help="seconds of a training")
    parser.add_argument(
        "--pairs", action="store_true", help="only the default and plain torch, for more rounds"
    )
    parser.add_argument("--only", choices=MODELS, action="append", help="measure these models")
    options = read_options(parser, argv, rounds=1, scale=0.02, limit=2.0, only=[MODELS[0]])
    # The page holds what several calls with --only have measured.
    options.command = f"{parser.prog}{' --quick' if options.quick else ''}"
    kept = Kept.beside(options.output)
    parts = {name: read(kept.rows.get(name, {})) for name in ("trainings", "pairs")}
    part = "pairs" if options.pairs else "trainings"
    ways = {AS_IT_COMES: {}, DEFAULT: {}} if options.pairs else WAYS
    for model in options.only or MODELS:
        parts[part][model] = measure(ways, model, options)
        kept.rows[part] = kept_of(parts[part])
        kept.write()
    publish(text_of(parts["trainings"], parts["pairs"], options), options.output)


if __name__ == "__main__":
    main()
