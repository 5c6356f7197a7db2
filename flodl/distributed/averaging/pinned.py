"""The way from a GPU to host memory and back, on a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from flodl.distributed.averaging.buckets import Buckets, Slot


@final
class PinnedRoad:
    """Pinned host memory for what is in buckets on a GPU.

    Copies run on a side stream, so that training goes on meanwhile.

    Args:
        slots: Of the buckets.
        device: Of the buckets.

    Attributes:
        host: What has arrived, after :meth:`arrive`.
    """

    def __init__(self, slots: Sequence[Slot], device: torch.device) -> None:
        self.host = Buckets(slots, torch.device("cpu"), pinned=True)
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def leave(self, stage: Buckets) -> None:
        """Begin to copy to the host; ``stage`` must stay as it is until :meth:`arrive`."""
        # The training stream has filled the buckets, and before that read what is pinned here.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self.host.copy_(stage)
            self._copied.record()

    def arrive(self) -> None:
        """Wait for the copy: before this the host would read what was there before."""
        self._copied.synchronize()
