"""What one average costs: bytes, number of ranks, bandwidth and latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

DEFAULT_BYTES = 46_758_048
"""Float32 parameters of a ResNet-18: 11,689,512 times 4 bytes."""
DEFAULT_BANDWIDTH = 1.25e9
"""Bytes per second of 10 Gbit/s Ethernet."""
DEFAULT_LATENCY_MS = 0.05
"""Milliseconds of one message between two hosts of a local network over TCP."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A ring all-reduce between ranks whose links are alike and work at the same time.

    Each of ``W`` ranks sends ``W - 1`` parts of ``bytes / W`` to add them up and as many again to
    give out the sums, one after the other, so that an average takes
    ``2 (W-1)/W · bytes/bandwidth + 2 (W-1) · latency``
    (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", 2009; the cost of a message is that of R. Hockney's model, 1994).

    Measure bandwidth and latency on the wire in question: ``docs/benchmarks/ghost.md`` does so for
    Gloo on one machine. The defaults are a ResNet-18 on 10 Gbit/s Ethernet.

    Raises:
        ValueError: A figure is not finite, or below 0; a bandwidth of 0.
    """

    bytes: int = DEFAULT_BYTES
    """What is averaged: parameters, or gradients, with the floating buffers."""
    bandwidth: float = DEFAULT_BANDWIDTH
    """Bytes per second that a rank sends while it receives as many."""
    latency_ms: float = DEFAULT_LATENCY_MS
    """Milliseconds before the first byte of a message is there."""

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise ValueError(f"bytes={self.bytes!r}: it must be at least 0")
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(
                f"bandwidth={self.bandwidth!r}: give bytes per second above 0, such as 1.25e9 "
                "for 10 Gbit/s"
            )
        if not (math.isfinite(self.latency_ms) and self.latency_ms >= 0):
            raise ValueError(f"latency_ms={self.latency_ms!r}: it must be a number of at least 0")

    def ms(self, ranks: int) -> float:
        """Return the milliseconds of one average of so many ranks; 0 for one rank."""
        messages = 2 * (ranks - 1)
        return messages * (1000 * self.bytes / ranks / self.bandwidth + self.latency_ms)
