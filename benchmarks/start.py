"""From the command to its end: the training of a new project beside the same one by hand.

The project comes from ``fdl init``. Its training has one epoch here. Every call is a new process.
The page also has what nobody can avoid: the interpreter, and the import of torch.

    python -m benchmarks.start [--rounds 15] [--output docs/benchmarks/start.md]
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import (
    Bar,
    command_line,
    in_turns,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    seconds_of,
    spread,
    table,
)
from flodl.data import digits

BY_HAND = "PyTorch by hand"
TORCH = "`import torch`"
TRAIN = "`fdl train`"
ANNOUNCED = "`fdl train quick`: the line with which fdl announces the program"
SHOWN = "`fdl train quick`: the first text of the program on the terminal"
FIRST = "`fdl train quick`: the first line that the program has ended"
BARS = {TRAIN: Bar(0.72, earlier=(0.65,))}
"""The most that a way may take, in times of the script by hand of the same round."""

FROM_FDL = b"fdl: "
"""How a line begins that fdl prints itself, before it starts the program."""

PACKED = Path(sys.modules[digits.__module__].__file__ or "").parent / "uci_digits"
SCRIPT = Path(__file__).with_name("start_by_hand.py")
LIMIT = 120.0
"""Seconds that a call may take before it counts as stuck."""


class FirstLines(NamedTuple):
    """Seconds until the first lines of a call were on its terminal.

    Attributes:
        fdl: That of fdl, which names the program that it starts.
        shown: The first one that the program shows itself. It may replace that line later.
        program: The first one that the program has ended.
    """

    fdl: float
    shown: float
    program: float


def variables() -> dict[str, str]:
    """The environment of a user at a terminal."""
    dropped = ("CI", "FDL_ENV", "FDL_PLAN", "FDL_PROJECT_ROOT")
    return {name: value for name, value in os.environ.items() if name not in dropped}


class Project:
    """A new project, and the calls in it.

    Args:
        folder: Made by ``fdl init``.
        cache: Folder of the decisions of flodl's engines.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        self._fdl = str(Path(sys.executable).with_name("fdl"))
        self._env = variables()
        self._env |= {"FLODL_CACHE_DIR": str(cache), "NO_COLOR": "1", "TERM": "xterm"}
        self._folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [self._fdl, "init", folder.name],
            cwd=folder.parent,
            env=self._env,
            check=True,
            capture_output=True,
        )

    def fdl(self, *words: str) -> str:
        """What ``fdl WORDS`` prints."""
        return self.run([self._fdl, *words])

    def run(self, argv: Sequence[str]) -> str:
        """What a program prints; one that fails would make its figure worthless."""
        done = subprocess.run(
            argv,
            cwd=self._folder,
            env=self._env,
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        if done.returncode:
            raise RuntimeError(f"{argv} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def first_lines(self, *words: str) -> FirstLines:
        """Seconds until ``fdl WORDS`` has put its first lines on a terminal."""
        ours, theirs = pty.openpty()
        start = time.perf_counter()
        process = subprocess.Popen(
            [self._fdl, *words],
            cwd=self._folder,
            env=self._env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            seen, announced, shown, own = b"", 0.0, 0.0, 0.0
            with suppress(OSError):  # the terminal is gone when the last process has ended
                while chunk := os.read(ours, 4096):
                    seen, now = seen + chunk, time.perf_counter() - start
                    *lines, begun = seen.split(b"\n")
                    announced = announced or (now if lines else 0.0)
                    own = own or (now if any(map(_is_of_program, lines)) else 0.0)
                    shown = shown or own or (now if lines and begun.strip() else 0.0)
            if process.wait(LIMIT):
                raise RuntimeError(f"fdl {words} ended with {process.returncode}")
            if not own:
                raise RuntimeError(f"the program of fdl {words} printed no line")
        finally:
            process.kill()
            os.close(ours)
        return FirstLines(announced, shown, own)


def _is_of_program(line: bytes) -> bool:
    return bool(line.strip()) and not line.startswith(FROM_FDL)


def subjects(project: Project, checkpoint: Path) -> dict[str, Callable[[], float | FirstLines]]:
    """Name -> a call that returns its seconds."""
    train = ["train", "--epochs", "1"]
    by_hand = [sys.executable, str(SCRIPT), str(PACKED), str(checkpoint)]
    return {
        BY_HAND: lambda: seconds_of(lambda: project.run(by_hand)),
        "`python -c pass`": lambda: seconds_of(lambda: project.run([sys.executable, "-c", "pass"])),
        TORCH: lambda: seconds_of(lambda: project.run([sys.executable, "-c", "import torch"])),
        TRAIN: lambda: seconds_of(lambda: project.fdl(*train)),
        FIRST: lambda: project.first_lines("train", "quick"),
    }


def by_row(measured: Mapping[str, Sequence[float | FirstLines]]) -> dict[str, list[float]]:
    """The seconds of every row: a call that is timed twice has two."""
    found: dict[str, list[float]] = {}
    for name, taken in measured.items():
        whole = [one for one in taken if not isinstance(one, FirstLines)]
        lines = [one for one in taken if isinstance(one, FirstLines)]
        if whole:
            found[name] = whole
        if lines:
            found[ANNOUNCED] = [one.fdl for one in lines]
            found[SHOWN] = [one.shown for one in lines]
            found[FIRST] = [one.program for one in lines]
    return found


def rows(seconds: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """One row for each way."""
    base = seconds[BY_HAND]
    return [
        [
            name,
            middle(taken, ".3f"),
            spread(taken, ".3f", 1.0),
            *_of_script(name, taken, base),
        ]
        for name, taken in seconds.items()
    ]


def _of_script(name: str, taken: Sequence[float], base: Sequence[float]) -> list[str]:
    """The cells about the ratio to the script by hand; a first line has only its seconds."""
    if name in (ANNOUNCED, SHOWN, FIRST):
        return ["", "", ""]
    ratio = median_ratio(taken, base)
    verdict = BARS[name].verdict(ratio) if name in BARS else ""
    return [f"{ratio:.3f}", spread(ratios(taken, base), ".3f"), verdict]


def accuracy(printed: str) -> str:
    """The accuracy that a training prints."""
    found = re.search(r"accuracy (\S+) on held-out digits", printed)
    if found is None:
        raise RuntimeError(f"a training printed no accuracy:\n{printed}")
    return found[1]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("start", __doc__, rounds=15)
    options = read_options(parser, argv, rounds=1)
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        project = Project(home / "demo", home / "cache")
        checkpoint = home / "by_hand.pt"
        by_hand = accuracy(
            project.run([sys.executable, str(SCRIPT), str(PACKED), str(checkpoint), "1"])
        )
        # The first call asks the program for its options, and the answer is kept.
        told = accuracy(project.fdl("train", "--epochs", "1"))
        ways = subjects(project, checkpoint)
        warmup = 0 if options.quick else 1
        measured = in_turns(list(ways), lambda name: ways[name](), options.rounds, warmup)
    text = page(
        options,
        "Start of a training",
        f"{options.rounds} interleaved rounds of whole processes, medians and the middle 80 %. "
        "The training of a project made by `fdl init`, with one epoch, beside "
        "`benchmarks/start_by_hand.py`. Both train the same network on the same samples with "
        "AdamW as it comes, evaluate it and save a checkpoint. `fdl train` also writes its run "
        "directory, with report and curves, and serves the live page. All files are in the "
        "memory of the system. Ratios are medians of the ratios of each round.",
        table(
            ["", "s", "spread", "of the script by hand", "spread of the ratio", "bar"],
            rows(by_row(measured)),
        ),
        f"Accuracy after one epoch: {by_hand} by hand, {told} by `fdl train`. The initial weights "
        "and the order of the samples differ.",
        packages=("torch", "flodl"),
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
