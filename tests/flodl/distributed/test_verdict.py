"""All ranks get the same verdict about an average, whoever is late."""

import random
import time

from torch import distributed as dist

from flodl.ranks.group import LocalGroup
from flodl.train.policies.cadence import SkipDecision

_ROUNDS = 200

# Where everybody is expected, a busy machine may make them late; only a round that must fail
# gives up soon.
_PATIENT, _SHORT = 30.0, 0.05


def _with_random_timing(group, timeout):
    verdict = SkipDecision(group.store, group.rank, group.world_size, timeout)
    moods = random.Random(group.rank)
    found = []
    # Until both answers were there: on a busy machine, one of them is rare.
    while len(found) < _ROUNDS or len(set(found)) < 2:
        # Around the timeout, where the last to arrive and the first to give up meet.
        time.sleep(moods.choice([0.0, 0.5, 1.0, 1.0, 1.1]) * timeout)
        found.append(verdict.decide(len(found)))
    return found


def test_everybody_gets_the_same_answer_in_many_timings(ranks):
    results = ranks(3, _with_random_timing, 0.004)
    assert results[1:] == [results[0]] * 2
    assert set(results[0]) == {True, False}


def _late(group, late):
    verdict = SkipDecision(group.store, group.rank, group.world_size, _PATIENT)
    found = [verdict.decide(0)]
    if group.rank == late:
        group.store.wait(["given up"])
    verdict.timeout = _SHORT
    found.append(verdict.decide(1))
    group.store.set("given up", "yes")
    # The others wait here for the one that was late.
    group.barrier()
    verdict.timeout = _PATIENT
    return [*found, verdict.decide(2)]


def test_a_late_rank_is_skipped_and_obeys_when_it_arrives(ranks):
    assert ranks(3, _late, 2, sync_timeout=30) == [[True, False, True]] * 3


def _patient(group):
    verdict = SkipDecision(group.store, group.rank, group.world_size, _PATIENT)
    if group.rank == 0:
        time.sleep(0.05)
    return verdict.decide(0)


def test_it_is_go_when_the_last_one_comes_in_time(ranks):
    assert ranks(3, _patient) == [True] * 3


def _keys(group):
    verdict = SkipDecision(group.store, group.rank, group.world_size, _PATIENT)
    kept = []
    for round_ in range(6):
        verdict.timeout = _SHORT if round_ == 3 else _PATIENT
        if round_ == 3 and group.rank == 1:
            group.store.wait(["skipped"])
        if not verdict.decide(round_):
            group.store.set("skipped", "yes")
        group.barrier()
        names = [f"average/{n}/{part}" for n in range(6) for part in ("arrived", "decision")]
        kept.append([name for name in names if group.store.check([name])])
        group.barrier()
    return kept


def test_keys_of_rounds_that_everybody_has_left_are_deleted(ranks):
    def both(number):
        return [f"average/{number}/arrived", f"average/{number}/decision"]

    # Round 3 was skipped: until the next meeting somebody may still have to read it.
    expected = [both(0), both(1), both(2), [*both(2), *both(3)], both(4), both(5)]
    assert ranks(2, _keys) == [expected] * 2


def test_one_rank_alone_never_asks():
    assert SkipDecision(LocalGroup().store, 0, 1, 5.0).decide(0)
    assert SkipDecision(dist.HashStore(), 0, 1, 5.0).decide(7)
