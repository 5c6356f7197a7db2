"""Saving and loading 400 MB against safetensors, and what a save in the background costs.

Run with ``python -m benchmarks.checkpoint_io [--output docs/benchmarks/checkpoint_io.md]``. Cold
means that the system keeps no page of the file in memory. Loading ends in the tensors of a model,
as nobody needs the values elsewhere.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from benchmarks.measure import environment, median_ratio, publish, table
from flodl import files
from flodl.checkpoint import load_checkpoint_file
from flodl.checkpoint.container import write_container
from flodl.checkpoint.store import checkpoint_strings
from flodl.train.training_state import Parts, Position, TrainingState
from flodl.worker import CpuWorker

LAYERS = 100
WIDTH = 1024
MEGABYTES = LAYERS * WIDTH * WIDTH * 4 / 1e6
START = Position(0, 0, 0)
PIECE = 1 << 22


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--output", type=Path, help="also write the page there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        page = measure(Path(folder), options.rounds)
    publish(page, options.output)


def measure(folder: Path, rounds: int) -> str:
    """Measure everything, and describe it as a page."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    saving = saves(savers(tensors, folder), rounds)
    loading = loads(model, tensors, folder, rounds)
    background = blocked(model, folder, rounds)
    return "\n\n".join(
        [
            "# Checkpoints: saving, loading, and saving in the background",
            f"{environment('torch', 'safetensors')}. {MEGABYTES:.0f} MB in {LAYERS} tensors, "
            f"median of {rounds} rounds. The ratio is that of safetensors' time to ours within a "
            "round: above 1, ours is faster. Ours computes a checksum of every byte, too. "
            "`python -m benchmarks.checkpoint_io`",
            "## Saving",
            saving_table(saving),
            "*Durable* means that the call returns when the disk has the file, which is how "
            "checkpoints are always saved; safetensors itself does not wait, so an `fsync` is "
            "added. *Replacing* writes over a file that is there, as every save of a training "
            "but the first does.",
            "## Loading into a model",
            loading_table(loading),
            "*Disk* is what the disk needs to deliver the bytes: reading them into one small "
            "buffer. Nothing cold can be faster than that.",
            "## What training waits for",
            background_table(background),
            "The background save copies the state in memory and writes the copy on another "
            "thread; *first* also has to get the memory for it from the system.",
        ]
    )


# --- Saving -----------------------------------------------------------------------------------


def savers(tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Callable[[], object]]:
    """Ways to save, by what the table calls them."""
    theirs, ours = folder / "model.safetensors", folder / "model.fdl"
    strings = checkpoint_strings(None, "")

    def write(*, durable: bool) -> None:
        with files.replacing(ours, durable=durable) as file:
            write_container(file, tensors, strings, rewindable=True, fetch=tensors.__getitem__)

    def write_theirs(*, durable: bool) -> None:
        save_file(dict(tensors), theirs)
        if durable:
            synchronise(theirs)

    def first(path: Path, save: Callable[..., None], *, durable: bool) -> Callable[[], None]:
        def run() -> None:
            path.unlink(missing_ok=True)
            save(durable=durable)

        return run

    return {
        "safetensors, new": first(theirs, write_theirs, durable=False),
        "flodl, new": first(ours, write, durable=False),
        "safetensors, replacing": lambda: write_theirs(durable=False),
        "flodl, replacing": lambda: write(durable=False),
        "safetensors, new, durable": first(theirs, write_theirs, durable=True),
        "flodl, new, durable": first(ours, write, durable=True),
        "safetensors, replacing, durable": lambda: write_theirs(durable=True),
        "flodl, replacing, durable": lambda: write(durable=True),
    }


def saves(subjects: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each round; the disk has nothing else to do when a save begins."""
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(rounds + 1):
        for name in rotated(list(subjects), number):
            os.sync()
            begin = time.perf_counter()
            subjects[name]()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def saving_table(seconds: Mapping[str, Sequence[float]]) -> str:
    rows = []
    for kind in ("new", "replacing", "new, durable", "replacing, durable"):
        theirs, ours = seconds[f"safetensors, {kind}"], seconds[f"flodl, {kind}"]
        rows.append([kind, milliseconds(theirs), milliseconds(ours), ratio(theirs, ours)])
    return table(["file", "safetensors ms", "flodl ms", "ratio"], rows)


# --- Loading ----------------------------------------------------------------------------------


def loads(
    model: nn.Module, tensors: Mapping[str, Tensor], folder: Path, rounds: int
) -> dict[str, list[float]]:
    """Seconds of each round, by kind; the time to empty the caches is not in them."""
    theirs, ours = folder / "model.safetensors", folder / "model.fdl"
    subjects: dict[str, tuple[Path, Callable[[], object]]] = {
        "disk": (theirs, lambda: read_through(theirs)),
        "safetensors": (theirs, lambda: model.load_state_dict(load_file(theirs))),
        "flodl": (ours, lambda: load_checkpoint_file(ours, model.named_parameters(), [])),
    }
    save_file(dict(tensors), theirs)
    seconds: dict[str, list[float]] = {}
    for temperature in ("cold", "warm"):
        for number in range(rounds + 1):
            for name in rotated(list(subjects), number):
                path, load = subjects[name]
                if temperature == "cold":
                    forget(path)
                begin = time.perf_counter()
                load()
                if number:  # the first round warms up
                    key = f"{name}, {temperature}"
                    seconds.setdefault(key, []).append(time.perf_counter() - begin)
    return seconds


def loading_table(seconds: Mapping[str, Sequence[float]]) -> str:
    rows = []
    for kind in ("cold", "warm"):
        disk, theirs, ours = (
            seconds[f"{name}, {kind}"] for name in ("disk", "safetensors", "flodl")
        )
        cells = [milliseconds(times) for times in (disk, theirs, ours)]
        rows.append([kind, *cells, ratio(theirs, ours)])
    return table(["file", "disk ms", "safetensors ms", "flodl ms", "ratio"], rows)


def rotated(names: list[str], turn: int) -> list[str]:
    turn %= len(names)
    return names[turn:] + names[:turn]


def read_through(path: Path) -> None:
    buffer = bytearray(PIECE)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def forget(path: Path) -> None:
    """Let the system drop the pages of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def synchronise(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Saving in the background -----------------------------------------------------------------


def captured(parts: Parts, former: TrainingState | None) -> TrainingState:
    """Copy the state of a training in one process, which always has it to write."""
    state = TrainingState.capture(parts, START, reuse=former)
    assert state is not None
    return state


def blocked(model: nn.Module, folder: Path, rounds: int) -> dict[str, list[float]]:
    """How long the training thread waits for a save, by kind."""
    path = folder / "last.fdl"
    parts = Parts(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    seconds: dict[str, list[float]] = {"synchronous": [], "first": [], "background": []}
    former: TrainingState | None = None
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        captured(parts, former).write(path)
        seconds["synchronous"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        state = captured(parts, former)
        with CpuWorker() as worker:
            worker.submit(partial(state.write, path))
            seconds["first" if former is None else "background"].append(time.perf_counter() - begin)
        former = state
    del seconds["synchronous"][0]
    return seconds


def background_table(seconds: Mapping[str, Sequence[float]]) -> str:
    whole = statistics.median(seconds["synchronous"])
    rows = [
        [name, milliseconds(times), f"{statistics.median(times) / whole:.1%}"]
        for name, times in seconds.items()
    ]
    return table(["save", "training waits ms", "of the synchronous save"], rows)


# --- Numbers ----------------------------------------------------------------------------------


def milliseconds(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.0f}"


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    return f"{median_ratio(theirs, ours):.2f}"


if __name__ == "__main__":
    main()
