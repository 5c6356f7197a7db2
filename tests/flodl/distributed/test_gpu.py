"""Ranks on GPUs: what is said of ranks on processors, over NCCL and through host memory.

Where there is one GPU only, two ranks share it. NCCL refuses that, so they speak Gloo.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flodl.ddp_bench.harness import device_name
from flodl.ddp_bench.models import TASKS
from flodl.ddp_bench.request import Request, cells_of, ensure_data
from flodl.ddp_bench.summary import read_folder, summarise
from flodl.ddp_bench.sweep import sweep
from flodl.ranks.clocks import DeviceWatch
from flodl.ranks.group import Group, LocalGroup, ProcessGroups
from flodl.train.plain_loop.setup import SetupConfig, prepare
from flodl.train.plain_loop.sharing import OwnRandomness
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


def loop_of_ones_own(group: Group, own_gpu: bool = True, dropout: float = 0.0) -> dict[str, Any]:
    if not own_gpu and isinstance(group, ProcessGroups):
        group._device_group = group._host
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 4))
    setup = prepare(model, None, sgd, SetupConfig(device=str(group.device)), group)
    draw = torch.Generator().manual_seed(11)
    for _ in range(30):
        inputs, labels = torch.randn(70, 6, generator=draw), torch.randint(4, (70,), generator=draw)
        loss = cross_entropy(setup(inputs.to(group.device)), labels.to(group.device))
        loss.backward()
        setup.step()
    return {
        "weights": [p.detach().cpu() for p in model.parameters()],
        "sizes": setup.shard_sizes,
        "kind": next(model.parameters()).device.type,
    }


def test_a_loop_of_ones_own_shares_batches_among_gpus(ranks: Ranks) -> None:
    device = "cuda:{rank}" if GPUS > 1 else "cuda:0"
    shared = ranks(2, loop_of_ones_own, GPUS > 1, device=device, limit=120)
    alone = loop_of_ones_own(LocalGroup(torch.device("cuda:0")))
    assert {one["kind"] for one in (*shared, alone)} == {"cuda"}
    assert sum(shared[0]["sizes"]) == 70
    assert min(shared[0]["sizes"]) > 0
    for mine, theirs, whole in zip(*(one["weights"] for one in (*shared, alone)), strict=True):
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine, whole, rtol=1e-3, atol=1e-5)
    with_dropout = ranks(2, loop_of_ones_own, GPUS > 1, 0.2, device=device, limit=120)
    for mine, theirs, plain in zip(
        *(one["weights"] for one in (*with_dropout, shared[0])), strict=True
    ):
        assert torch.equal(mine, theirs)
        assert not torch.equal(mine, plain)


def test_tensors_of_a_gpu_are_exchanged_by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    group = ProcessGroups(
        rank=0,
        world_size=1,
        local_rank=0,
        device=torch.device("cuda:0"),
        store=dist.HashStore(),  # type: ignore[attr-defined]
    )
    try:
        assert dist.get_backend(group._device_group) == "nccl"
        values = torch.arange(3.0, device=group.device)
        group.broadcast_(values)
        group.all_reduce_(values)
        assert values.tolist() == [0, 1, 2]
        assert device_name(group.device) == torch.cuda.get_device_name(0)
    finally:
        group.close()


def test_the_random_numbers_of_a_rank_on_a_gpu_are_its_own() -> None:
    device = torch.device("cuda:0")

    def number() -> list[float]:
        return torch.rand(3, device=device).tolist()

    def drawn(rank: int) -> tuple[list[list[float]], list[list[float]]]:
        torch.manual_seed(5)
        randomness = OwnRandomness(rank, device)
        own, common = [], []
        for _ in range(2):
            randomness.enter()
            own.append(number())
            randomness.leave()
            common.append(number())
        return own, common

    (first, common), (second, other) = drawn(0), drawn(1)
    torch.manual_seed(5)
    assert common == other == [number(), number()]
    assert len({tuple(one) for one in (*first, *second, *common)}) == 6


def test_a_step_on_a_gpu_is_timed_there() -> None:
    watch = DeviceWatch()
    watch.start()
    torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call] # cycles, at most 2.5 GHz
    watch.stop()
    assert watch.take(1, wait=True) >= 20


def resnet_of(group: Group) -> tuple[list[float], list[Tensor]]:
    """Train ResNet-20 of the benchmark on shares of batches of coloured noise."""
    if isinstance(group, ProcessGroups) and GPUS == 1:
        group._device_group = group._host
    torch.manual_seed(3)
    torch.backends.cudnn.deterministic = True
    model = TASKS["resnet"].build()
    slow = partial(torch.optim.SGD, lr=0.01)  # above it, the loss jumps now and then
    setup = prepare(model, None, slow, SetupConfig(device=str(group.device)), group)
    draw, losses = torch.Generator().manual_seed(11), []
    colours = torch.randn(10, 3, 1, 1, generator=draw)
    for _ in range(30):
        labels = torch.randint(10, (64,), generator=draw)
        images = colours[labels] + 0.3 * torch.randn(64, 3, 32, 32, generator=draw)
        loss = cross_entropy(setup(images.to(group.device)), labels.to(group.device))
        loss.backward()
        setup.step()
        losses.append(loss.item())
    return losses, [parameter.detach().cpu() for parameter in model.parameters()]


def test_resnet_20_learns_in_two_processes(ranks: Ranks) -> None:
    device = "cuda:{rank}" if GPUS > 1 else "cuda:0"
    (losses, mine), (_, theirs) = ranks(2, resnet_of, device=device, limit=120)
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


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
