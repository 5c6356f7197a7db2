"""Load of the machine during a run: processor, memory, GPUs.

Sampling is cheap (two small files of ``/proc``). It does not import torch or start CUDA: GPUs are
read only if the program itself uses CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flodl.host_memory import host_memory_bytes, read_head


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """One GPU; memory in bytes as reported by torch's caching allocator of this process."""

    device: int
    name: str
    util: float | None
    """Percent, as the driver averages it; None if the driver does not report it."""
    reserved: int
    total: int


@dataclass(frozen=True, slots=True)
class ResourceSample:
    """One measurement; unknown values are None, or absent from `gpus`."""

    cpu: float | None = None
    """Percent of all cores since the last sample."""
    ram_used: int | None = None
    """Bytes that are not available to new programs."""
    ram_total: int | None = None
    gpus: tuple[GpuSnapshot, ...] = ()

    @property
    def gpu_util(self) -> float | None:
        """Mean utilisation over the GPUs in percent."""
        known = [gpu.util for gpu in self.gpus if gpu.util is not None]
        return sum(known) / len(known) if known else None

    @property
    def vram_spill(self) -> int | None:
        """Bytes of the first GPU that the driver had to move to host memory."""
        return max(0, self.gpus[0].reserved - self.gpus[0].total) if self.gpus else None

    def as_json(self) -> dict[str, Any]:
        """Return ``{"resources": {…} | None, "gpus": […]}``."""
        host = {"cpu": self.cpu, "ram_used": self.ram_used, "ram_total": self.ram_total}
        known = any(value is not None for value in host.values())
        return {
            "resources": host if known else None,
            "gpus": [asdict(gpu) for gpu in self.gpus],
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> ResourceSample:
        """Read the result of :meth:`as_json`.

        Raises:
            KeyError, TypeError: `form` is not such a sample.
        """
        host = form["resources"] or {}
        gpus = tuple(GpuSnapshot(**gpu) for gpu in form["gpus"])
        return cls(host.get("cpu"), host.get("ram_used"), host.get("ram_total"), gpus)


class ResourceSampler:
    """Takes :class:`ResourceSample` values; that of the processor covers the time since the last.

    Args:
        proc: Folder of the kernel's counters. If it is missing (macOS, Windows), psutil is used if
            it is installed.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._ticks = self._read_ticks()
        self._silent: set[int] = set()  # devices whose driver reports no utilisation
        if self._ticks is None:
            _psutil_cpu()  # the first reading only starts the interval

    def sample(self) -> ResourceSample:
        """Measure now."""
        used, total = self._memory()
        return ResourceSample(self._cpu(), used, total, self._gpus())

    def _read_ticks(self) -> tuple[int, int] | None:
        """Return (idle, total) clock ticks since boot."""
        try:
            line, _, _ = read_head(self._proc / "stat").partition(b"\n")
            # cpu user nice system idle iowait irq softirq steal; guest is part of user
            ticks = [int(word) for word in line.split()[1:9]]
            return ticks[3] + ticks[4], sum(ticks)
        except (OSError, ValueError, IndexError):
            return None

    def _cpu(self) -> float | None:
        before, now = self._ticks, self._read_ticks()
        self._ticks = now
        if now is None:
            return _psutil_cpu()
        if before is None or now[1] <= before[1]:
            return None
        idle, total = now[0] - before[0], now[1] - before[1]
        return min(100.0, max(0.0, 100 * (1 - idle / total)))

    def _memory(self) -> tuple[int | None, int | None]:
        try:
            total, available = host_memory_bytes(self._proc)
        except ImportError:
            return None, None
        return total - available, total

    def _gpus(self) -> tuple[GpuSnapshot, ...]:
        torch: Any = sys.modules.get("torch")
        # Querying an unused CUDA would create a context, which takes memory on every GPU.
        if torch is None or not torch.cuda.is_initialized():
            return ()
        found = []
        try:
            for device in range(torch.cuda.device_count()):
                facts = torch.cuda.get_device_properties(device)
                reserved = int(torch.cuda.memory_reserved(device))
                total = int(facts.total_memory)
                util = self._utilisation(torch.cuda, device)
                found.append(GpuSnapshot(device, facts.name, util, reserved, total))
        except RuntimeError:
            return ()  # a broken device will stop the training itself, with a better message
        return tuple(found)

    def _utilisation(self, cuda: Any, device: int) -> float | None:
        if device in self._silent:
            return None
        try:
            return float(cuda.utilization(device))
        except Exception:  # no NVML, no permission, a lost GPU: all have the same effect
            self._silent.add(device)
            return None


def _psutil_cpu() -> float | None:
    try:
        import psutil
    except ImportError:
        return None
    return float(psutil.cpu_percent(interval=None))
