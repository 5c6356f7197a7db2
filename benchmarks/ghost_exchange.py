"""What an average costs over Gloo on this machine, beside the formula of the ghost cluster."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from benchmarks.measure import table
from flodl.ranks.simulate import Exchange

SMALL, LARGE = 4, 64 * 2**20
"""Bytes from which latency and bandwidth are taken, with two ranks."""
SIZES = (2**20, 16 * 2**20, LARGE)
RANKS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True)
class Measured:
    """Median milliseconds of an all-reduce."""

    ranks: int
    bytes: int
    ms: float


def measure(ranks: int, sizes: tuple[int, ...] = (SMALL, *SIZES)) -> list[Measured]:
    """Average tensors between so many processes of one thread each."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (ranks, sizes, folder), nprocs=ranks)  # type: ignore[no-untyped-call]
        found = torch.load(Path(folder) / "found", weights_only=True)
    return [Measured(ranks, size, ms) for size, ms in zip(sizes, found, strict=True)]


def calibrated(pair: list[Measured]) -> Exchange:
    """Take latency and bandwidth from two ranks: two messages, of which each carries half."""
    by_size = {one.bytes: one.ms for one in pair}
    latency = by_size[SMALL] / 2
    return Exchange(
        bytes=LARGE,
        bandwidth=LARGE / ((by_size[LARGE] - 2 * latency) / 1000),
        latency_ms=latency,
    )


def section() -> str:
    """Return the part of the page."""
    found = {ranks: measure(ranks) for ranks in RANKS}
    wire = calibrated(found[2])
    rows = []
    for ranks, measured in found.items():
        for one in measured:
            told = Exchange(
                bytes=one.bytes, bandwidth=wire.bandwidth, latency_ms=wire.latency_ms
            ).ms(ranks)
            size = f"{one.bytes / 2**20:g} MiB" if one.bytes > SMALL else f"{one.bytes} B"
            rows.append([str(ranks), size, f"{told:.2f}", f"{one.ms:.2f}", f"{one.ms / told:.2f}"])
    figures = table(["ranks", "bytes", "formula ms", "measured ms", "measured / formula"], rows)
    return f"""## What an average costs

All-reduce over Gloo, processes of one thread on this machine, medians. The formula is
`2 (W-1)/W · bytes/bandwidth + 2 (W-1) · latency`. From two ranks: bandwidth
{wire.bandwidth / 1e9:.2f} GB/s ({wire.bandwidth * 8 / 1e9:.1f} Gbit/s), latency
{wire.latency_ms:.3f} ms. These ranks share one memory and the cores of one processor. The formula
gives every rank a link and a processor of its own. The last column shows the difference from three
ranks on.

{figures}
"""


def _rank(rank: int, ranks: int, sizes: tuple[int, ...], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    medians = []
    for size in sizes:
        values = torch.zeros(size // 4)
        times = []
        for turn in range(23 if size < LARGE else 11):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(values)
            if turn > 2:
                times.append((time.perf_counter() - began) * 1000)
        medians.append(statistics.median(times))
    if rank == 0:
        torch.save(medians, f"{folder}/found")
    dist.destroy_process_group()


if __name__ == "__main__":
    print(section())
