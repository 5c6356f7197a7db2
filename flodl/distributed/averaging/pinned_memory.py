"""Copy from a GPU to host memory, on a separate stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from flodl.distributed.averaging.buckets import Buckets, Slot


@final
class PinnedCopy:
    """Pinned host memory for a copy of the buckets on a GPU.

    Copies run on a side stream, so that training continues meanwhile.

    Args:
        slots: Slots of the buckets.
        device: Device of the buckets.

    Attributes:
        host: The copy in host memory; valid after :meth:`wait`.
    """

    def __init__(self, slots: Sequence[Slot], device: torch.device) -> None:
        self.host = Buckets(slots, torch.device("cpu"), pinned=True)
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def start(self, stage: Buckets) -> None:
        """Start to copy to the host; do not change ``stage`` until :meth:`wait`."""
        # The training stream fills the buckets, and before that it reads this pinned memory.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            self.host.copy_(stage)
            self._copied.record()

    def wait(self) -> None:
        """Wait for the copy; before this, the host would read old values."""
        self._copied.synchronize()
