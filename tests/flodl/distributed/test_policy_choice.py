"""The policy that ranks take if none is asked for: the names of their devices decide."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Batch
from flodl.ranks.group import Group
from flodl.train import RunDirectory
from flodl.train.policies import choice as policy_choice
from tests.flodl.distributed.ranks import RankError, Ranks
from tests.flodl.distributed.trainings import Numbers, Outcome, train
from tests.waiting import at_some_pace

EQUAL, MIXED = ("one", "one"), ("one", "two")
ENOUGH = {"anchor": 2}
"""50 batches are then at least twelve windows on two ranks."""


def listened(group: Group, names: tuple[str, ...] | None, **rest: Any) -> tuple[Outcome, str]:
    """Train and return what was printed, with other names of devices than they really have."""
    out, real = StringIO(), policy_choice.hardware_name
    if names is not None:
        policy_choice.hardware_name = lambda _: names[group.rank]
    try:
        with redirect_stdout(out):
            return train(group, **rest), out.getvalue()
    finally:
        policy_choice.hardware_name = real


def by_default(group: Group, names: tuple[str, ...] | None, rest: Mapping[str, Any]) -> Any:
    outcome, told = listened(group, names, **{"policy": None, **rest})
    together = [metrics.share for metrics in outcome.metrics]
    return told, outcome.averages, len(outcome.batches), together


def test_ranks_of_one_machine_are_equal_and_take_every_step_together(ranks: Ranks) -> None:
    (told, averages, batches, shares), (nothing, *_) = ranks(2, by_default, None, {})
    assert told.startswith("  policy sync: 2 equal devices (")
    # On a busy machine, one more line may tell that the ranks waited for each other.
    assert told.count("policy ") == 1 + told.count("--policy cadence")
    assert nothing == ""
    # 25 batches in each of two epochs; one of the 13 steps has a batch for the first rank only.
    assert (averages, batches, shares) == (26, 26, [[13 / 25, 12 / 25]] * 2)


@pytest.mark.parametrize("slow", [{"ms": (1.0, 6.0)}, {"settings": {"speed_hint": (1, 6.0)}}])
def test_no_measured_or_hinted_speed_changes_the_shares_of_equal_devices(
    ranks: Ranks, slow: Mapping[str, Any]
) -> None:
    for _, averages, _, shares in ranks(2, by_default, EQUAL, {"policy": "auto", **slow}):
        assert (averages, shares) == (26, [[13 / 25, 12 / 25]] * 2)


def test_devices_that_differ_by_name_train_windows(ranks: Ranks) -> None:
    (told, averages, *_), _ = ranks(2, by_default, MIXED, {"ms": (1.0, 6.0), "settings": ENOUGH})
    assert told == (
        "  policy cadence: the devices differ (one, two); it averages weights, which is another "
        "algorithm than DDP (--policy sync)\n"
    )
    assert averages < 26


def test_few_windows_are_not_chosen_on_devices_that_differ(ranks: Ranks) -> None:
    # 50 batches are two and a half windows of ten batches on each of two ranks.
    told, averages, *_ = ranks(2, by_default, MIXED, {})[0]
    assert (choice(told), averages) == (
        "  policy sync: the devices differ, but the training has only 2.5 windows of 10 batches "
        "per rank, and so few averages of weights cost accuracy (--policy cadence trains them)",
        26,
    )


def choice(told: str) -> str:
    """The line about the policy, without the one that tells on a busy machine of long waits."""
    first, *others = told.splitlines()
    assert all(line.startswith("  the ranks waited for each other") for line in others)
    return first


def test_a_policy_that_is_asked_for_is_taken_on_any_devices(ranks: Ranks) -> None:
    told = ranks(2, by_default, EQUAL, {"policy": "cadence"})[0][0]
    assert told == "  policy cadence: asked for\n"
    told, averages, *_ = ranks(2, by_default, MIXED, {"policy": "sync"})[0]
    assert (choice(told), averages) == ("  policy sync: asked for", 26)


def test_settings_of_windows_that_have_no_effect_are_named(ranks: Ranks) -> None:
    told = ranks(2, by_default, EQUAL, {"settings": {"anchor": 4, "overlap": True}})[0][0]
    assert choice(told) == (
        "  policy sync: 2 equal devices (one); anchor and overlap have no effect without "
        "--policy cadence"
    )


def with_outer(group: Group, policy: str | None) -> None:
    from flodl import Nesterov

    listened(group, EQUAL, policy=policy, settings={"outer_optimizer": Nesterov(0.7, 0.9)})


@pytest.mark.parametrize("policy", [None, "sync"])
def test_an_outer_optimizer_without_windows_is_refused_before_the_first_step(
    ranks: Ranks, policy: str | None
) -> None:
    with pytest.raises(RankError, match=r"outer_optimizer with policy 'sync'.*policy\('cadence'\)"):
        ranks(2, with_outer, policy)


def recorded(group: Group, root: Path) -> None:
    builder: dict[str, Any] = {"run_dir": RunDirectory.create(root)} if group.leads else {}
    listened(group, EQUAL, policy=None, builder=builder)


def test_the_record_holds_the_policy_and_the_reason(ranks: Ranks, tmp_path: Path) -> None:
    ranks(2, recorded, tmp_path)
    (run,) = tmp_path.iterdir()
    known = json.loads((run / "environment.json").read_text())
    assert known["policy"] == {"name": "sync", "reason": "2 equal devices (one)"}


def one_rank(group: Group) -> str:
    return listened(group, None, policy=None)[1]


def test_one_rank_says_nothing_about_policies(ranks: Ranks) -> None:
    assert ranks(1, one_rank) == [""]


# --- What DDP computes ---------------------------------------------------------------------------


def net(_: torch.device) -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(3, 33), nn.Tanh(), nn.Linear(33, 7), nn.ReLU(), nn.Linear(7, 1))


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def beside_ddp(group: Group, batch_size: int, n: int) -> tuple[list[Tensor], list[Tensor]]:
    """Train by default, then again with torch's DDP on the batches that this rank had."""
    ours, _ = listened(
        group, None, policy=None, n=n, batch_size=batch_size, model=net, optimizer=adam
    )
    data, plain = Numbers(n), nn.parallel.DistributedDataParallel(net(group.device))
    optimizer = adam(plain.parameters())
    for _, rows in ours.batches:
        optimizer.zero_grad()
        loss = (plain(data.inputs[rows]) - data.targets[rows]).square().mean()
        loss.backward()
        optimizer.step()
    return ours.params, [parameter.detach().clone() for parameter in plain.parameters()]


@pytest.mark.parametrize("batch_size", [8, 7, 1])
def test_two_equal_ranks_compute_the_bits_of_torch_s_ddp(ranks: Ranks, batch_size: int) -> None:
    for ours, theirs in ranks(2, beside_ddp, batch_size, 20 * batch_size):
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.equal(other)


def test_three_equal_ranks_compute_what_torch_s_ddp_computes_within_rounding(ranks: Ranks) -> None:
    # DDP divides before the sum, flodl after it. This differs in the last bit for three ranks.
    for ours, theirs in ranks(3, beside_ddp, 8, 24 * 8):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def weights_hash(group: Group, names: tuple[str, ...] | None) -> str:
    def loss(model: nn.Module, batch: Batch, rank: int, step: int) -> Tensor:
        time.sleep(0.001 * ((rank + step) % 3))  # the load of a machine changes from run to run
        noisy = nn.functional.dropout(batch[0], 0.2)
        return (model(noisy) - batch[1]).square().mean()

    outcome, _ = listened(group, names, policy=None, model=net, optimizer=adam, loss=loss)
    return hashlib.sha256(b"".join(p.numpy().tobytes() for p in outcome.params)).hexdigest()


def test_the_same_training_twice_gives_the_same_bits(ranks: Ranks) -> None:
    first, again = ranks(2, weights_hash, None), ranks(2, weights_hash, None)
    assert first == again
    assert first[0] == first[1]


# --- Waiting -------------------------------------------------------------------------------------


def waited(group: Group, policy: str | None, ms: tuple[float, float]) -> str:
    return listened(group, EQUAL, policy=policy, ms=ms)[1]


def test_long_waits_of_equal_devices_are_told_once_with_their_share(ranks: Ranks) -> None:
    def waits_as_declared(factor: float) -> bool:
        told, nothing = ranks(2, waited, None, (2.0 * factor, 20.0 * factor))
        lines = [line for line in told.splitlines() if "--policy cadence" in line]
        assert nothing == ""
        if not lines:
            return False
        assert len(lines) == 1
        assert lines[0].startswith("  the ranks waited for each other")
        # The first rank waits 18 of 20 ms, the second never: 45 % of the time of both.
        return 20 < int(lines[0].split("%")[0].split()[-1]) < 60

    at_some_pace(waits_as_declared)


@pytest.mark.parametrize(("policy", "ms"), [(None, (20.0, 20.0)), ("cadence", (2.0, 20.0))])
def test_short_waits_and_other_policies_get_no_advice(
    ranks: Ranks, policy: str | None, ms: tuple[float, float]
) -> None:
    def is_not_advised(factor: float) -> bool:
        fast, slow = (one * factor for one in ms)
        return "--policy cadence" not in ranks(2, waited, policy, (fast, slow))[0]

    at_some_pace(is_not_advised)
