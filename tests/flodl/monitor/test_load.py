"""The mean load between two questions."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from flodl.monitor import GpuSnapshot, ResourceSample
from flodl.monitor.sampling import LoadAverage

HOUR = 3600.0


class Machine:
    """Measures what the test says."""

    def __init__(self) -> None:
        self.readings: list[ResourceSample] = []

    def sample(self) -> ResourceSample:
        return self.readings.pop(0)


class Watched(LoadAverage):
    """Reads when the test says so, and not by itself within the hour."""

    def __init__(self) -> None:
        self.machine = Machine()
        super().__init__(self.machine, period=HOUR)

    def reads(self, *readings: ResourceSample) -> None:
        for reading in readings:
            self.machine.readings.append(reading)
            self.read()

    def first(self, reading: ResourceSample) -> ResourceSample:
        self.machine.readings.append(reading)
        return self.take()


@pytest.fixture
def load() -> Iterator[Watched]:
    load = Watched()
    yield load
    load.close()


def cpu(percent: float | None, used: int = 1) -> ResourceSample:
    return ResourceSample(percent, used, 100)


def test_the_first_answer_is_measured_at_once(load):
    assert load.first(cpu(40.0)) == cpu(40.0)


def test_later_answers_are_means_of_what_was_read_in_between(load):
    load.first(cpu(40.0))
    load.reads(cpu(10.0), cpu(30.0), cpu(None, used=7))
    assert load.take() == cpu(20.0, used=7), "percentages are averaged, of memory the newest counts"
    assert load.take() == cpu(20.0, used=7), "nothing was read since"
    load.reads(cpu(90.0))
    assert load.take() == cpu(90.0)


def test_the_utilisation_of_each_gpu_is_averaged(load):
    def gpus(first: float | None, second: float | None) -> ResourceSample:
        return ResourceSample(
            gpus=(GpuSnapshot(0, "A", first, 1, 8), GpuSnapshot(1, "B", second, 2, 8))
        )

    load.first(ResourceSample())
    load.reads(gpus(10.0, None), gpus(50.0, 80.0))
    assert load.take() == gpus(30.0, 80.0)


def test_readings_are_taken_beside_the_program_until_it_is_closed():
    before = set(threading.enumerate())  # a monitor of another test may be about to end its own
    load = LoadAverage(period=0.01)
    first = load.take()
    (reader,) = [one for one in set(threading.enumerate()) - before if one.name == "flodl-load"]
    while load.take() is first:
        reader.join(0.01)
        assert reader.is_alive()
    load.close()
    assert not reader.is_alive()
