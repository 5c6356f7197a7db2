"""How fast batches arrive: our loader beside a bare ``index_select`` and torch's ``DataLoader``.

An MNIST-sized set (60,000×1×28×28) and its labels in memory, shuffled, batches of 128. Then the
same samples behind ``__getitem__``, which are read in each epoch by default and once with
``cache=True``. Then two questions of their own: what one batch costs on top of the gather when the
samples are tiny, and whether reading ahead hides a slow ``get_batch`` behind the step.

    python -m benchmarks.data_feed [--rounds 5] [--device cpu|cuda] [--output docs/benchmarks/…]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, final
from unittest.mock import patch

import torch
import torch.utils.data
from torch import Tensor

from benchmarks.measure import (
    Bar,
    command_line,
    interleaved,
    median_ratio,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
from flodl.data import BatchDataSet, DataLoader, TensorDataSet, streaming
from flodl.data.transfer import Group, Sent, Transfer

SAMPLES = 60_000
BATCH = 128
DEFAULT = "torch DataLoader, default"
BARE = "bare index_select"
OURS = "flodl, resident"
STREAMING = "flodl, streaming"
READING = "flodl, default"
CACHED = "flodl, cache=True"

READ_SECONDS = 0.003
STEP_SECONDS = 0.005
COPY_SECONDS = 0.002
STEPS = 60

BESIDE_STEPS = Bar(1.05)
"""What steps of 5 ms may take by default, by what they take alone."""


class _Samples(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """The same data, one sample at a time."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]


class _Together(_Samples):
    """The same data with the hook that torch's loader has for reading many samples at once."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        rows = torch.tensor(indices)
        return self.images.index_select(0, rows), self.labels.index_select(0, rows)


def _as_is(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch


def consume(batches: Iterable[object]) -> None:
    """Take every batch and let it go."""
    for _ in batches:
        pass


def finished(device: torch.device, work: Callable[[], object]) -> Callable[[], object]:
    """The work, up to the moment when the device is done with it."""

    def run() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def bare(tensors: Sequence[Tensor], batch_size: int) -> Callable[[], object]:
    """One epoch of what no loader can do without: an order, and a gather per batch."""

    def epoch() -> None:
        n = len(tensors[0])
        order = torch.randperm(n).to(tensors[0].device)
        for rows in torch.split(order[: n // batch_size * batch_size], batch_size):
            for tensor in tensors:
                tensor.index_select(0, rows)

    return epoch


def subjects(
    dtype: torch.dtype, device: torch.device, samples: int
) -> dict[str, Callable[[], object]]:
    """Name -> one epoch."""
    images = torch.randint(0, 256, (samples, 1, 28, 28), dtype=torch.uint8).to(dtype)
    labels = torch.randint(0, 10, (samples,))
    ours = {
        OURS: DataLoader(TensorDataSet(images, labels), BATCH, device=device),
        STREAMING: DataLoader(TensorDataSet(images, labels), BATCH, device=device, streaming=True),
    }

    def torchs(data: torch.utils.data.Dataset[tuple[Tensor, Tensor]], **options: object) -> object:
        loader = torch.utils.data.DataLoader(
            data,
            BATCH,
            shuffle=True,
            drop_last=True,
            pin_memory=device.type == "cuda",
            **options,  # type: ignore[arg-type]
        )
        if device.type == "cpu":
            return lambda: consume(loader)
        return lambda: consume(
            [tensor.to(device, non_blocking=True) for tensor in batch] for batch in loader
        )

    plain = torch.utils.data.TensorDataset(images, labels)
    epochs: dict[str, object] = {
        DEFAULT: torchs(plain),  # type: ignore[arg-type]
        "torch DataLoader, 2 worker processes": torchs(plain, num_workers=2),  # type: ignore[arg-type]
        "torch DataLoader, __getitems__": torchs(_Together(images, labels), collate_fn=_as_is),
        BARE: bare([images.to(device), labels.to(device)], BATCH),
    }
    for name, loader in ours.items():
        epochs[name] = lambda loader=loader: consume(loader)
    return {name: finished(device, epoch) for name, epoch in epochs.items()}  # type: ignore[arg-type]


def beside_the_best(seconds: Mapping[str, Sequence[float]]) -> str:
    """Streaming beside torch's loader with its best settings."""
    torchs = [taken for name, taken in seconds.items() if name.startswith("torch")]
    ratio = median_ratio(min(torchs, key=statistics.median), seconds[STREAMING])
    return f"Streaming by torch's best: {ratio:.2f}, bar {Bar(1.0, least=True).verdict(ratio)}."


def throughput(dtype: torch.dtype, device: torch.device, rounds: int, samples: int) -> str:
    """Table of one dtype: samples per second, and the ratios that are promised."""
    seconds = interleaved(subjects(dtype, device, samples), rounds, warmup=1)
    rows = [
        [
            name,
            f"{samples / statistics.median(taken) / 1000:,.0f} k",
            f"{median_ratio(seconds[DEFAULT], taken):.2f}",
            f"{median_ratio(seconds[BARE], taken):.2f}",
            spread(ratios(seconds[BARE], taken)),
        ]
        for name, taken in seconds.items()
    ]
    header = [str(dtype), "samples/s", "× torch default", "× bare index_select", "spread"]
    return table(header, rows) + "\n\n" + beside_the_best(seconds)


def by_sample(device: torch.device, rounds: int, samples: int) -> str:
    """Epochs of a data set with ``__getitem__``, after a first one that fills the cache."""
    data = _Samples(
        torch.randint(0, 256, (samples, 1, 28, 28), dtype=torch.uint8),
        torch.randint(0, 10, (samples,)),
    )
    plain = torch.utils.data.DataLoader(
        data, BATCH, shuffle=True, drop_last=True, pin_memory=device.type == "cuda"
    )
    reading = DataLoader(data, BATCH, device=device)
    cached = DataLoader(data, BATCH, device=device, cache=True)
    first = time.perf_counter()
    consume(cached)
    first = time.perf_counter() - first
    epochs: dict[str, Callable[[], object]] = {
        DEFAULT: lambda: consume([t.to(device) for t in batch] for batch in plain),
        READING: lambda: consume(reading),
        CACHED: lambda: consume(cached),
    }
    seconds = interleaved(
        {name: finished(device, epoch) for name, epoch in epochs.items()}, rounds, warmup=1
    )
    rows = [
        [
            name,
            f"{samples / statistics.median(taken) / 1000:,.0f} k",
            f"{median_ratio(seconds[DEFAULT], taken):.2f}",
            spread(ratios(seconds[DEFAULT], taken)),
        ]
        for name, taken in seconds.items()
    ]
    once = [f"{CACHED}, first epoch (once)", f"{samples / first / 1000:,.0f} k", "", ""]
    return table(["__getitem__, uint8", "samples/s", "× torch default", "spread"], [*rows, once])


def per_batch(device: torch.device, rounds: int, samples: int) -> str:
    """What our loader adds to a gather when the samples are tiny: batches of 4, 16 numbers."""
    inputs, targets = torch.randn(samples, 16), torch.randn(samples, 1)
    loader = DataLoader(TensorDataSet(inputs, targets, names=["x", "y"]), 4, device=device)
    tiny = {
        BARE: finished(device, bare([inputs.to(device), targets.to(device)], 4)),
        OURS: finished(device, lambda: consume(loader)),
    }
    seconds = interleaved(tiny, max(rounds, 7), warmup=2)
    count = samples // 4
    each = {name: statistics.median(taken) / count * 1e6 for name, taken in seconds.items()}
    return table(
        ["tiny batches", "µs per batch"],
        [
            *([name, f"{micros:.2f}"] for name, micros in each.items()),
            ["difference", f"{each[OURS] - each[BARE]:.2f}"],
        ],
    )


class _Slow(BatchDataSet):
    """Takes 3 ms for a batch, without a processor, as a disk does."""

    def __len__(self) -> int:
        return STEPS

    def get_batch(self, indices: Sequence[int]) -> Sequence[Tensor]:
        time.sleep(READ_SECONDS)
        return [torch.tensor(indices)]


@final
class _Copying(Transfer):
    """Stands in for the copy stream of a GPU: a batch takes 2 ms on a thread of its own."""

    def __init__(self) -> None:
        self._stream = ThreadPoolExecutor(1)

    def send(self, batches: Group) -> list[Sent]:
        """Queue the copies."""
        return [Sent(batch, self._stream.submit(self._copy, batch)) for batch in batches]  # type: ignore[arg-type]

    def receive(self, sent: Sent) -> tuple[Tensor, ...]:
        """Wait for a copy."""
        arrived: Future[tuple[Tensor, ...]] = sent.arrival  # type: ignore[assignment]
        return arrived.result()

    def gather(self, tensor: Tensor, rows: Tensor) -> Tensor:
        """Gather into new memory."""
        return tensor.index_select(0, rows)

    def group(self, batch_bytes: int, depth: int) -> int:  # noqa: ARG002
        """Return 1."""
        return 1

    def _copy(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        time.sleep(COPY_SECONDS)
        return batch


def _copied(**settings: Any) -> DataLoader:
    """A loader of slow samples whose batches are copied to a device that is simulated."""
    with patch.object(streaming, "transfer_to", lambda _: _Copying()):
        return DataLoader(_Slow(), 1, **settings)


def hiding(device: torch.device, rounds: int) -> str:
    """Steps of 5 ms alone, with data that is there, and with data that takes 3 ms a batch."""

    def stepping(batches: Callable[[], Iterable[object]]) -> Callable[[], object]:
        def epoch() -> None:
            for _ in batches():
                time.sleep(STEP_SECONDS)

        return epoch

    loaders = {
        "prefetch=2": DataLoader(_Slow(), 1, device=device, prefetch=2),
        "default": DataLoader(_Slow(), 1, device=device),
        "prefetch=2, copies of 2 ms": _copied(prefetch=2),
        "default, copies of 2 ms": _copied(),
    }
    alone = "steps alone"
    ways = {alone: stepping(lambda: range(STEPS))}
    ways |= {name: stepping(lambda own=own: own) for name, own in loaders.items()}  # type: ignore[misc]
    seconds = interleaved(ways, rounds, warmup=1)
    rows = []
    for name, taken in seconds.items():
        ratio = median_ratio(taken, seconds[alone])
        verdict = "" if name == alone else BESIDE_STEPS.verdict(ratio)
        each = f"{statistics.median(taken) / STEPS * 1000:.2f}"
        rows.append([name, each, f"{ratio:.3f}", verdict])
    return table(["3 ms of reading, 5 ms of stepping", "ms per step", "× steps alone", ""], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("data_feed", __doc__, rounds=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads that torch may use")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    options = read_options(parser, argv, rounds=1, samples=2 * BATCH)
    torch.set_num_threads(options.threads)
    device, rounds, samples = torch.device(options.device), options.rounds, options.samples
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    text = page(
        options,
        "Feeding batches",
        f"On {where}. One epoch of {samples:,} samples of 1×28×28, shuffled, batches of {BATCH}; "
        f"{rounds} interleaved rounds, medians, ratios within each round and the middle 80 %.",
        throughput(torch.float32, device, rounds, samples),
        throughput(torch.uint8, device, rounds, samples),
        "The same samples behind `__getitem__`. By default each is read once per epoch, as "
        "torch's loader does; a cache reads each once in all.",
        by_sample(device, rounds, samples),
        "What a batch costs in addition to the gather:",
        per_batch(device, rounds, min(samples, 40_000)),
        "Whether reading is hidden behind the step. The first batch of an epoch has no step to "
        f"hide behind, which is {READ_SECONDS / (STEPS * STEP_SECONDS):.1%} of these epochs. "
        "*Copies* go to a device that is simulated: a thread that takes 2 ms for each batch.",
        hiding(device, rounds),
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
