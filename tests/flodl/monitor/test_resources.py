"""Load of the machine, from the kernel's files or from psutil."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from flodl.monitor import GpuSnapshot, ResourceSample, ResourceSampler
from tests.rows import each_row

MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    4000 kB\n"


def counters(proc: Path, *ticks: int) -> None:
    (proc / "stat").write_text("cpu  " + " ".join(map(str, ticks)) + "\ncpu0 1 2 3\n")
    (proc / "meminfo").write_text(MEMINFO)


def test_load_is_what_changed_since_the_last_sample(tmp_path):
    counters(tmp_path, 100, 0, 100, 700, 100, 0, 0, 0)
    sampler = ResourceSampler(proc=tmp_path)
    # 60 busy of 100 ticks; waiting for a disk (the fifth figure) is idle time.
    counters(tmp_path, 140, 0, 120, 730, 110, 0, 0, 0)
    assert sampler.sample() == ResourceSample(pytest.approx(60.0), 12000 * 1024, 16000 * 1024, ())
    assert sampler.sample().cpu is None, "no time has passed"
    counters(tmp_path, 240, 0, 120, 730, 110, 0, 0, 0)
    assert sampler.sample().cpu == 100.0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux's /proc")
def test_this_machine_has_a_load():
    sampler = ResourceSampler()
    sum(range(3_000_000))
    sample = sampler.sample()
    assert sample.cpu is None or 0 <= sample.cpu <= 100
    assert sample.ram_total == psutil.virtual_memory().total
    assert 0 < sample.ram_used < sample.ram_total


@each_row("damage", ["nothing there", "empty", "garbage"])
def test_without_the_kernels_files_psutil_answers(tmp_path, damage):
    if damage != "nothing there":
        text = "" if damage == "empty" else "cpu one two\nMemTotal:\n"
        (tmp_path / "stat").write_text(text)
        (tmp_path / "meminfo").write_text(text)
    sample = ResourceSampler(proc=tmp_path).sample()
    assert 0 <= sample.cpu <= 100
    assert sample.ram_total == psutil.virtual_memory().total


def test_without_anything_to_ask_the_figures_are_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    sample = ResourceSampler(proc=tmp_path).sample()
    assert sample == ResourceSample(None, None, None, ())
    assert sample.as_json() == {"resources": None, "gpus": []}


def test_gpu_figures_combine():
    gib = 1024**3
    gpus = (GpuSnapshot(0, "A", 60.0, 9 * gib, 8 * gib), GpuSnapshot(1, "B", None, gib, 8 * gib))
    sample = ResourceSample(12.5, 1, 2, gpus)
    assert (sample.gpu_util, sample.vram_spill) == (60.0, gib)
    assert json.loads(json.dumps(sample.as_json())) == {
        "resources": {"cpu": 12.5, "ram_used": 1, "ram_total": 2},
        "gpus": [
            {"device": 0, "name": "A", "util": 60.0, "reserved": 9 * gib, "total": 8 * gib},
            {"device": 1, "name": "B", "util": None, "reserved": gib, "total": 8 * gib},
        ],
    }
    assert ResourceSample().gpu_util is None
    assert ResourceSample().vram_spill is None


def test_a_gpu_is_not_touched_before_the_program_uses_it():
    torch = pytest.importorskip("torch")
    sampler = ResourceSampler()
    if not torch.cuda.is_initialized():
        assert sampler.sample().gpus == ()
        assert not torch.cuda.is_initialized()


class TwoGpus:
    """CUDA of a program with two GPUs, of which only the first says how much it is used."""

    def __init__(self):
        self.asked = []

    def is_initialized(self):
        return True

    def device_count(self):
        return 2

    def get_device_properties(self, device):
        return SimpleNamespace(name=f"GPU {device}", total_memory=8)

    def memory_reserved(self, device):
        return device + 1

    def utilization(self, device):
        self.asked.append(device)
        if device == 1:
            raise RuntimeError("no NVML")
        return 42


def test_the_use_of_a_gpu_is_in_every_sample_and_a_silent_driver_is_asked_once(monkeypatch):
    cuda = TwoGpus()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    sampler = ResourceSampler()
    for _ in range(2):
        assert sampler.sample().gpus == (
            GpuSnapshot(0, "GPU 0", 42.0, 1, 8), GpuSnapshot(1, "GPU 1", None, 2, 8)
        )  # fmt: skip
    assert cuda.asked == [0, 1, 0]


@pytest.mark.gpu
def test_a_used_gpu_shows_its_memory():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    held = torch.zeros(1 << 20, device="cuda")
    first = ResourceSampler().sample().gpus[0]
    assert first.name == torch.cuda.get_device_name(0)
    assert held.numel() * 4 <= first.reserved <= first.total
