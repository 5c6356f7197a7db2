"""The timeline: sampling on a thread, events from any thread, questions."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given, strategies as st

from flodl.monitor.resources import GpuSnapshot, ResourceSample, ResourceSampler
from flodl.monitor.timeline import Timeline
from flodl.monitor.timeline_records import (
    EventKind,
    TimelineEvent,
    TimelineSample,
)
from tests.rows import each_row
from tests.waiting import wait_for

GIB = 1024**3


def gpu(util, device=0):
    return GpuSnapshot(device=device, name="H200", util=util, reserved=GIB, total=4 * GIB)


def utilisations(utils, step=100.0):
    """One sample every `step` milliseconds with these percentages on device 0."""
    return [
        TimelineSample(step * index, 50.0, (GIB, 8 * GIB), [gpu(util)])
        for index, util in enumerate(utils)
    ]


class Counting:
    """A sampler that counts, and moves the clock by `seconds` at every sample."""

    def __init__(self, clock=None, seconds=0.1):
        self.count, self.clock, self.seconds = 0, clock, seconds
        self.threads = set()

    def sample(self):
        self.count += 1
        self.threads.add(threading.get_ident())
        if self.clock is not None:
            self.clock.now += self.seconds
        return ResourceSample(float(self.count), 100 + self.count, 1000, (gpu(3.0),))


def flodl_threads():
    return [one for one in threading.enumerate() if one.name == "flodl-timeline"]


@pytest.mark.case("runtime", 48)
def test_a_second_below_the_threshold_is_one_idle_gap_and_sync_times_are_averaged():
    utils = [2.0 if 5 <= index <= 14 else 80.0 for index in range(30)]
    events = [TimelineEvent(10, "sync_end", {"ms": 2}), TimelineEvent(20, "sync_end", {"ms": 4})]
    timeline = Timeline.from_samples(utilisations(utils), events)
    assert timeline.idle_gaps(0, 5, 500) == [(500, 1500)]
    assert timeline.idle_gaps(0, 5, 1000) == [(500, 1500)]
    assert timeline.idle_gaps(0, 5, 1001) == []
    assert timeline.summary().sync_avg_ms == 3.0


def test_a_gap_may_reach_to_the_last_sample_and_the_threshold_itself_is_busy():
    timeline = Timeline.from_samples(utilisations([5.0, 4.999, 0.0, 0.0]))
    assert timeline.idle_gaps(0, 5, 0) == [(100, 300)]


def test_a_device_that_is_not_there_or_does_not_tell_counts_as_busy():
    samples = utilisations([0.0, None, 0.0, math.nan, 0.0])
    samples.append(TimelineSample(500.0, 1.0, None, []))
    timeline = Timeline.from_samples(samples)
    assert timeline.idle_gaps(0, 5, 0) == [(0, 100), (200, 300), (400, 500)]
    assert timeline.idle_gaps(7, 100, 0) == []


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.sampled_from([None, 0.0, 4.0, 5.0, 90.0])), max_size=40
    ),
    st.sampled_from([0.0, 4.0, 5.0, 50.0]),
    st.integers(0, 400),
)
def test_idle_gaps_are_those_a_brute_force_search_finds(steps, threshold, shortest):
    times = [float(sum(step for step, _ in steps[:index])) for index in range(len(steps))]
    utils = [util for _, util in steps]
    samples = [TimelineSample(t, None, None, [gpu(u)]) for t, u in zip(times, utils, strict=True)]
    idle = [util is not None and util < threshold for util in utils]
    expected = []
    for first in range(len(idle)):
        for last in range(first, len(idle)):
            whole = all(idle[first : last + 1])
            longest = (first == 0 or not idle[first - 1]) and (
                last + 1 == len(idle) or not idle[last + 1]
            )
            if whole and longest:
                end = times[min(last + 1, len(times) - 1)]
                if end - times[first] >= shortest:
                    expected.append((times[first], end))
    assert Timeline.from_samples(samples).idle_gaps(0, threshold, shortest) == expected


def test_summary_counts_starts_and_averages_ends(clock):
    timeline = Timeline(clock=clock)
    for kind, fields in [
        ("epoch_start", {"epoch": 0}),
        ("sync_start", {}),
        ("sync_start", {}),
        ("sync_end", {"ms": 5.0}),
        ("cpu_avg_start", {}),
        ("cpu_avg_end", {"ms": 1}),
        ("cpu_avg_end", {"ms": 2}),
        ("anchor", {"from": 10, "to": 12}),
        ("throttle", {"rank": 1}),
        ("throttle", {"rank": 0}),
    ]:
        timeline.event(kind, **fields)
    clock.now += 2.5
    summary = timeline.summary()
    assert (summary.total_ms, summary.sample_count, summary.event_count) == (2500, 0, 10)
    assert (summary.sync_count, summary.sync_avg_ms) == (2, 5.0)
    assert (summary.cpu_avg_count, summary.cpu_avg_avg_ms) == (1, 1.5)
    assert (summary.anchor_count, summary.throttle_count) == (1, 2)
    empty = Timeline.from_samples([]).summary()
    assert (empty.sync_avg_ms, empty.cpu_avg_avg_ms, empty.gpu_idle_pct) == (None, None, {})


def test_idle_share_is_of_the_samples_that_hold_the_device():
    samples = utilisations([4.9, 5.0, None, 0.0])
    samples.append(TimelineSample(900.0, 1.0, None, [gpu(0.0, device=1)]))
    assert Timeline.from_samples(samples).summary().gpu_idle_pct == {0: 50.0, 1: 100.0}


def test_every_kind_is_taken_as_member_and_as_string(clock):
    timeline = Timeline(clock=clock)
    fields = {
        "epoch_start": {"epoch": 0},
        "epoch_end": {"epoch": 0, "loss": 0.12345678},
        "sync_start": {},
        "sync_end": {"ms": 1.5},
        "cpu_avg_start": {},
        "cpu_avg_end": {"ms": 2},
        "anchor": {"from_": 3, "to": 4},
        "throttle": {"rank": 2},
        "idle": {"dev": 0, "ms": 7.5},
        "plan": {"window": 4, "counts": [25, 10]},
        "wait": {"ms": 3.5},
        "guard": {"rank": 1, "what": "not finite"},
        "skip": {"count": 1},
        "worker_lost": {"rank": 1},
        "restart": {"count": 2},
        "custom": {"label": "lr drop"},
    }
    assert list(fields) == list(EventKind)
    for kind, given_fields in fields.items():
        clock.now += 0.001
        timeline.event(kind, **given_fields)
        timeline.event(EventKind(kind), **given_fields)
    forms = [event.as_json() for event in timeline.events]
    assert forms[::2] == forms[1::2]
    assert forms[0] == {"t": 1.0, "k": "epoch_start", "epoch": 0}
    assert forms[2] == {"t": 2.0, "k": "epoch_end", "epoch": 0, "loss": 0.123457}
    assert forms[12] == {"t": 7.0, "k": "anchor", "from": 3, "to": 4}


@each_row(
    ("kind", "fields", "message"),
    [
        ("epoch_begin", {"epoch": 1}, "'epoch_begin' is not a kind of timeline event; use one of"),
        ("epoch_end", {"epoch": 1}, r"takes epoch \(a whole number\), loss \(a number\), but was"),
        ("sync_start", {"ms": 1}, "takes no fields, but was given ms"),
        ("throttle", {"rank": 0.5}, "rank of an event 'throttle' must be a whole number, not 0.5"),
        ("idle", {"dev": 0, "ms": True}, "ms of an event 'idle' must be a number, not True"),
        ("custom", {"label": 3}, "label of an event 'custom' must be text, not 3"),
        ("plan", {"window": 1, "counts": [1, 2.5]}, "counts .* must be a list of whole numbers"),
        ("plan", {"window": 1, "counts": [True]}, "counts of an event 'plan' must be a list of"),
        ("plan", {"window": 1, "counts": "12"}, "counts of an event 'plan' must be a list of"),
        ("wait", {"ms": "long"}, "ms of an event 'wait' must be a number, not 'long'"),
        ("guard", {"rank": 1}, r"takes rank \(a whole number\), what \(text\), but was given rank"),
        ("worker_lost", {}, r"takes rank \(a whole number\), but was given nothing"),
        ("restart", {"count": 1.5}, "count of an event 'restart' must be a whole number, not 1.5"),
    ],
)
def test_an_event_with_other_fields_is_refused(kind, fields, message):
    timeline = Timeline()
    with pytest.raises(ValueError, match=message):
        timeline.event(kind, **fields)
    assert timeline.events == []


def test_an_event_before_the_start_is_kept_and_carries_its_time(clock):
    sampler = Counting(clock)
    timeline = Timeline(1, clock=clock, sampler=sampler)
    clock.now += 0.25
    timeline.event("custom", label="before")
    assert sampler.count == 0
    timeline.start()
    wait_for(lambda: timeline.sample_count >= 3)
    timeline.stop()
    assert [event.t_ms for event in timeline.events] == [250.0]
    assert [sample.t_ms for sample in timeline.samples[:3]] == [350.0, 450.0, 550.0]


def test_starting_twice_is_one_thread_and_stopping_joins_it():
    sampler = Counting()
    timeline = Timeline(1, sampler=sampler)
    timeline.start()
    timeline.start()
    assert len(flodl_threads()) == 1
    wait_for(lambda: sampler.count > 5)
    timeline.stop()
    assert flodl_threads() == []
    assert len(sampler.threads) == 1
    stopped_at = timeline.sample_count
    timeline.stop()
    assert timeline.sample_count == stopped_at == sampler.count


def test_sampling_goes_on_after_a_second_start():
    with Timeline(1, sampler=Counting()) as timeline:
        wait_for(lambda: timeline.sample_count >= 2)
    first = timeline.sample_count
    with timeline:
        wait_for(lambda: timeline.sample_count > first)
    times = [sample.t_ms for sample in timeline.samples]
    assert times == sorted(times)


def test_a_stop_leaves_a_sampler_behind_that_hangs(capsys):
    let_go = threading.Event()

    class Hanging:
        def sample(self):
            let_go.wait(60)
            return ResourceSample()

    timeline = Timeline(1, sampler=Hanging())
    timeline.start()
    (thread,) = flodl_threads()
    timeline.stop()
    assert thread.is_alive()
    assert "the sampler did not return within 1 s" in capsys.readouterr().err
    let_go.set()
    thread.join()


def test_a_sampler_that_raises_ends_the_sampling_with_one_warning(capsys):
    class Broken:
        def sample(self):
            raise OSError("no /proc here")

    with Timeline(1, sampler=Broken()) as timeline:
        wait_for(lambda: not flodl_threads())
        timeline.event("custom", label="still taken")
    assert timeline.sample_count == 0
    assert len(timeline.events) == 1
    assert capsys.readouterr().err.count("no more samples, training continues") == 1


def test_memory_is_bounded_and_the_newest_stay(clock):
    sampler = Counting(clock)
    timeline = Timeline(0.01, clock=clock, sampler=sampler, max_samples=10)
    for number in range(25):
        timeline.event("custom", label=str(number))
    timeline.start()
    wait_for(lambda: sampler.count > 40)
    timeline.stop()
    assert timeline.sample_count == 10
    assert [sample.cpu for sample in timeline.samples] == list(
        map(float, range(sampler.count - 9, sampler.count + 1))
    )
    assert [event.fields["label"] for event in timeline.events] == [str(n) for n in range(15, 25)]


def test_events_from_many_threads_are_all_there_in_the_order_of_time():
    timeline = Timeline(1, sampler=Counting())

    def emit(rank):
        for _ in range(200):
            timeline.event("throttle", rank=rank)

    threads = [threading.Thread(target=emit, args=(rank,)) for rank in range(6)]
    with timeline:
        for thread in threads:
            thread.start()
        reads = [len(timeline.events) + timeline.summary().event_count for _ in range(50)]
        for thread in threads:
            thread.join()
    times = [event.t_ms for event in timeline.events]
    assert reads == sorted(reads)
    assert times == sorted(times)
    ranks = [event.fields["rank"] for event in timeline.events]
    assert [ranks.count(rank) for rank in range(6)] == [200] * 6


def test_records_come_into_the_order_of_time():
    samples = utilisations([1.0, 2.0, 3.0])
    events = [TimelineEvent(700.0, "sync_start"), TimelineEvent(3.0, "sync_start")]
    timeline = Timeline.from_samples(reversed(samples), events)
    assert [sample.t_ms for sample in timeline.samples] == [0.0, 100.0, 200.0]
    assert [event.t_ms for event in timeline.events] == [3.0, 700.0]
    assert timeline.elapsed_ms == 700.0


@each_row("name", ["poll_interval_ms", "max_samples"])
def test_a_setting_that_is_not_positive_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} of a timeline must be above 0, not 0"):
        Timeline(**{name: 0})


def test_this_machine_is_sampled_without_being_told_how():
    with Timeline(5) as timeline:
        # The load of the processor needs two readings, which may be far apart on a busy machine.
        wait_for(lambda: any(sample.cpu is not None for sample in timeline.samples))
    host = ResourceSampler().sample()
    (used, total) = timeline.samples[-1].ram
    assert 0 < used < total == host.ram_total
