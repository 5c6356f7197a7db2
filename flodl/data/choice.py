"""The choice of a feed: what stays in memory, what is read in each epoch, and what reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from fdl.base.units import format_bytes
from flodl.data.adapters import stays_in_memory
from flodl.data.budget import Memory, host_memory, memory_of
from flodl.data.cache import CachedFeed, SampleStore
from flodl.data.dataset import BatchDataSet, TensorDataSet
from flodl.data.feed import Feed, described, read_rows, resident_bytes, resident_feed
from flodl.data.form import BatchForm
from flodl.data.streaming import StreamingFeed
from flodl.errors import DataError
from flodl.log import verbose
from flodl.setting import whole


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """How a loader reads; see the arguments of :class:`~flodl.data.loader.DataLoader`.

    Raises:
        ValueError: Settings contradict each other, or are not counts.
    """

    streaming: bool | None
    prefetch: int | None
    workers: int
    cache: bool | int
    vram_max_usage: float

    def __post_init__(self) -> None:
        if self.prefetch is not None:
            whole("prefetch", self.prefetch, 0)
        if not isinstance(self.cache, bool):
            whole("cache", self.cache)
        if self.cache and self.streaming is not None:
            verb = "reads samples again in each epoch" if self.streaming else "reads all at once"
            raise ValueError(
                f"cache={self.cache} keeps samples as they are read, and streaming="
                f"{self.streaming} {verb}; leave out one of them"
            )
        if whole("workers", self.workers, 0) == 0:
            return
        if self.streaming is False:
            raise ValueError(
                f"workers={self.workers} read while training continues, and streaming=False reads "
                "everything before; leave out one of them"
            )
        if self.prefetch == 0:
            raise ValueError(
                f"workers={self.workers} read ahead, and prefetch=0 forbids that; leave out one "
                "of them"
            )


def make_feed(
    source: BatchDataSet,
    form: BatchForm,
    device: torch.device,
    *,
    batch_size: int,
    num_batches: int,
    reading: Reading,
) -> tuple[Feed, StreamingFeed | None]:
    """Choose how batches come from a data set.

    Args:
        source: The data set; it has at least one sample.
        form: The properties that all batches share.
        device: The device for the batches.
        batch_size: Samples per batch.
        num_batches: Batches of an epoch.
        reading: The settings of the user.

    Returns:
        The feed, and the part of it that reads in each epoch; ``None`` for a resident data set.

    Raises:
        DataError: The data set must be resident and is too large.
    """
    memory = memory_of(device, vram_max_usage=reading.vram_max_usage)
    in_memory, streaming = stays_in_memory(source), reading.streaming
    if streaming is False or (streaming is None and in_memory and not reading.workers):
        resident = _resident(source, form, device, memory, needed=streaming is False)
        if resident is not None:
            return resident, None
    # Code of the user runs where and when torch's loader would run it, or so that nobody can tell,
    # unless asked otherwise.
    as_torch = not (in_memory or streaming or reading.workers)
    host = torch.device("cpu")
    # From memory to the same memory, a thread would save less time than it takes.
    in_place = isinstance(source, TensorDataSet) and device == host and not reading.workers
    reader = StreamingFeed(
        source,
        host if reading.cache else device,
        form,
        memory=memory,
        batch_size=batch_size,
        num_batches=num_batches,
        prefetch=0 if reading.prefetch is None and (as_torch or in_place) else reading.prefetch,
        workers=reading.workers,
        quiet=as_torch and reading.prefetch is None and not reading.cache,
    )
    if not reading.cache:
        return reader, reader
    store = SampleStore(len(source), _cache_budget(reading.cache))
    return CachedFeed(reader, store, device, memory), reader


def _cache_budget(cache: bool | int) -> Callable[[], int]:
    host = host_memory()
    if isinstance(cache, bool):
        return host.budget
    return lambda: cache // host.processes


def _resident(
    source: BatchDataSet, form: BatchForm, device: torch.device, memory: Memory, *, needed: bool
) -> Feed | None:
    """Load the data set onto the device, or return ``None`` if it does not fit."""
    first = read_rows(source, range(1))
    form.check(first, described(range(1)))
    size = resident_bytes(source, device, form.sample_bytes)
    if size == 0 or memory.holds(size):
        try:
            return resident_feed(source, device, first, form)
        except (torch.OutOfMemoryError, MemoryError):
            if needed:
                raise
        # After the handler: the exception's frames hold the data that was loaded so far.
        if device.type == "cuda":
            torch.cuda.empty_cache()
    elif needed:
        raise _too_large(size, memory.budget(), len(source), device)
    verbose(
        "the data set needs {} on {} and does not fit there: streaming it",
        format_bytes(size),
        device,
    )
    return None


def _too_large(needed: int, budget: int, n: int, device: torch.device) -> DataError:
    limit = (
        "the allowance"
        if device.type == "cuda"
        else "this process' part of half of the available memory"
    )
    return DataError(
        f"the data set needs {format_bytes(needed)} on {device} ({n:,} samples) and {limit} is "
        f"{format_bytes(budget)}; stream it (leave out streaming=False), free some memory, use "
        "fewer samples, or store them in a smaller dtype"
    )
