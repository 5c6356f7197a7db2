"""DistributedDataParallel around a graph: one process, and two that share a batch over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tests.flodl.ecosystem.networks import assert_same, mixture, mixture_inputs, recurrent

GRAPHS = {"mixture": mixture, "recurrent": recurrent}
STEPS, BATCH = 3, 8


def given(kind: str) -> list[tuple[Tensor, ...]]:
    """The inputs of every step, for the whole batch."""
    torch.manual_seed(1)
    batches = [mixture_inputs(BATCH) for _ in range(STEPS)]
    return [inputs if kind == "mixture" else inputs[:1] for inputs in batches]


def train(kind: str, rank: int, world: int, *, wrapped: bool) -> dict[str, Tensor]:
    """Some steps on this rank's share of every batch; the weights that come out."""
    torch.manual_seed(0 if rank == 0 else 99)  # DDP hands out the weights of rank 0
    graph = GRAPHS[kind]()
    model = DistributedDataParallel(graph) if wrapped else graph
    optimizer = torch.optim.SGD(graph.parameters(), lr=0.1)
    for inputs in given(kind):
        model(*(x.chunk(world)[rank] for x in inputs)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach().clone() for name, parameter in graph.named_parameters()}


@contextmanager
def group(rank: int, world: int, folder: Path) -> Iterator[None]:
    """Membership in a group of processes on this machine, which meet in a file."""
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def train_both(rank: int, world: int, folder: Path) -> None:
    """What every process does: join, train each graph, leave the weights."""
    with group(rank, world, folder):
        weights = {kind: train(kind, rank, world, wrapped=True) for kind in GRAPHS}
    torch.save(weights, folder / f"{rank}.pt")


@pytest.fixture(autouse=True)
def _loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_wrapped_graph_trains_like_the_graph_itself(kind: str, tmp_path: Path):
    with group(0, 1, tmp_path):
        wrapped = train(kind, 0, 1, wrapped=True)
    assert_same(wrapped, train(kind, 0, 1, wrapped=False))


@pytest.mark.usefixtures("forked_spawns")
def test_two_processes_agree_with_one_that_sees_the_whole_batch(tmp_path: Path):
    other = get_context("spawn").Process(target=train_both, args=(1, 2, tmp_path))
    other.start()
    try:
        train_both(0, 2, tmp_path)
        other.join(timeout=60)
        assert other.exitcode == 0
    finally:
        other.kill()
    for rank in (0, 1):
        weights = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for kind in GRAPHS:
            assert_same(weights[kind], train(kind, 0, 1, wrapped=False))
