"""Ranks on GPUs: what is said of ranks on processors, over NCCL and through host memory.

Where there is one GPU only, two ranks share it. NCCL refuses that, so they speak Gloo.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from flodl.ddp_bench.request import Request, cells_of, ensure_data
from flodl.ddp_bench.summary import read_folder, summarise
from flodl.ddp_bench.sweep import sweep
from flodl.launch.group import Group, LocalGroup, ProcessGroups
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import Outcome, sgd, train

GPUS = torch.cuda.device_count()

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="needs a CUDA device")]

POLICIES = ("sync", "cadence", "async")
BACKENDS = ("nccl", "cpu")


def on_gpus(ranks: Ranks, policy: str, backend: str, exact: bool = False) -> list[Outcome]:
    device = "cuda:{rank}" if GPUS > 1 else "cuda:0"
    return ranks(2, train_on_gpu, policy, backend, exact, GPUS > 1, device=device, limit=120)


def train_on_gpu(
    group: Group, policy: str, backend: str, exact: bool, own_gpu: bool = True
) -> Outcome:
    if not own_gpu and isinstance(group, ProcessGroups):
        group._device_group = group._host
    return train(
        group,
        n=403,
        epochs=3,
        policy=policy,
        model=network,
        optimizer=sgd,
        settings={"backend": backend, "speeds": (2.0, 1.0)[: group.world_size]},
        builder={"deterministic": exact},
    )


def network(_: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 1))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_ranks_train_every_sample_once_and_end_with_one_model(
    ranks: Ranks, policy: str, backend: str
) -> None:
    outcomes = on_gpus(ranks, policy, backend)
    samples = Counter(number for outcome in outcomes for number in outcome.samples)
    assert samples == Counter(dict.fromkeys(range(403), 3))
    for mine, theirs in zip(outcomes[0].params, outcomes[1].params, strict=True):
        assert torch.equal(mine, theirs)
    losses = [epoch.avg_loss for epoch in outcomes[0].metrics]
    assert losses[-1] < losses[0]
    names = {rank.device for rank in outcomes[0].metrics[-1].per_rank}
    assert all(name.startswith("cuda") for name in names)


@pytest.mark.parametrize("policy", POLICIES)
def test_backends_differ_by_rounding_only(ranks: Ranks, policy: str) -> None:
    direct, through_host = (on_gpus(ranks, policy, backend, True)[0] for backend in BACKENDS)
    for mine, theirs in zip(direct.params, through_host.params, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_rank_trains_as_it_does_on_the_processor(policy: str) -> None:
    there, here = (
        train_on_gpu(LocalGroup(torch.device(kind)), policy, "nccl", True)
        for kind in ("cuda", "cpu")
    )
    assert there.samples == here.samples
    for mine, theirs in zip(there.params, here.params, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
@pytest.mark.skipif(GPUS < 2, reason="needs two CUDA devices")
@pytest.mark.case("distributed", 63)
def test_resnet_20_learns_on_two_gpus_as_on_one_and_wastes_little(tmp_path: Path) -> None:
    request = Request(
        models=("resnet",),
        modes=("solo-0", "solo-1", "nccl-cadence", "nccl-async"),
        output=tmp_path,
        data_dir=Path(os.environ.get("FLODL_BENCH_DATA", "data")),
        ranks=2,
    )
    ensure_data(request)
    assert [outcome.reason for outcome in sweep(cells_of(request))] == [""] * 4
    (model,) = summarise(read_folder(tmp_path)[0])
    for mode in ("nccl-cadence", "nccl-async"):
        found = model.mode(mode)
        assert found is not None
        assert found.eval >= 0.9125
        used = model.efficiency(found)
        assert used is not None
        assert used >= 0.85
