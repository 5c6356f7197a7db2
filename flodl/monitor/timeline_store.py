"""Samples in little memory: one packed record each instead of a tree of objects."""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterable, Iterator

from flodl.monitor.resources import GpuSnapshot
from flodl.monitor.timeline_records import TimelineSample

_HOST = struct.Struct("<4d")  # t_ms, cpu, used and total memory; nan is what was not measured
_GPU = struct.Struct("<4d")  # device, util, reserved and total memory


class SampleStore:
    """A bounded sequence of samples; the oldest make room for new ones.

    A sample takes about 90 bytes and 32 more per GPU, a fourth of what the objects would take.
    Times, percentages and sizes are kept as float64, hence exactly (sizes up to 8 PiB).

    Args:
        limit: Samples that are kept; None keeps all.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._packed: deque[bytes] = deque(maxlen=limit)
        self._names: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[TimelineSample]:
        return map(self._unpack, tuple(self._packed))

    def append(self, sample: TimelineSample) -> None:
        """Add one sample."""
        used, total = sample.ram if sample.ram is not None else (math.nan, math.nan)
        parts = [_HOST.pack(sample.t_ms, _or_nan(sample.cpu), used, total)]
        for gpu in sample.gpus:
            self._names[gpu.device] = gpu.name
            parts.append(_GPU.pack(gpu.device, _or_nan(gpu.util), gpu.reserved, gpu.total))
        self._packed.append(b"".join(parts))

    def extend(self, samples: Iterable[TimelineSample]) -> None:
        """Add samples in the order given."""
        for sample in samples:
            self.append(sample)

    def copy(self, limit: int | None = None) -> SampleStore:
        """Return an independent sequence of the same samples; costs a pointer for each."""
        made = SampleStore(limit)
        made._packed.extend(self._packed)
        made._names = dict(self._names)
        return made

    def clear(self) -> None:
        """Remove all samples."""
        self._packed.clear()

    @property
    def names(self) -> dict[int, str]:
        """Names of the GPUs seen, by device."""
        return dict(sorted(self._names.items()))

    def _unpack(self, packed: bytes) -> TimelineSample:
        t_ms, cpu, used, total = _HOST.unpack_from(packed)
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
        )


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
