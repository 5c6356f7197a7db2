"""Ranks that are killed at random moments: does the training continue, how soon, and whole?

Run with ``python -m benchmarks.kills [--output docs/benchmarks/kills.md]``. Each run is a training
of two ranks under ``torchrun``. A rank drawn at random is killed (SIGKILL) at a random moment while
both train; once per run one is stopped for three seconds (SIGSTOP). The run must end with exit code
0, and its record must prove that every sample of every epoch was trained once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from benchmarks.measure import (
    command_line,
    judged,
    page,
    publish,
    read_options,
    table,
)
from flodl import Batch, Callback, FlodlError, RunDirectory, TensorDataSet, Trainer
from flodl.train.callbacks import TrainingRun
from flodl.train.run.verify import verify_run

MODES = ("nccl-cadence", "cpu-async", "sync", "nccl-async", "cpu-cadence")
MS = (8.0, 20.0)
"""Simulated milliseconds per batch."""
B = 16
EPOCH = 350
"""Batches: 2 s for ranks that never wait."""
CHECKPOINT_STEPS = 60
GAPS = (0.1, 3.5)
"""Seconds of training between two strikes."""
STOPPED = 3.0
"""Seconds for which a rank is stopped."""
LIMIT = 30.0
"""Seconds within which a training has to go on."""
PATIENCE = 120.0
"""Seconds after which it counts as hung."""


# --- The training, as each of the ranks runs it --------------------------------------------------


class Progress(Callback):
    """Writes down when this rank trains its first batch, and how far it is."""

    def __init__(self, folder: Path) -> None:
        self._rank = os.environ["RANK"]
        self._folder = folder
        self._first = True

    def on_step_end(self, _run: TrainingRun) -> None:
        """Write down the first one."""
        if self._first:
            self._first = False
            restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
            here = json.dumps({"pid": os.getpid(), "at": time.monotonic()})
            _appear(self._folder / f"trains-{self._rank}-{restart}", here)

    def on_train_end(self, _run: TrainingRun) -> None:
        """Say that nobody is to be killed any more."""
        _appear(self._folder / "ended", self._rank)


def _appear(path: Path, text: str) -> None:
    """Write a file that nobody can see half of."""
    unfinished = path.with_name(f".{path.name}-{os.getpid()}")
    unfinished.write_text(text)
    unfinished.rename(path)


def train(folder: Path, mode: str, epochs: int) -> None:
    """Train as one of the ranks."""
    inputs = torch.randn(EPOCH * B, 4, generator=torch.Generator().manual_seed(0))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        value: Tensor = (model(batch[0]) - batch[1]).square().mean()
        return value

    with RunDirectory.create(folder / "runs") as run:
        (
            Trainer.builder(
                lambda _: nn.Linear(4, 1), lambda ps: torch.optim.Adam(ps, lr=1e-3), loss
            )
            .dataset(TensorDataSet(inputs, inputs.sum(1, keepdim=True)))
            .batch_size(B)
            .num_epochs(epochs)
            .engine("eager")
            .checkpoint_steps(CHECKPOINT_STEPS)
            .callbacks(Progress(folder))
            .ddp({"mode": mode, "simulate_ms": MS})
            .run_dir(run)
            .run()
        )


# --- The runs, as seen from outside --------------------------------------------------------------


@dataclass
class Outcome:
    """What became of one run."""

    mode: str
    wanted: int
    """Kills that were to be."""
    seconds: list[float] = field(default_factory=list)
    """From each kill until both ranks trained again."""
    stopped: bool = False
    code: int | None = None
    """Exit code of the launcher; None: it hung."""
    proven: str = "no record"
    total: float = 0.0
    """Seconds of the whole run."""

    @property
    def passed(self) -> bool:
        """Whether everything is as it should be."""
        return (
            self.code == 0
            and self.proven == "yes"
            and len(self.seconds) == self.wanted
            and max(self.seconds, default=0.0) <= LIMIT
        )


class Run:
    """A launcher and its ranks."""

    def __init__(self, folder: Path, mode: str, epochs: int, max_restarts: int) -> None:
        self._folder = folder
        self.epochs = epochs
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", f"--max-restarts={max_restarts}"]
        command += ["-m", "benchmarks.kills", "--as-rank", str(folder)]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--mode", mode, "--epochs", str(epochs)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    @property
    def log(self) -> str:
        """What launcher and ranks have said."""
        return (self._folder / "log").read_text(errors="replace")

    @property
    def trains(self) -> bool:
        """Whether neither the training nor the launcher has come to its end."""
        return self.process.poll() is None and not (self._folder / "ended").exists()

    def training_ranks(self, restart: int) -> list[dict[str, Any]] | None:
        """Wait until both ranks of a start train; None where the run ends or hangs before."""
        files = [self._folder / f"trains-{rank}-{restart}" for rank in (0, 1)]
        if self._wait(lambda: all(file.exists() for file in files)):
            return [json.loads(file.read_text()) for file in files]
        return None

    def _wait(self, there: Callable[[], bool]) -> bool:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.trains:
            if there():
                return True
            time.sleep(0.005)
        return False

    def verdict(self) -> str:
        """What the record of samples proves."""
        folders = list((self._folder / "runs").glob("*/"))
        if len(folders) != 1:
            return f"{len(folders)} run directories"
        try:
            found = verify_run(folders[0])
        except FlodlError as error:
            return str(error)
        if found.proven and found.complete_epochs == self.epochs:
            return "yes"
        return f"no: {found.complete_epochs} epochs, {len(found.exceptions)} exceptions"

    def end(self) -> None:
        """Leave no process behind."""
        if self.process.poll() is None:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.process.kill()
            self.process.wait()


def strike(mode: str, kills: int, dice: random.Random) -> Outcome:
    """Carry out one run, and kill its ranks."""
    outcome = Outcome(mode, kills)
    stop_before = dice.randrange(kills) if kills else -1
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        run = Run(Path(name), mode, epochs=3 + 2 * kills, max_restarts=max(8, kills))
        try:
            for number in range(kills):
                ranks = run.training_ranks(number)
                if ranks is None:
                    break
                if number == stop_before:
                    time.sleep(dice.uniform(*GAPS))
                    outcome.stopped = _stop(ranks[dice.randrange(2)]["pid"])
                time.sleep(dice.uniform(*GAPS))
                victim = ranks[dice.randrange(2)]["pid"]
                if not run.trains or not psutil.pid_exists(victim):
                    break
                os.kill(victim, signal.SIGKILL)
                killed = time.monotonic()
                again = run.training_ranks(number + 1)
                if again is None:
                    break
                outcome.seconds.append(max(rank["at"] for rank in again) - killed)
            with suppress(subprocess.TimeoutExpired):
                outcome.code = run.process.wait(timeout=PATIENCE)
            outcome.proven = run.verdict()
            outcome.total = time.monotonic() - began
            if not outcome.passed:
                sys.stderr.write(run.log)
        finally:
            run.end()
    return outcome


def _stop(pid: int) -> bool:
    """Stop a process for a while."""
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return False
    return True


# --- The page ------------------------------------------------------------------------------------


def described(options: argparse.Namespace, found: Sequence[Outcome]) -> str:
    """Describe what was found."""
    seconds = [second for outcome in found for second in outcome.seconds]
    wanted = sum(outcome.wanted for outcome in found)
    longest = max(seconds, default=0.0)
    verdicts = [
        ("every run ends with exit code 0", all(one.code == 0 for one in found)),
        ("every sample of every epoch trained once", all(one.proven == "yes" for one in found)),
        (f"{wanted} kills, and the training went on", len(seconds) == wanted),
        (f"within {LIMIT:g} s (the longest: {longest:.1f} s)", longest <= LIMIT),
    ]
    rows = [
        [
            str(number),
            one.mode,
            f"{len(one.seconds)} of {one.wanted}",
            "yes" if one.stopped else "no",
            "hung" if one.code is None else str(one.code),
            one.proven,
            f"{statistics.median(one.seconds):.1f}" if one.seconds else "",
            f"{max(one.seconds):.1f}" if one.seconds else "",
            f"{one.total:.0f}",
        ]
        for number, one in enumerate(found, 1)
    ]
    header = ["run", "mode", "kills", "stopped for 3 s", "exit code", "proven"]
    middle = f"{statistics.median(seconds):.1f} s" if seconds else "nothing to tell"
    return page(
        options,
        "Kills: a training whose ranks die at random moments",
        f"Two ranks of {MS[0]:g} and {MS[1]:g} ms per batch "
        f"(simulated), {EPOCH} batches per epoch, a checkpoint after each epoch and every "
        f"{CHECKPOINT_STEPS} steps. Seed {options.seed}.",
        table(["", ""], [[what, judged(good)] for what, good in verdicts]),
        f"From a kill until both ranks train again: median {middle}. Most of it is the start "
        "of Python and torch, and the launcher, which watches its ranks and stops the other "
        "one.",
        table([*header, "median s", "longest s", "whole run s"], rows),
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line("kills", __doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=5, help="in each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--as-rank", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    parser.add_argument("--epochs", type=int, help=argparse.SUPPRESS)
    options = read_options(parser, argv, runs=1, kills=1)
    if options.as_rank is not None:
        train(options.as_rank, options.mode, options.epochs)
        return
    dice = random.Random(options.seed)
    found = []
    for number in range(options.runs):
        found.append(strike(MODES[number % len(MODES)], options.kills, dice))
        sys.stderr.write(f"run {number + 1} of {options.runs}: {found[-1]}\n")
    publish(described(options, found), options.output)
    sys.exit(not all(one.passed for one in found))


if __name__ == "__main__":
    main()
