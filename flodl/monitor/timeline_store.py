"""Samples in little memory: one packed record each instead of several objects."""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterable, Iterator

from flodl.monitor.resources import GpuSnapshot
from flodl.monitor.timeline_records import TimelineSample

# t_ms, cpu, used and total memory, busy, rank; nan and a rank of -1 mean unknown.
_HOST = struct.Struct("<5di")
_GPU = struct.Struct("<4d")  # device, util, reserved and total memory


class SampleStore:
    """A bounded sequence of samples; new ones replace the oldest.

    A sample takes about 90 bytes and 32 more per GPU, a fourth of what objects would take. Times,
    percentages and sizes are stored as float64, so they are exact (sizes up to 8 PiB).

    Args:
        limit: Largest number of samples kept; None keeps all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._packed: deque[bytes] = deque(maxlen=limit)
        self._names: dict[int, str] = {}
        self._ranks: set[int] = set()

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[TimelineSample]:
        return map(self._unpack, tuple(self._packed))

    def append(self, sample: TimelineSample) -> None:
        """Add one sample."""
        used, total = sample.ram if sample.ram is not None else (math.nan, math.nan)
        rank = -1 if sample.rank is None else sample.rank
        if rank >= 0:
            self._ranks.add(rank)
        host = (sample.t_ms, _or_nan(sample.cpu), used, total, _or_nan(sample.busy), rank)
        parts = [_HOST.pack(*host)]
        for gpu in sample.gpus:
            self._names[gpu.device] = gpu.name
            parts.append(_GPU.pack(gpu.device, _or_nan(gpu.util), gpu.reserved, gpu.total))
        self._packed.append(b"".join(parts))

    def extend(self, samples: Iterable[TimelineSample]) -> None:
        """Add samples in the order given."""
        for sample in samples:
            self.append(sample)

    def copy(self, limit: int | None = None) -> SampleStore:
        """Return an independent sequence of the same samples; it takes one pointer per sample."""
        made = SampleStore(limit)
        made._packed.extend(self._packed)
        made._names = dict(self._names)
        made._ranks = set(self._ranks)
        return made

    def clear(self) -> None:
        """Remove all samples."""
        self._packed.clear()

    @property
    def names(self) -> dict[int, str]:
        """Names of the GPUs in the samples, by device."""
        return dict(sorted(self._names.items()))

    @property
    def ranks(self) -> list[int]:
        """Ranks in the samples, ascending."""
        return sorted(self._ranks)

    def of(self, rank: int | None = None) -> Iterator[TimelineSample]:
        """Return the samples of one rank; if there are several, None takes the first.

        Ranks on one machine have all measured the same load, so counting several would be wrong.
        """
        if rank is None:
            if len(self._ranks) < 2:
                return iter(self)
            rank = min(self._ranks)
        return (sample for sample in self if sample.rank == rank)

    def _unpack(self, packed: bytes) -> TimelineSample:
        t_ms, cpu, used, total, busy, rank = _HOST.unpack_from(packed)
        return TimelineSample(
            t_ms,
            _or_none(cpu),
            None if math.isnan(used) else (int(used), int(total)),
            tuple(
                GpuSnapshot(
                    device=int(device),
                    name=self._names[int(device)],
                    util=_or_none(util),
                    reserved=int(reserved),
                    total=int(size),
                )
                for device, util, reserved, size in _GPU.iter_unpack(packed[_HOST.size :])
            ),
            None if rank < 0 else rank,
            _or_none(busy),
        )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
