"""Compute the time of one average from bytes, number of ranks, bandwidth and latency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

DEFAULT_BYTES = 46_758_048
"""Float32 parameters of a ResNet-18: 11,689,512 × 4 bytes."""
DEFAULT_BANDWIDTH = 1.25e9
"""Bytes per second of 10 Gbit/s Ethernet."""
DEFAULT_LATENCY_MS = 0.05
"""Milliseconds of one message between two hosts of a local network over TCP."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A ring all-reduce between ranks with equal links that work at the same time.

    Each of ``W`` ranks sends ``W - 1`` parts of ``bytes / W`` to add them up. It then sends as
    many again to distribute the sums, one after the other. So an average takes
    ``2 (W-1)/W · bytes/bandwidth + 2 (W-1) · latency``
    (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", 2009; the cost of a message follows R. Hockney's model, 1994).

    Measure bandwidth and latency on your own network: ``docs/benchmarks/ghost.md`` does so for
    Gloo on one host. The defaults are a ResNet-18 on 10 Gbit/s Ethernet.

    Raises:
        ValueError: A value is not finite or below 0, or the bandwidth is 0.
    """

    bytes: int = DEFAULT_BYTES
    """Size of the averaged tensors: parameters or gradients, and the floating buffers."""
    bandwidth: float = DEFAULT_BANDWIDTH
    """Bytes per second that a rank sends while it receives at the same rate."""
    latency_ms: float = DEFAULT_LATENCY_MS
    """Milliseconds until the first byte of a message arrives."""

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
        """Return the milliseconds of one average over this number of ranks; 0 for one rank."""
        messages = 2 * (ranks - 1)
        return messages * (1000 * self.bytes / ranks / self.bandwidth + self.latency_ms)
