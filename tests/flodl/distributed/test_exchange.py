"""Small exchanges: what ranks send in fewer bytes, and that it is the same on all of them."""

from __future__ import annotations

import math
import os
import socket
import stat
import struct
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.ranks.averaging import backends
from flodl.ranks.averaging.average import Averaged, ParameterAverager
from flodl.ranks.averaging.gradients import StepAverager
from flodl.ranks.averaging.rounded import FRAGMENT
from flodl.ranks.group import Group, LocalGroup
from flodl.ranks.settings import Backend, DdpRunConfig, ExchangeFormat
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import Numbers, Outcome, linear, sgd, train
from tests.rows import each_row

ROUNDED = [ExchangeFormat.BF16, ExchangeFormat.INT8]
BACKENDS = pytest.mark.parametrize("backend", list(Backend))
FORMATS = pytest.mark.parametrize("format", ROUNDED)
_BYTES_RECEIVED = 128
"""Place of ``tcpi_bytes_received`` in Linux's ``struct tcp_info``."""


def received() -> int:
    """Return the bytes that the TCP connections of this process have received."""
    total = 0
    for name in (file.name for file in Path("/proc/self/fd").iterdir()):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", info, _BYTES_RECEIVED)[0]
        except OSError:  # closed meanwhile, or not TCP
            continue
    return total


def vector(count: int, *, frozen: int = 0) -> nn.Module:
    """Return a model of so many trained and frozen values."""
    model = nn.Module()
    torch.manual_seed(7)
    model.p = nn.Parameter(torch.randn(count))
    if frozen:
        model.base = nn.Parameter(torch.randn(frozen), requires_grad=False)
    return model


@torch.no_grad()
def move(model: nn.Module, seed: int, size: float = 0.01) -> None:
    """Change the trained parameters at random."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)


# --- Bytes -----------------------------------------------------------------------------------


def counted(group: Group, format: ExchangeFormat, count: int, frozen: int, waits: bool) -> int:
    model = vector(count, frozen=frozen)
    averager = ParameterAverager(model, group, Backend.NCCL, format=format)
    move(model, group.rank)
    before = received()
    group.barrier()  # from here on, others may send
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "_WORTH_SHARING", 2**60)  # as between two hosts
        if waits:
            averager.average(8)
        else:
            averager.start(8).apply()
    return received() - before


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("ranks_count", [2, 3])
def test_a_rank_receives_half_the_bytes_in_bf16_and_a_quarter_in_int8(
    ranks: Ranks, ranks_count: int
) -> None:
    count = 3 * 2**18
    whole = 2 * (ranks_count - 1) / ranks_count * 4 * count
    for format, part in (
        (ExchangeFormat.FLOAT32, 1),
        (ExchangeFormat.BF16, 1 / 2),
        (ExchangeFormat.INT8, 0.254),
    ):
        for got in ranks(ranks_count, counted, format, count, 0, False):
            assert got == pytest.approx(part * whole, rel=0.02), format


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("format", list(ExchangeFormat))
def test_frozen_parameters_stay_at_home(ranks: Ranks, format: ExchangeFormat) -> None:
    for waits in (False, True):
        for got in ranks(2, counted, format, 1000, 2**20, waits):
            assert got < 20_000


# --- Averages --------------------------------------------------------------------------------


def windows(
    group: Group, backend: Backend, format: ExchangeFormat, samples: list[int], lasts: bool
) -> tuple[list[list[Tensor]], list[Averaged]]:
    """Move and average several times; return the parameters after each average."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 50), nn.BatchNorm1d(50), nn.Linear(50, 3))
    averager = ParameterAverager(model, group, backend, format=format)
    after, averaged = [], []
    for window in range(4):
        move(model, 10 * window + group.rank)
        weight = samples[group.rank]
        if lasts:
            averager.start(weight).apply()
        averaged.append(averager.average(weight))
        after.append([parameter.detach().clone() for parameter in model.parameters()])
    return after, averaged


@BACKENDS
@FORMATS
@pytest.mark.parametrize("lasts", [False, True])
def test_all_ranks_have_equal_weights_after_each_window(
    ranks: Ranks, backend: Backend, format: ExchangeFormat, lasts: bool
) -> None:
    exact = ranks(3, windows, backend, ExchangeFormat.FLOAT32, [30, 10, 0], lasts)
    found = ranks(3, windows, backend, format, [30, 10, 0], lasts)
    for after, averaged in found:
        for values, same, near in zip(after, found[0][0], exact[0][0], strict=True):
            assert all(map(torch.equal, values, same))
            for one, other in zip(values, near, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-3)
        assert [one.samples for one in averaged] == [40.0] * 4


def broken(group: Group, format: ExchangeFormat) -> tuple[Tensor, Averaged]:
    model = vector(600)
    averager = ParameterAverager(model, group, Backend.NCCL, format=format)
    with torch.no_grad():
        model.p.add_(group.rank + 1)
        if group.rank == 1:
            model.p[5] = math.nan
    averaged = averager.average([30, 500, 10][group.rank])
    return model.p.detach() - vector(600).p.detach(), averaged


@FORMATS
def test_a_rank_that_is_not_finite_does_not_count(ranks: Ranks, format: ExchangeFormat) -> None:
    for rank, (change, averaged) in enumerate(ranks(3, broken, format)):
        torch.testing.assert_close(change, torch.full_like(change, 1.5), rtol=0, atol=0.02)
        assert (averaged.finite, averaged.samples) == (rank != 1, 40.0)


def several_fragments(group: Group) -> float:
    model = vector(2 * FRAGMENT + 77)
    averager = ParameterAverager(model, group, Backend.NCCL, format=ExchangeFormat.INT8)
    with torch.no_grad():
        model.p.add_(group.rank)
    averager.start(1).apply()
    change = model.p.detach() - vector(2 * FRAGMENT + 77).p.detach()
    return float((change - 0.5).abs().max())


def test_a_large_model_travels_in_fragments(ranks: Ranks) -> None:
    assert max(ranks(2, several_fragments)) < 0.01


def frozen_is_written(
    group: Group, format: ExchangeFormat, lasts: bool
) -> tuple[list[float], float]:
    model = vector(10, frozen=4)
    averager = ParameterAverager(model, group, Backend.NCCL, format=format)
    means = []
    for window in range(3):
        if window == 1 and group.rank == 1:
            model.base.data.add_(4.0)  # it does not change the version of the tensor
        if lasts:
            averager.start(10).apply()
        averaged = averager.average(10)
        means.append(float((model.base - vector(10, frozen=4).base).mean()))
    return means, averaged.divergence


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("format", list(ExchangeFormat))
def test_frozen_parameters_that_a_program_writes_to_are_averaged(
    ranks: Ranks, format: ExchangeFormat, lasts: bool
) -> None:
    for means, divergence in ranks(2, frozen_is_written, format, lasts):
        assert means == pytest.approx([0.0, 2.0, 2.0])
        assert divergence == 0.0


def whole_norm(group: Group) -> tuple[float, float, bool]:
    model = vector(10, frozen=50)
    averager = ParameterAverager(model, group, Backend.NCCL)
    with torch.no_grad():
        model.p.add_(group.rank)
    before = model.p.detach().clone()
    averaged = averager.average(10)
    start = vector(10).p.detach()
    expected = (start * 10 + (start + 1) * 10) / 20
    norm = torch.cat([model.p, model.base]).detach().double().norm()
    distance = float((before - model.p.detach()).double().norm() / norm)
    return averaged.divergence, distance, torch.equal(model.p.detach(), expected)


def test_frozen_parameters_count_in_the_divergence_and_change_no_bit(ranks: Ranks) -> None:
    for divergence, distance, equal in ranks(2, whole_norm):
        assert divergence == pytest.approx(distance, rel=1e-6)
        assert equal


# --- The errors of int8 ----------------------------------------------------------------------


def descend(group: Group, format: ExchangeFormat, keeps: bool) -> float:
    """Descend to zero where one direction has far larger gradients than the others."""
    model = vector(256)
    scale = torch.full((256,), 1e-3)
    scale[0] = 1.0
    with torch.no_grad():
        model.p.fill_(1.0)
        model.p[0] = 0.0
    reducer = StepAverager(model, group, Backend.NCCL, format)
    for step in range(200):
        model.p.grad = scale * model.p.detach()
        model.p.grad[0] += 1.0 if step % 2 else -1.0
        reducer.reduce(1.0)
        if not keeps:
            reducer.wire.load_state({})
        with torch.no_grad():
            model.p.sub_(model.p.grad / scale * 0.05)
    return float(model.p[1:].detach().abs().max())


def test_int8_converges_with_its_errors_and_not_without(ranks: Ranks) -> None:
    assert max(ranks(2, descend, ExchangeFormat.FLOAT32, True)) < 1e-4
    assert max(ranks(2, descend, ExchangeFormat.INT8, True)) < 0.5
    assert min(ranks(2, descend, ExchangeFormat.INT8, False)) == 1.0


def overflown(group: Group) -> tuple[bool, float]:
    model = vector(600)
    reducer = StepAverager(model, group, Backend.NCCL, ExchangeFormat.INT8)
    model.p.grad = torch.ones(600)
    model.p.grad[3] = math.inf if group.rank else 1.0
    reducer.reduce(1.0)
    seen = bool(model.p.grad.isfinite().all())
    model.p.grad = torch.ones(600)
    reducer.reduce(1.0)
    return seen, float((model.p.grad - 1).abs().max())


def test_gradients_that_overflow_are_seen_by_all_and_then_forgotten(ranks: Ranks) -> None:
    for seen, difference in ranks(2, overflown):
        assert not seen
        assert difference < 0.02


# --- Trainings -------------------------------------------------------------------------------


def trained(group: Group, policy: str, format: str) -> Outcome:
    return train(
        group,
        policy=policy,
        ms=(1.0, 2.0),
        settings={"exchange": format},
        builder={"deterministic": True},
    )


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
@FORMATS
def test_a_training_ends_with_equal_weights_near_those_of_float32(
    ranks: Ranks, policy: str, format: ExchangeFormat
) -> None:
    exact = ranks(2, trained, policy, "float32")[0]
    one, other = ranks(2, trained, policy, format.value)
    for mine, theirs, near in zip(one.params, other.params, exact.params, strict=True):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, near)
        torch.testing.assert_close(mine, near, rtol=0, atol=0.02)
    assert one.averages == exact.averages


# --- What can be asked for -------------------------------------------------------------------


def test_a_rank_alone_rounds_nothing() -> None:
    models = [vector(50) for _ in range(2)]
    for model, format in zip(models, (ExchangeFormat.FLOAT32, ExchangeFormat.INT8), strict=True):
        averager = ParameterAverager(model, LocalGroup(), Backend.NCCL, format=format)
        move(model, 1)
        averager.average(3)
        move(model, 2)
        averager.start(3).apply()
    assert torch.equal(models[0].p, models[1].p)


def test_a_sharded_model_is_refused() -> None:
    builder = Trainer.builder(linear, sgd, lambda model, batch: model(batch[0]).sum())
    with pytest.raises(ValueError, match=r"exchange='int8' with .sharded\(\): FSDP exchanges"):
        builder.dataset(Numbers(20)).batch_size(4).num_epochs(1).sharded().exchange("int8").run()


@each_row(
    ("settings", "told"),
    [
        (
            {"policy": "cadence"},
            r"policy 'cadence' with .sharded\(\): FSDP averages .*leave policy out",
        ),
        ({"partition_ratios": (0.7, 0.3)}, r"partition_ratios with .sharded\(\): FSDP averages"),
        ({"lr_scale_ratio": 0.5}, r"lr_scale_ratio with .sharded\(\)"),
    ],
)
def test_so_is_what_would_have_no_effect_on_one(settings: dict[str, object], told: str) -> None:
    builder = Trainer.builder(linear, sgd, lambda model, batch: model(batch[0]).sum())
    with pytest.raises(ValueError, match=told):
        builder.dataset(Numbers(20)).batch_size(4).num_epochs(1).sharded().ddp(settings).run()


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="exchange='int4': use one of float32, bf16, int8"):
        DdpRunConfig(exchange="int4")  # type: ignore[arg-type]
