"""What those who watch a training in many ranks get: callbacks, metrics, timeline, handle."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn

from flodl import Callback, DataLoader, RunDirectory, Timeline, Trainer, TrainingRun
from flodl.errors import DistributedError
from flodl.ranks.group import Group
from tests.flodl.distributed.ranks import RankError, Ranks
from tests.flodl.distributed.trainings import Numbers, Outcome, linear, sgd, train
from tests.waiting import at_some_pace


@pytest.mark.case("distributed", 42)
def test_one_rank_makes_no_process_group_and_trains_as_a_plain_loop_to_the_bit() -> None:
    trained = (
        Trainer.builder(linear, sgd, lambda net, batch: (net(batch[0]) - batch[1]).square().mean())
        .dataset(Numbers(203))
        .batch_size(8)
        .num_epochs(2)
        .engine("eager")
        .policy("async")
        .ranks(1)
        .run()
    )
    assert not torch.distributed.is_initialized()
    assert (trained.world_size, trained.version, trained.abort_count) == (1, 0, 0)
    torch.manual_seed(42)
    model = nn.Linear(3, 1)
    optimizer = sgd(model.parameters())
    loader = DataLoader(Numbers(203), 8, drop_last=False, join_remainder=True)
    for epoch in range(2):
        for batch in loader.epoch(epoch):
            (model(batch[0]) - batch[1]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for mine, theirs in zip(trained.join().params, model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.case("distributed", 51)
@pytest.mark.parametrize("policy", ["cadence", "async", "sync"])
def test_errors_of_callbacks_do_not_stop_training(
    ranks: Ranks, policy: str, tmp_path: Path
) -> None:
    for outcome in ranks(2, train_with_failing_callbacks, policy, tmp_path):
        assert len(outcome.metrics) == 3
    # Every epoch is told before its checkpoint, on rank 0 alone.
    assert (tmp_path / "calls").read_text().split() == ["m0", "c1", "m1", "c2", "m2", "c3"]


def train_with_failing_callbacks(group: Group, policy: str, folder: Path) -> Outcome:
    def note(word: str) -> None:
        with (folder / "calls").open("a") as file:
            file.write(f"{word} ")
        raise OSError(word)

    callbacks: dict[str, Any] = {
        "metrics_fn": lambda metrics: note(f"m{metrics.epoch}"),
        "checkpoint_fn": lambda version, _: note(f"c{version}"),
    }
    return train(group, epochs=3, policy=policy, builder=callbacks)


@pytest.mark.case("distributed", 51)
@pytest.mark.parametrize("policy", ["cadence", "async", "sync"])
def test_metrics_fn_returning_false_stops_all_ranks_at_the_same_place(
    ranks: Ranks, policy: str
) -> None:
    one, two = ranks(2, train_until_told, policy)
    assert one.stopped == two.stopped == "metrics_fn returned False"
    assert [metrics.epoch for metrics in one.metrics] == [0, 1]
    assert one.metrics == two.metrics
    assert one.averages == two.averages
    assert torch.equal(one.params[0], two.params[0])
    if policy == "sync":
        assert len(one.batches) + len(two.batches) == 2 * 100


def train_until_told(group: Group, policy: str) -> Outcome:
    told = {"metrics_fn": lambda metrics: metrics.epoch < 1, "deterministic": True}
    return train(group, n=800, epochs=9, policy=policy, ms=(1.0, 2.5), builder=told)


@pytest.mark.case("distributed", 65)
@pytest.mark.parametrize("policy", ["cadence", pytest.param("async", marks=pytest.mark.slow)])
def test_metrics_and_timeline_tell_who_trained_how_much(
    ranks: Ranks, policy: str, tmp_path: Path
) -> None:
    ranks(2, train_with_a_timeline, policy, tmp_path)
    run = next(tmp_path.iterdir())
    timeline = Timeline.load(run / "timeline.json")
    metrics = last_metrics(run)
    assert metrics["share"] == pytest.approx([0.714, 0.286], abs=0.03)
    for rank, ms in zip(metrics["per_rank"], (16.0, 40.0), strict=True):
        # A batch takes as long as declared; on a busy machine longer, on one rank more than on
        # the other.
        assert 0.99 * ms * rank["batches"] <= rank["busy_ms"] <= metrics["epoch_ms"]
    events = timeline.events
    for rank in (0, 1):
        mine = [event for event in events if event.rank == rank]
        assert sum(event.kind == "sync_start" for event in mine) > 4
        planned = [sum(event.fields["counts"]) for event in mine if event.kind == "plan"]
        assert sum(planned) == 3 * 70
    counts = [
        sum(event.kind == "sync_start" and event.rank == rank for event in events)
        for rank in (0, 1)
    ]
    assert counts[0] == counts[1]
    assert (run / "timeline.html").is_file()


def last_metrics(run: Path) -> dict[str, Any]:
    from flodl.checkpoint.training import TrainingFile

    extra = TrainingFile.open(run / "last.fdl").value("extra")
    found: dict[str, Any] = json.loads(extra["history"])[-1]
    return found


def train_with_a_timeline(group: Group, policy: str, root: Path) -> None:
    # Planned by the declared speeds: a busy machine shall not change the plan.
    builder: dict[str, Any] = {"timeline": Timeline(rank=group.rank), "deterministic": True}
    if group.leads:
        builder["run_dir"] = RunDirectory.create(root)
    train(group, n=560, epochs=3, policy=policy, ms=(16.0, 40.0), builder=builder)


def test_callbacks_hear_of_training_on_every_rank(ranks: Ranks) -> None:
    both = ranks(2, train_with_a_callback)
    for heard in both:
        assert heard[0] == "train"
        assert heard[-1] == "end"
        assert heard.count("epoch") == heard.count("complete") == 2
        assert "step" in heard
    # On a busy machine, one of them may take fewer steps than the other.
    assert sum(heard.count("step") for heard in both) > 10


def train_with_a_callback(group: Group) -> list[str]:
    heard: list[str] = []

    class Listens(Callback):
        def on_train_start(self, *_: object) -> None:
            heard.append("train")

        def on_epoch_start(self, *_: object) -> None:
            heard.append("epoch")

        def on_step_end(self, *_: object) -> None:
            heard.append("step")

        def on_epoch_end(self, *_: object) -> None:
            heard.append("complete")

        def on_train_end(self, *_: object) -> None:
            heard.append("end")

    train(group, builder={"callbacks": Listens()})
    return heard


def test_evaluation_is_of_the_averaged_model_and_everybody_gets_it(ranks: Ranks) -> None:
    one, two = ranks(2, train_with_evaluation)
    assert [metrics.scalars for metrics in one.metrics] == [m.scalars for m in two.metrics]
    weight = one.params[0].sum().item()
    assert one.metrics[-1].scalars["weight"] == pytest.approx(weight, rel=1e-6)


def train_with_evaluation(group: Group) -> Outcome:
    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"weight": next(model.parameters()).sum().item(), "rank": group.rank}

    return train(group, builder={"eval_fn": evaluate})


def test_ranks_that_describe_different_trainings_are_told_what_differs(ranks: Ranks) -> None:
    for message in ranks(2, train_differently):
        assert "batch_size is 8 on rank 0 and 4 on rank 1" in message


def train_differently(group: Group) -> str:
    with pytest.raises(DistributedError) as caught:
        train(group, batch_size=8 if group.leads else 4)
    return str(caught.value)


PROGRAM = """
import torch
from torch import nn
from flodl import TensorDataSet, Trainer

inputs = torch.arange(64.0).reshape(64, 1)


def model(device):
    return nn.Linear(1, 1)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-5)


def loss(net, batch):
    return net(batch[0]).square().mean()


if __name__ == "__main__":
    trained = (
        Trainer.builder(model, optimizer, loss)
        .dataset(TensorDataSet(inputs))
        .batch_size(4)
        .num_epochs(2)
        .ranks(2)
        .run()
    )
    print(trained.world_size, trained.devices, len(trained.poll_metrics()), trained.version > 0)
"""


@pytest.mark.slow
def test_a_program_that_nobody_launched_starts_the_ranks_it_asks_for(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 ['cpu:0', 'cpu:1'] 2 True"


def test_settings_of_the_environment_are_weaker_than_those_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLODL_DDP", json.dumps({"mode": "cpu-async", "anchor": 7, "ranks": 1}))
    described = Trainer.builder(linear, sgd, lambda net, batch: net(batch[0]).mean()).anchor(4)
    described.dataset(torch.zeros(4, 4)).batch_size(2).num_epochs(1)
    settings = described._plan().distributed
    assert (settings.policy, settings.backend, settings.anchor) == ("async", "cpu", 4)
    monkeypatch.setenv("FLODL_DDP", "{")
    with pytest.raises(ValueError, match="FLODL_DDP"):
        described._plan()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_timeline_that_was_asked_for_is_in_the_run_directory(
    ranks: Ranks, tmp_path: Path, world_size: int
) -> None:
    ranks(world_size, train_and_record, tmp_path)
    (run,) = tmp_path.iterdir()
    timeline = Timeline.load(run / "timeline.json")
    assert {event.rank for event in timeline.events} == ({None} if world_size == 1 else {0, 1})
    assert timeline.sample_count > 0


def train_and_record(group: Group, root: Path) -> None:
    builder: dict[str, Any] = {"run_dir": RunDirectory.create(root)} if group.leads else {}
    train(group, ms=(10.0,) * group.world_size, settings={"timeline": True}, builder=builder)


@pytest.mark.parametrize("policy", ["cadence", "async", "sync"])
def test_a_callback_on_any_rank_stops_all_of_them_with_one_model(ranks: Ranks, policy: str) -> None:
    one, two = ranks(2, train_until_rank_1_has_enough, policy)
    assert (one.stopped, two.stopped) == ("another rank stopped it", "enough")
    assert torch.equal(one.params[0], two.params[0])
    assert one.averages == two.averages
    assert len(one.batches) + len(two.batches) < 200


def train_until_rank_1_has_enough(group: Group, policy: str) -> Outcome:
    class Enough(Callback):
        def on_step_end(self, run: TrainingRun) -> None:
            if group.rank == 1 and run.step == 5:
                run.stop("enough")

    return train(
        group,
        n=1600,
        epochs=3,
        policy=policy,
        ms=(2.0, 2.0),
        settings={"max_anchor": 10},
        builder={"callbacks": Enough(), "deterministic": True},
    )


def test_the_others_wait_for_what_rank_0_does_alone(ranks: Ranks) -> None:
    def trained(factor: float) -> bool:
        try:
            both = ranks(2, train_with_a_slow_checkpoint_fn, 1.5 * factor, sync_timeout=factor)
        except RankError:
            return False
        assert [len(outcome.metrics) for outcome in both] == [2, 2]
        return True

    at_some_pace(trained)


def train_with_a_slow_checkpoint_fn(group: Group, seconds: float) -> Outcome:
    return train(group, builder={"checkpoint_fn": lambda *_: time.sleep(seconds)})
