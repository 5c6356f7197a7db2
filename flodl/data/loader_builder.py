"""The settings of a loader, collected one call at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from flodl.data.counts import positive_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from flodl.data.loader import DataLoader
    from flodl.data.sampler import Sampler


@final
class LoaderBuilder:
    """Collects the arguments of :class:`~flodl.data.loader.DataLoader` one call at a time.

    Args:
        dataset: The data set.
        make: Makes the loader.
    """

    def __init__(self, dataset: object, make: Callable[..., DataLoader]) -> None:
        self._dataset = dataset
        self._make = make
        self._batch_size: int | None = None
        self._options: dict[str, object] = {}

    def batch_size(self, batch_size: int) -> LoaderBuilder:
        """Set the samples per batch; the only setting without a default."""
        self._batch_size = positive_integer("batch_size", batch_size)
        return self

    def device(self, device: torch.device | str) -> LoaderBuilder:
        """Set the device for the batches."""
        return self._set("device", device)

    def seed(self, seed: int) -> LoaderBuilder:
        """Set the seed, which decides the order together with the epoch."""
        return self._set("seed", seed)

    def shuffle(self, shuffle: bool) -> LoaderBuilder:
        """Draw a new order each epoch, or not."""
        return self._set("shuffle", shuffle)

    def sampler(self, sampler: Sampler) -> LoaderBuilder:
        """Decide the order with your own sampler."""
        return self._set("sampler", sampler)

    def names(self, names: Sequence[str]) -> LoaderBuilder:
        """Name the tensors of a batch."""
        return self._set("names", names)

    def drop_last(self, drop_last: bool) -> LoaderBuilder:
        """Leave out a last batch that is not full, or keep it."""
        return self._set("drop_last", drop_last)

    def join_remainder(self, join_remainder: bool = True) -> LoaderBuilder:
        """Let a last batch of one sample join the one before it."""
        return self._set("join_remainder", join_remainder)

    def streaming(self, streaming: bool | None = True) -> LoaderBuilder:
        """Read in each epoch (True), before the first one (False), or as the data need (None)."""
        return self._set("streaming", streaming)

    def prefetch(self, batches: int | None) -> LoaderBuilder:
        """Read this many batches ahead on a thread."""
        return self._set("prefetch", batches)

    def workers(self, processes: int) -> LoaderBuilder:
        """Read with this many processes."""
        return self._set("workers", processes)

    def cache(self, most_bytes: bool | int = True) -> LoaderBuilder:
        """Keep samples in memory as they are read; random transforms then act once per sample."""
        return self._set("cache", most_bytes)

    def vram_max_usage(self, usage: float) -> LoaderBuilder:
        """Set the part of a CUDA device's memory that may be in use."""
        return self._set("vram_max_usage", usage)

    def build(self) -> DataLoader:
        """Make the loader.

        Raises:
            ValueError: No batch size was set.
        """
        if self._batch_size is None:
            raise ValueError("a loader needs a batch size: call .batch_size(n) before .build()")
        return self._make(self._dataset, self._batch_size, **self._options)

    def _set(self, option: str, value: object) -> LoaderBuilder:
        self._options[option] = value
        return self
