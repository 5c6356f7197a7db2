"""The ghost cluster: figures that can be checked by hand, and exactness in virtual time."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from flodl.ranks.planning.elche import ElCheConfig
from flodl.ranks.planning.schedule import ScheduleConfig, insert
from flodl.ranks.settings import Policy
from flodl.ranks.simulate import (
    Change,
    Cluster,
    Exchange,
    Prediction,
    Work,
    choose,
    predict,
    simulate,
)
from flodl.ranks.simulate.__main__ import main
from tests import fork_server
from tests.rows import each_row

ROOT = Path(__file__).parents[3]
TWO = Cluster(ms=(40, 100), sync_ms=0)
OURS = (Policy.SYNC, Policy.CADENCE, Policy.ASYNC)


def work(policy=Policy.CADENCE, *, ranks=2, epochs=1, batches=350, elche=None, **settings):
    return ScheduleConfig(
        elche=ElCheConfig(world_size=ranks, **(elche or {})),
        policy=policy,
        epochs=epochs,
        batches_per_epoch=batches,
        **settings,
    )


def by_mode(cluster, config):
    return {found.mode: found for found in predict(cluster, config)}


def trained_once(history, config):
    """Whether every batch of the training was trained by exactly one rank."""
    parts = [spans for window in history.windows for spans in window.trained]
    return insert((), *parts) == ((0, config.epochs * config.batches_per_epoch),)


def test_sync_is_as_fast_as_the_slowest_rank():
    found = by_mode(TWO, work())["sync"]
    assert found.batches_per_s == pytest.approx(20.0)
    assert found.efficiency == pytest.approx(20 / 35)
    assert found.idle == pytest.approx((0.6, 0.0))
    assert (found.communication, found.exchanges, found.anchor) == (0.0, 175, None)


def test_sync_pays_for_every_step():
    found = by_mode(replace(TWO, sync_ms=15), work())["sync"]
    assert found.ms == pytest.approx(175 * 115)
    assert found.communication == pytest.approx(15 / 115)
    assert found.idle == pytest.approx((60 / 115, 0.0))


def test_the_last_step_of_an_epoch_may_be_for_some_ranks_only():
    cluster = Cluster(ms=(10, 10, 50), sync_ms=0)
    history = simulate(cluster, work(Policy.SYNC, ranks=3, epochs=2, batches=5))
    assert [window.counts for window in history.windows] == [(1, 1, 1), (1, 1, 0)] * 2
    assert history.ms == pytest.approx(2 * (50 + 10))


def test_cadence_waits_in_the_warm_up_only():
    # 3 batches each (300 ms), then 25 and 10 (1000 ms), 15 ms behind both.
    found = by_mode(replace(TWO, sync_ms=15), work(batches=41))["cadence"]
    assert found.ms == pytest.approx(1330)
    assert found.batches_per_s == pytest.approx(41 / 1.33)
    assert found.idle == pytest.approx((180 / 1330, 0.0))
    assert found.communication == pytest.approx(30 / 1330)
    assert (found.exchanges, found.anchor) == (2, 10)


def test_async_trains_on_up_to_the_overshoot():
    # Two windows of 3 batches, the second planned before the first was measured, then 21 and 8.
    # Rank 0 is held after 2 batches until 315 ms, after 3 until 615 ms, and from 1335 ms on.
    config = work(Policy.ASYNC, batches=35 + 6)
    history = simulate(replace(TWO, sync_ms=15), config)
    assert [window.counts for window in history.windows] == [(3, 3), (3, 3), (21, 8)]
    assert [window.end_ms for window in history.windows] == pytest.approx([315, 615, 1415])
    assert history.waits_ms == pytest.approx((115 + 140 + 65, 0))
    assert history.comm_ms == pytest.approx(15)
    assert history.ms == pytest.approx(1415)


def test_a_fixed_overshoot_holds_the_fast_rank_sooner():
    config = work(Policy.ASYNC, batches=41, max_overshoot=0)
    history = simulate(replace(TWO, sync_ms=15), config)
    assert history.windows[1].end_ms == pytest.approx(630)  # nobody trains before 315
    assert history.comm_ms > 15


def test_solo_is_the_rank_that_is_done_first():
    found = by_mode(replace(TWO, sync_ms=15), work())["solo"]
    assert (found.ms, found.batches_per_s) == (350 * 40, 25.0)
    assert (found.idle, found.communication, found.exchanges) == ((0.0, 1.0), 0.0, 0)
    slowing = replace(TWO, changes=(Change(1000, 0, 4000),))
    # 25 batches in the first second, then 4 s each: rank 1 takes 35 s.
    assert by_mode(slowing, work())["solo"].ms == pytest.approx(35_000)


def test_torch_gives_every_rank_the_same_work():
    found = by_mode(replace(TWO, sync_ms=15), work())
    assert found["torch-ddp"].ms == pytest.approx(175 * 115)
    local = found["torch-postlocalsgd"]
    assert local.ms == pytest.approx(17 * 1015 + 500)
    assert local.exchanges == 17
    assert local.idle == pytest.approx((175 * 60 / local.ms, 0.0))


def test_torch_repeats_batches_to_share_an_epoch_equally():
    found = by_mode(Cluster(ms=(50, 50, 50), sync_ms=0), work(ranks=3, epochs=2, batches=4))
    assert found["torch-ddp"].ms == pytest.approx(2 * 2 * 50)
    assert found["torch-ddp"].batches_per_s == pytest.approx(8 / 0.2)


def test_the_first_batch_of_the_warm_up_is_not_measured():
    starting = replace(TWO, changes=(Change(0, 0, 400), Change(1, 0, 40)))
    history = simulate(starting, work())
    assert history.windows[1].counts == (25, 10)


def test_async_lengthens_windows_for_the_time_that_ranks_are_held():
    history = simulate(replace(TWO, sync_ms=3000), work(Policy.ASYNC, epochs=3))
    assert history.anchor > 10


def test_of_a_long_training_the_beginning_is_predicted():
    long = work(epochs=1000, batches=700)
    for short in (work(epochs=2, batches=700), work(epochs=1, batches=1400)):
        assert predict(TWO, long, horizon=1400)[2].exchanges == predict(TWO, short)[2].exchanges
    assert predict(TWO, work(batches=700), horizon=70) == predict(TWO, work(batches=70))
    assert predict(TWO, work(batches=700), horizon=None) == predict(TWO, work(batches=700))


@pytest.mark.parametrize(
    ("paces", "policy", "least"),
    [
        ((40, 100), Policy.CADENCE, 0.95),
        ((40, 100), Policy.ASYNC, 0.96),
        ((25, 40, 100), Policy.CADENCE, 0.93),
        ((40, 40), Policy.CADENCE, 0.95),
        ((50,), Policy.CADENCE, 0.95),
        ((50,), Policy.ASYNC, 0.95),
    ],
)
def test_five_epochs_come_close_to_the_sum_of_the_speeds(paces, policy, least):
    cluster = Cluster(ms=paces, sync_ms=15)
    config = work(policy, ranks=len(paces), epochs=5)
    found = by_mode(cluster, config)[policy.value]
    assert least <= found.efficiency <= 1


def test_the_anchor_settles_where_costly_averages_are_worth_it():
    found = by_mode(replace(TWO, sync_ms=150), work(epochs=5))["cadence"]
    assert 15 <= found.anchor <= 17
    assert found.communication <= 0.10


# ASYNC cannot cut a window short; a count may stay up to 10 % behind its target.
@each_row(("policy", "least"), [(Policy.CADENCE, 0.92), (Policy.ASYNC, 0.88)])
def test_a_rank_that_slows_down_is_caught_up_with_within_three_windows(policy, least):
    slowing = replace(TWO, sync_ms=15, changes=(Change(4650, 1, 200),))
    config = work(policy, epochs=3)
    history = simulate(slowing, config)
    assert trained_once(history, config)
    planned_before = [window for window in history.windows if window.start_ms <= 4650]
    *_, behind = planned_before
    late = history.windows[len(planned_before) + 3 :][:5]
    before = history.windows[len(planned_before) + 2]
    if policy is Policy.CADENCE:
        assert behind.end_ms - behind.start_ms - 15 <= 1.25 * behind.planned_ms
    seconds = (late[-1].end_ms - before.end_ms) / 1000
    assert sum(sum(window.counts) for window in late) / seconds >= least * 30


def test_a_window_that_counts_batches_drags_on_where_a_timed_one_ends():
    slowing = replace(TWO, changes=(Change(4650, 1, 200),))

    def length_of_the_window_hit(timed):
        history = simulate(slowing, work(epochs=2, timed=timed))
        hit = next(window for window in history.windows if window.end_ms > 4650)
        return hit.end_ms - hit.start_ms

    assert length_of_the_window_hit(timed=True) <= 1100
    assert length_of_the_window_hit(timed=False) >= 1600


clusters = st.integers(1, 4).flatmap(
    lambda ranks: st.builds(
        Cluster,
        ms=st.tuples(*[st.floats(1, 300)] * ranks),
        sync_ms=st.floats(0, 400),
        changes=st.lists(
            st.builds(Change, st.floats(0, 5000), st.integers(0, ranks - 1), st.floats(1, 300)),
            max_size=3,
        ).map(tuple),
    )
)


@settings(derandomize=True, max_examples=150)
@given(
    clusters,
    st.sampled_from(OURS),
    st.integers(1, 4),
    st.integers(1, 60),
    st.fixed_dictionaries(
        {
            "barrier_every": st.integers(0, 3),
            "stream_epochs": st.booleans(),
            "progressive": st.booleans(),
            "timed": st.booleans(),
            "max_overshoot": st.sampled_from([None, 0, 3]),
            "elche": st.fixed_dictionaries(
                {"anchor": st.integers(1, 12), "max_batch_diff": st.sampled_from([None, 0, 4])}
            ),
        }
    ),
    st.booleans(),
)
def test_every_batch_is_trained_once_whatever_the_timing(
    cluster, policy, epochs, batches, options, overlap
):
    config = work(policy, ranks=len(cluster.ms), epochs=epochs, batches=batches, **options)
    history = simulate(cluster, config, overlap=overlap)
    assert trained_once(history, config)
    assert history.batches == epochs * batches
    if not cluster.changes:
        assert history.batches <= cluster.capacity(history.ms) * (1 + 1e-9)
        for rank, pace in enumerate(cluster.ms):
            busy = pace * sum(window.counts[rank] for window in history.windows)
            assert busy + history.waits_ms[rank] + history.comm_ms == pytest.approx(history.ms)


@settings(derandomize=True, max_examples=60)
@given(clusters, st.sampled_from(OURS), st.integers(1, 40), st.integers(0, 3))
def test_nothing_behind_a_barrier_is_trained_before_it(cluster, policy, batches, barrier_every):
    epochs = 6
    config = work(
        policy, ranks=len(cluster.ms), epochs=epochs, batches=batches, barrier_every=barrier_every
    )
    trained = 0
    for window in simulate(cluster, config).windows:
        last = max((stop for spans in window.trained for _, stop in spans), default=0)
        barrier = config.barrier_from(trained // batches)
        assert last <= (barrier + 1) * batches
        # Nor does anybody look further ahead than one epoch.
        assert last <= (trained // batches + 2) * batches
        trained += sum(window.counts)


def test_the_same_question_has_the_same_answer_in_another_process(capsys):
    asked = ["--simulate", "25,40,100", "--epochs", "2", "--json"]
    assert main(asked) == 0
    words = ("-m", "flodl.ranks.simulate", *asked)
    done = fork_server.python(*words, cwd=ROOT, torch=True, abrupt=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == capsys.readouterr().out


def test_the_ghost_itself_needs_no_torch():
    stubs = """
import sys, types
for name in ("flodl", "flodl.ranks"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [name.replace(".", "/")]
import flodl.ranks.simulate.__main__
assert not {"torch", "numpy"} & set(sys.modules), "something heavy was imported"
"""
    done = subprocess.run([sys.executable, "-c", stubs], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def rated(mode, batches_per_s):
    return Prediction(
        mode=mode,
        policy=Policy(mode) if mode in list(Policy) else None,
        ms=1000.0,
        batches_per_s=batches_per_s,
        efficiency=0.5,
        idle=(0.0, 0.0),
        communication=0.0,
        exchanges=1,
        anchor=None,
    )


@each_row(
    ("rates", "policy"),
    [
        ((20.0, 34.0, 34.9), Policy.ASYNC),
        ((20.0, 34.3, 34.9), Policy.CADENCE),
        ((34.3, 34.4, 34.9), Policy.SYNC),
        ((40.0, 34.4, 34.9), Policy.SYNC),
        ((20.0, 35.4, 34.9), Policy.CADENCE),
    ],
)
def test_the_simplest_of_the_fastest_is_chosen(rates, policy):
    rivals = [rated("solo", 10), rated("torch-ddp", 99)]
    chosen, reason = choose([*rivals, *map(rated, OURS, rates)])
    assert chosen is policy
    assert policy.value in reason
    assert f"{rates[OURS.index(policy)]:.1f} batches/s" in reason
    assert "alone" not in reason


def test_the_reason_tells_when_one_rank_alone_would_be_faster():
    _, reason = choose([rated("solo", 25), rated("sync", 10), rated("cadence", 20)])
    assert "the fastest rank alone: 25.0" in reason


def test_there_must_be_something_to_choose_from():
    with pytest.raises(ValueError, match="no prediction of sync"):
        choose([rated("solo", 25)])


def test_a_change_holds_from_its_moment_on():
    cluster = Cluster(ms=(40, 100), changes=(Change(500, 0, 80), Change(100, 0, 20)))
    assert [cluster.pace(0, at) for at in (0, 99, 100, 499, 500)] == [40, 40, 20, 20, 80]
    assert cluster.pace(1, 900) == 100
    assert cluster.capacity(1000) == pytest.approx(100 / 40 + 400 / 20 + 500 / 80 + 10)
    assert cluster.finished(0, 0, 4) == 40 * 3 + 20


# --- What an average costs ----------------------------------------------------------------------


def test_an_average_is_a_ring_all_reduce():
    wire = Exchange(bytes=100_000_000, bandwidth=1e9, latency_ms=0.5)
    # 2 (W-1)/W of 100 ms, and 2 (W-1) messages of half a millisecond.
    assert wire.ms(2) == pytest.approx(100 + 1)
    assert wire.ms(8) == pytest.approx(175 + 7)
    assert wire.ms(64) == pytest.approx(196.875 + 63)
    assert wire.ms(256) == pytest.approx(199.21875 + 255)
    assert wire.ms(1) == 0


def test_an_average_costs_what_bytes_bandwidth_and_latency_say():
    wire = Exchange(bytes=8_000_000, bandwidth=2e9, latency_ms=0)
    assert replace(wire, bytes=32_000_000).ms(5) == pytest.approx(4 * wire.ms(5))
    assert replace(wire, bandwidth=1e9).ms(5) == pytest.approx(2 * wire.ms(5))
    assert replace(wire, latency_ms=3).ms(5) == pytest.approx(wire.ms(5) + 24)


def of_the_sum(mode, ranks, **wire):
    """Part of the sum of speeds that as many ranks reach, half of them 2.5 times as slow."""
    cluster = Cluster(ms=(40, 100) * (ranks // 2), exchange=Exchange(**wire))
    config = work(ranks=ranks, batches=70 * ranks)
    return by_mode(cluster, config)[mode].efficiency


@pytest.mark.parametrize("mode", ["sync", "cadence", "torch-ddp"])
def test_more_ranks_and_more_bytes_cost_speed(mode):
    by_ranks = [of_the_sum(mode, ranks) for ranks in (2, 8, 64)]
    assert by_ranks == sorted(by_ranks, reverse=True)
    assert by_ranks[0] > by_ranks[1] + 0.005 > by_ranks[2] + 0.01
    by_bytes = [of_the_sum(mode, 8, bytes=size) for size in (10**6, 10**8, 10**9)]
    assert by_bytes == sorted(by_bytes, reverse=True)
    assert by_bytes[0] > by_bytes[2] + 0.05


@each_row("ranks", [8, 64, 256])
def test_a_step_of_many_ranks_takes_a_batch_and_what_the_formula_says(ranks):
    wire = Exchange(bytes=50_000_000, bandwidth=1.25e9, latency_ms=0.05)
    config = work(Policy.SYNC, ranks=ranks, batches=3 * ranks)
    history = simulate(Cluster(ms=(40,) * ranks, exchange=wire), config)
    average = 2 * (ranks - 1) * (40 / ranks + 0.05)
    assert history.ms == pytest.approx(3 * (40 + average))
    assert history.comm_ms == pytest.approx(3 * average)


def test_a_measured_average_replaces_the_formula():
    cluster = Cluster(ms=(40, 40), sync_ms=7, exchange=Exchange(bytes=10**12))
    assert cluster.average_ms == 7
    assert Cluster(ms=(40, 40)).average_ms == Exchange().ms(2)


@each_row(
    ("figures", "told"),
    [
        ({"bytes": -1}, "bytes=-1"),
        ({"bandwidth": 0}, "1.25e9"),
        ({"bandwidth": float("inf")}, "bandwidth=inf"),
        ({"latency_ms": float("nan")}, "latency_ms=nan"),
    ],
)
def test_an_impossible_exchange_is_refused(figures, told):
    with pytest.raises(ValueError, match=told):
        Exchange(**figures)


def test_the_command_takes_bytes_bandwidth_and_latency(capsys):
    asked = ["--simulate", "40,40,40,40", "--bytes", "8000000", "--bandwidth", "8"]
    assert main([*asked, "--latency", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["exchange"] == {"bytes": 8_000_000, "bandwidth": 1e9, "latency_ms": 0.5}
    assert told["sync_ms"] == pytest.approx(6 * (2 + 0.5))
    assert main(asked) == 0
    assert "12.3 ms per averaging (8 MB at 8 Gbit/s and 0.05 ms per message)" in (
        capsys.readouterr().out
    )


def test_many_ranks_fit_into_the_table(capsys):
    assert main(["--simulate", ",".join(["40", "100"] * 32), "--epochs", "1"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines()[:-1])) < 100
    assert shown.startswith("64 ranks with 40, 100, 40, 100, 40, 100, 40, 100, … ms per batch;")


@each_row(
    ("figures", "told"),
    [
        ({"ms": ()}, "milliseconds per batch"),
        ({"ms": (40, 0)}, "milliseconds per batch"),
        ({"ms": (40, float("nan"))}, "milliseconds per batch"),
        ({"ms": (40,), "changes": (Change(0, 0, -1),)}, "milliseconds per batch"),
        ({"ms": (40,), "changes": (Change(0, 1, 10),)}, "names rank 1"),
        ({"ms": (40,), "sync_ms": -1}, "sync_ms"),
    ],
)
def test_an_impossible_cluster_is_refused(figures, told):
    with pytest.raises(ValueError, match=told):
        Cluster(**figures)


def test_a_schedule_for_other_ranks_is_refused():
    with pytest.raises(ValueError, match="for 3 ranks and the cluster has 2"):
        simulate(TWO, work(ranks=3))
    with pytest.raises(ValueError, match="auto"):
        simulate(TWO, work(Policy.AUTO))


def test_the_table_shows_every_mode_and_the_choice(capsys):
    assert main(["--simulate", "40,100", "--sync-ms", "15", "--epochs", "1"]) == 0
    shown = capsys.readouterr().out
    for mode in ("solo", "sync", "cadence", "async", "torch-ddp", "torch-postlocalsgd"):
        assert f"\n{mode} " in shown
    assert "35.0 batches/s" in shown
    assert "Recommended: cadence is predicted" in shown


def test_the_json_holds_the_question_and_the_answer(capsys):
    assert main(["--simulate", "40,100", "--sync-ms", "0", "--batches", "70", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["ms"], told["sync_ms"], told["epochs"], told["batches"]) == ([40, 100], 0, 5, 70)
    assert told["chosen"] in told["reason"]
    sync = next(found for found in told["predictions"] if found["mode"] == "sync")
    assert sync["batches_per_s"] == pytest.approx(20)


@each_row(
    ("arguments", "told"),
    [
        ([], "--simulate"),
        (["--simulate", "40"], "at least two"),
        (["--simulate", "40,fast"], "'fast' is not a number"),
        (["--simulate", "40,0"], "no batch takes 0 ms"),
        (["--simulate", "40,inf"], "'inf' is not a number"),
        (["--simulate", "40,100", "--sync-ms", "-3"], "'-3' is not a number"),
        (["--simulate", "40,100", "--bandwidth", "0"], "'0' is not a number of Gbit/s"),
        (["--simulate", "40,100", "--bytes", "-1"], "'-1' is not a whole number"),
        (["--simulate", "40,100", "--batches", "0"], "'0' is not a whole number"),
        (["--simulate", "40,100", "--epochs", "1.5"], "'1.5' is not a whole number"),
        (["--simulate", "40,100", "--epochs", "99999999"], "must not exceed"),
    ],
)
def test_bad_arguments_end_with_2_and_say_what_is_wrong(arguments, told, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err


class Recorded(Work):
    """Notes what a simulation asks for."""

    def __init__(self):
        self.trained, self.calls = [], []

    def train(self, rank, number):
        self.trained.append(number)
        self.calls.append(("train", rank))

    def gradient(self, rank, taken):  # noqa: ARG002
        self.calls.append(("gradient", rank))

    def step(self, ms):
        self.calls.append(("step", ms))

    def average(self, ms):
        self.calls.append(("average", ms))
        return (0.0, 0.0)

    def start(self):
        self.calls.append(("start", None))

    def land(self, rank, ms):  # noqa: ARG002
        self.calls.append(("land", rank))
        return 0.0


def test_ranks_with_work_train_every_batch_once_and_average_in_between():
    work_done = Recorded()
    history = simulate(replace(TWO, sync_ms=15), work(batches=100), work=work_done)
    assert sorted(work_done.trained) == list(range(100))
    averages = [ms for what, ms in work_done.calls if what == "average"]
    assert averages == [window.end_ms for window in history.windows]


def test_an_average_under_way_lands_once_on_every_rank():
    recorded = Recorded()
    simulate(replace(TWO, sync_ms=120), work(Policy.ASYNC, batches=100), work=recorded)
    kinds = [what for what, _ in recorded.calls]
    rounds = kinds.count("start")
    assert rounds > 1
    assert recorded.calls.count(("land", 0)) == recorded.calls.count(("land", 1)) == rounds
    assert kinds.count("average") == 1  # the last one: every rank waits for it
    # Rank 0 trains 40 ms per batch, so at most three batches before the average is there.
    begun = kinds.index("start")
    landed = recorded.calls.index(("land", 0), begun)
    assert recorded.calls[begun + 1 : landed] == [("train", 0)] * (landed - begun - 1)
    assert 1 <= landed - begun - 1 <= 3


def test_steps_whose_samples_are_cut_by_speed_take_all_ranks_equally_long():
    recorded = Recorded()
    config = work(Policy.SYNC, batches=10, partition_ratios=(5 / 7, 2 / 7))
    history = simulate(TWO, config, work=recorded)
    assert history.ms == pytest.approx(5 * 2 * 5 / 7 * 40)
    assert history.waits_ms == pytest.approx((0, 0))
    assert [what for what, _ in recorded.calls] == ["gradient", "gradient", "step"] * 5
