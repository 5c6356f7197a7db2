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
from fdl.base import files
from flodl.checkpoint import (
    checkpoint_keys,
    load_checkpoint,
    load_checkpoint_file,
    save_checkpoint_file,
)
from flodl.checkpoint.container import write_container
from flodl.checkpoint.store import checkpoint_strings, tensors_by_name
from flodl.graph import FlowBuilder, Graph
from flodl.train.run.loop_state import Position
from flodl.train.run.part_states import Parts
from flodl.train.run.training_state import TrainingState
from flodl.worker import CpuWorker

LAYERS = 100
WIDTH = 1024
START = Position(0, 0, 0)
PIECE = 1 << 22
NO_SLOWER = Bar(1.0)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line("checkpoint_io", __doc__, rounds=7)
    parser.add_argument("--layers", type=int, default=LAYERS, help="4 MB each")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    options = read_options(parser, argv, rounds=1, layers=1)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        text = measure(Path(folder), options)
    publish(text, options.output)


def measure(folder: Path, options: argparse.Namespace) -> str:
    """Measure everything, and describe it as a page."""
    rounds, layers = options.rounds, options.layers
    model = wide(layers)
    # By the names under which `load_checkpoint` looks for them.
    tensors = tensors_by_name(((n, p.detach()) for n, p in model.named_parameters()), [])
    saving = saves(savers(tensors, folder), rounds)
    loading = loads(model, tensors, folder, rounds)
    background = blocked(model, folder, rounds)
    return page(
        options,
        "Checkpoints: saving, loading, and saving in the background",
        f"{layers * WIDTH * WIDTH * 4 / 1e6:.0f} MB in {layers} tensors, {rounds} interleaved "
        "rounds, medians and the middle 80 %. The ratio is that of safetensors' time to ours "
        "within a round: above 1, ours is faster. Ours also computes a checksum of every byte.",
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
        "## Loading a warm file in other situations",
        situations_table(situations(folder, options)),
        "*BERT* has the parameters of BERT-base. A *new model* has memory that was not used "
        "before. Here the ratio is that of our time to safetensors' time.",
        "## What training waits for",
        background_table(background),
        "The background save copies the state in memory and writes the copy on another "
        "thread; *first* also has to get the memory for it from the system.",
        packages=("torch", "safetensors"),
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

    def save(name: str) -> float:
        os.sync()
        return seconds_of(subjects[name])

    return in_turns(list(subjects), save, rounds)


def saving_table(seconds: Mapping[str, Sequence[float]]) -> str:
    rows = []
    for kind in ("new", "replacing", "new, durable", "replacing, durable"):
        theirs, ours = seconds[f"safetensors, {kind}"], seconds[f"flodl, {kind}"]
        rows.append([kind, milliseconds(theirs), milliseconds(ours), *ratio(theirs, ours)])
    return table(["file", "safetensors ms", "flodl ms", "ratio", "spread"], rows)


# --- Loading ----------------------------------------------------------------------------------


def loads(
    model: nn.Module, tensors: Mapping[str, Tensor], folder: Path, rounds: int
) -> dict[str, list[float]]:
    """Seconds of each round, by kind; the time to empty the caches is not in them."""
    theirs, ours = folder / "model.safetensors", folder / "model.fdl"
    subjects: dict[str, tuple[Path, Callable[[], object]]] = {
        "disk": (theirs, lambda: read_through(theirs)),
        "safetensors": (theirs, lambda: model.load_state_dict(load_file(theirs))),
        "flodl": (ours, lambda: from_path(model, ours)),
    }
    save_file({name: p.detach() for name, p in model.named_parameters()}, theirs)
    assert list(tensors) == checkpoint_keys(ours)

    def load(name: str) -> float:
        subject, _, temperature = name.partition(", ")
        path, call = subjects[subject]
        if temperature == "cold":
            forget(path)
        return seconds_of(call)

    seconds: dict[str, list[float]] = {}
    for temperature in ("cold", "warm"):
        names = [f"{name}, {temperature}" for name in subjects]
        seconds |= in_turns(names, load, rounds)
    return seconds


def loading_table(seconds: Mapping[str, Sequence[float]]) -> str:
    rows = []
    for kind in ("cold", "warm"):
        disk, theirs, ours = (
            seconds[f"{name}, {kind}"] for name in ("disk", "safetensors", "flodl")
        )
        cells = [milliseconds(times) for times in (disk, theirs, ours)]
        rows.append([kind, *cells, *ratio(theirs, ours)])
    header = ["file", "disk ms", "safetensors ms", "flodl ms", "ratio", "spread"]
    return table(header, rows)


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


def bert(layers: int) -> nn.Module:
    """Parameters with the shapes of BERT-base, without its embeddings for less than 12 layers."""
    made: list[nn.Module] = [nn.Embedding(30522, 768), nn.Embedding(512, 768)] * (layers >= 12)
    for _ in range(layers):
        made += [*(nn.Linear(768, 768) for _ in range(4)), nn.LayerNorm(768)]
        made += [nn.Linear(768, 3072), nn.Linear(3072, 768), nn.LayerNorm(768)]
    return nn.Sequential(*made)


def situations(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds of each round of both, by situation."""
    layers, rounds = options.layers, options.rounds
    large = partial(wide, layers)
    several = partial(bert, min(12, layers))
    path, stream, graph = from_path, from_stream, from_graph
    return {
        "by its path, large tensors": both(folder, large, path, rounds),
        "by its path, BERT": both(folder, several, path, rounds),
        "by its path, BERT, new model": both(folder, several, path, rounds, new=True),
        "by its path, BERT, float16 file": both(folder, several, path, rounds, half=True),
        "as a stream, large tensors": both(folder, large, stream, rounds),
        "as a stream, BERT, new model": both(folder, several, stream, rounds, new=True),
        "into a graph, BERT": both(folder, several, graph, rounds),
    }


def wide(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))


def from_path(model: nn.Module, path: Path) -> None:
    report = load_checkpoint_file(path, model.named_parameters(), [])
    assert not report.missing


def from_stream(model: nn.Module, path: Path) -> None:
    with path.open("rb") as stream:
        report = load_checkpoint(stream, model.named_parameters(), [])
    assert not report.missing


def from_graph(model: nn.Module, path: Path) -> None:
    assert isinstance(model, Graph)
    assert not model.load_checkpoint(path).missing


def both(
    folder: Path,
    make: Callable[[], nn.Module],
    load: Callable[[nn.Module, Path], None],
    rounds: int,
    *,
    new: bool = False,
    half: bool = False,
) -> dict[str, list[float]]:
    """Seconds of each round of safetensors and of ours.

    Args:
        folder: Where the files are.
        make: Makes the model.
        load: Loads our file.
        rounds: How often.
        new: Make a model for each load, in memory that was not used before.
        half: The files hold float16, the model float32.
    """
    theirs, ours = folder / "other.safetensors", folder / "other.fdl"
    model = FlowBuilder.from_(make()).build() if load is from_graph else make()
    tensors = {name: p.detach() for name, p in model.named_parameters()}
    if half:
        tensors = {name: value.half() for name, value in tensors.items()}
    save_file(tensors, theirs)
    save_checkpoint_file(ours, tensors.items(), [])

    def load_one(name: str) -> float:
        into = model
        if new:
            with torch.device("meta"):
                into = make()
            into = into.to_empty(device="cpu")
        if name == "flodl":
            return seconds_of(lambda: load(into, ours))
        return seconds_of(lambda: into.load_state_dict(load_file(theirs)))

    return in_turns(["safetensors", "flodl"], load_one, rounds)


def situations_table(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    rows = []
    for name, seconds in found.items():
        theirs, ours = seconds["safetensors"], seconds["flodl"]
        reached = median_ratio(ours, theirs)
        cells = [milliseconds(theirs), milliseconds(ours), f"{reached:.2f}"]
        rows.append([name, *cells, spread(ratios(ours, theirs)), NO_SLOWER.verdict(reached)])
    header = ["file", "safetensors ms", "flodl ms", "ratio", "spread", "bar"]
    return table(header, rows)


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
    return middle(seconds, ".0f", 1000)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> list[str]:
    """The ratio and its spread."""
    return [f"{median_ratio(theirs, ours):.2f}", spread(ratios(theirs, ours))]


if __name__ == "__main__":
    main()
