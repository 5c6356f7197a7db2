"""Buffers of many ranks: one rule for all policies, back ends and loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import RunDirectory, log
from flodl.checkpoint import checkpoint_keys
from flodl.ranks.averaging.average import ParameterAverager
from flodl.ranks.averaging.state_tensors import ChangingBuffers
from flodl.ranks.group import Group
from flodl.ranks.settings import Backend
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import Outcome, train
from tests.rows import sampled

POLICIES = ["sync", "cadence", "async", "auto"]
BACKENDS = ["nccl", "cpu"]


class Normalised(nn.Module):
    """A normalisation, and buffers of every kind that its steps write to."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=0.5)
        self.last = nn.Linear(3, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int32))
        self.register_buffer("large", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("unnoticed", torch.zeros(3))
        self.register_buffer("table", torch.arange(5) / 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
            self.large |= x.abs().amax(0) > 2.5
            # No version counter tells of this.
            self.unnoticed.data.copy_(x.detach().mean(0))
        out: Tensor = self.last(self.norm(x))
        return out


def normalised(_: torch.device) -> nn.Module:
    return Normalised()


def train_normalised(group: Group, policy: str, backend: str, epochs: int) -> Outcome:
    return train(
        group,
        n=600,
        epochs=epochs,
        policy=policy,
        model=normalised,
        ms=(2.0, 5.0),
        settings={"backend": backend},
    )


@pytest.mark.parametrize(("policy", "backend"), sampled(POLICIES, BACKENDS))
def test_after_a_training_buffers_are_equal_on_all_ranks(
    ranks: Ranks, policy: str, backend: str
) -> None:
    one, two = ranks(2, train_normalised, policy, backend, 1)
    assert len(one.buffers) == len(two.buffers) == 7
    for mine, theirs in zip(one.buffers, two.buffers, strict=True):
        assert torch.equal(mine, theirs)
    named = dict(zip(dict(Normalised().named_buffers()), one.buffers, strict=True))
    assert torch.equal(named["table"], torch.arange(5) / 3)
    most = max(len(one.batches), len(two.batches))
    assert int(named["norm.num_batches_tracked"]) >= most - (policy == "async") * 10
    assert not torch.equal(named["norm.running_mean"], torch.zeros(3))


class Counted(nn.Module):
    """Buffers that the loss sets: to 1 on rank 0 and to 5 on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 1)
        self.register_buffer("value", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x)
        return out


def counted(_: torch.device) -> nn.Module:
    return Counted()


def train_counted(group: Group, policy: str, backend: str) -> tuple[int, float, int]:
    def loss(net: Any, batch: Any, rank: int, _step: int) -> Tensor:
        net.value.fill_(1.0 + 4.0 * rank)
        net.count.fill_(1 + 4 * rank)
        value: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return value

    # One window, or one step, of 8 samples on rank 0 and 4 on rank 1.
    outcome = train(
        group,
        n=12,
        epochs=1,
        policy=policy,
        model=counted,
        loss=loss,
        settings={"backend": backend},
    )
    value, count = outcome.buffers
    return len(outcome.samples), float(value), int(count)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_floating_buffers_are_averaged_by_samples_and_whole_ones_take_the_maximum(
    ranks: Ranks, policy: str, backend: str
) -> None:
    found = ranks(2, train_counted, policy, backend)
    assert [samples for samples, *_ in found] == [8, 4]
    for _, value, count in found:
        assert value == pytest.approx((8 * 1.0 + 4 * 5.0) / 12, rel=1e-6)
        assert count == 5


def by_each_way(group: Group) -> list[list[float]]:
    found = []
    for backend in Backend:
        for way in ("changing", "all", "parameters"):
            model = Counted()
            changing = ChangingBuffers(model, group, backend)
            model.value.fill_(1.0 + group.rank)
            model.count.fill_(7 - group.rank)
            samples = 3 if group.rank == 0 else 1
            if way == "changing":
                changing.average(changing.flags(), samples)
            elif way == "all":
                changing.average_all(samples)
            else:
                ParameterAverager(model, group, backend).average(samples)
            found.append([float(model.value), float(model.count)])
    return found


def test_every_way_through_the_ranks_gives_the_same_buffers(ranks: Ranks) -> None:
    for found in ranks(2, by_each_way):
        assert found == [[1.25, 7.0]] * 6


def counters_alone(group: Group) -> tuple[int, list[float]]:
    model = nn.Module()
    model.register_buffer("count", torch.zeros((), dtype=torch.int64))
    changing = ChangingBuffers(model, group, Backend.NCCL)
    model.get_buffer("count").fill_(group.rank)
    flags = changing.flags()
    changing.average(flags, 1)
    return int(model.get_buffer("count")), changing.flags()


def test_a_model_may_have_counters_only_and_an_average_is_no_change(ranks: Ranks) -> None:
    assert ranks(2, counters_alone) == [(1, [0.0, 0.0])] * 2


def train_two_steps(group: Group) -> tuple[list[float], list[float]]:
    seen = []

    def loss(net: Any, batch: Any, rank: int, _step: int) -> Tensor:
        seen.append(float(net.value))
        net.value.fill_(1.0 + 4.0 * rank)
        net.count.fill_(1 + 4 * rank)
        value: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return value

    outcome = train(group, n=12, batch_size=4, epochs=1, policy="sync", model=counted, loss=loss)
    return seen, [float(buffer) for buffer in outcome.buffers]


def test_with_sync_buffers_are_averaged_in_every_step(ranks: Ranks) -> None:
    one, two = ranks(2, train_two_steps)
    # The second step has a batch for rank 0 only, which alone counts then.
    assert one == ([0.0, 3.0], [1.0, 5.0])
    assert two == ([0.0], [1.0, 5.0])


class Untraced(nn.Module):
    """A buffer that changes without a trace, with nothing beside it that would tell."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 1)
        self.register_buffer("value", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.value.data.copy_(x.detach().mean())
        out: Tensor = self.last(x)
        return out


def untraced(_: torch.device) -> nn.Module:
    return Untraced()


def train_untraced(group: Group) -> float:
    outcome = train(group, n=64, epochs=1, policy="sync", model=untraced)
    return float(outcome.buffers[0])


def test_with_sync_all_buffers_are_equal_where_an_epoch_ends(ranks: Ranks) -> None:
    one, two = ranks(2, train_untraced)
    assert one == two != 0.0


class Growing(nn.Module):
    """Buffers that training resizes, gives another type and sets; one grows with the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 1)
        self.register_buffer("queue", torch.zeros(0, 3))
        self.register_buffer("minimum", torch.zeros(0))
        self.register_buffer("typed", torch.zeros((), dtype=torch.int64))
        self.register_buffer("late", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            values = x.detach()
            self.queue = torch.cat([self.queue, values])
            self.minimum.resize_(3).copy_(values.amin(0))
            self.typed = self.typed + values.mean()
            self.late = values.mean() if self.late is None else self.late + 1
        out: Tensor = self.last(x)
        return out


def growing(_: torch.device) -> nn.Module:
    return Growing()


def train_growing(group: Group, policy: str, backend: str, folder: str) -> tuple[Any, ...]:
    settings = {"backend": backend}
    common = {"n": 204, "policy": policy, "model": growing, "ms": (2.0, 5.0), "settings": settings}
    run = RunDirectory.create(folder) if group.leads else None
    path = group.broadcast_object(None if run is None else str(run.last_checkpoint))
    warned: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "warning", lambda text, *_: warned.append(text))
        first = train(group, epochs=2, **common, builder={} if run is None else {"run_dir": run})
        grown = train(group, epochs=3, **common, builder={"resume": path})
    saved = checkpoint_keys(path) if group.leads else []
    return first.buffers, grown.buffers, len(first.samples), len(grown.samples), warned, saved


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_buffers_of_different_sizes_stay_with_their_ranks_and_the_others_are_averaged(
    ranks: Ranks, policy: str, tmp_path: Path
) -> None:
    backend = "cpu" if policy == "cadence" else "nccl"
    results = ranks(2, train_growing, policy, backend, str(tmp_path))
    for before, after, samples, further, *_ in results:
        assert len(before[0]) == samples
        # All ranks resume with the buffers of rank 0, in their size.
        assert len(after[0]) == results[0][2] + further
        assert before[1].shape == (3,)
    for mine, theirs in zip(*(result[0][1:] for result in results), strict=True):
        assert mine.dtype is theirs.dtype is torch.float32
        assert torch.equal(mine, theirs)
    (*_, warned, saved), (*_, quiet, _) = results
    assert ["queue" in text for text in warned] == [True, True]
    assert not quiet
    assert {"queue", "late"} <= set(saved)
