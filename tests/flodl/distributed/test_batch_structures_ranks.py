"""Batches of any structure that several ranks share in a loop of their own."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from flodl.ranks.group import Group, LocalGroup
from flodl.train.plain_loop.setup import SetupConfig, prepare
from tests.flodl.distributed.ranks import RankError, Ranks


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Example:
    x: Tensor
    ids: list[str]


class Encoding(UserDict[str, Any]):
    def to(self, device: Any) -> Encoding:
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


class Opaque:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def to(self, _: Any) -> Opaque:
        return self


class Net(nn.Module):
    """Reads the input of any batch, and notes how many samples came."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.inner = nn.Linear(3, 1)
        self.seen: list[tuple[int, int]] = []

    def forward(self, batch: Any) -> Tensor:
        x = batch["x"] if isinstance(batch, (dict, Encoding)) else batch.x
        ids = getattr(batch, "ids", None) or (batch["ids"] if isinstance(batch, dict) else [])
        self.seen.append((len(x), len(ids)))
        return self.inner(x)  # type: ignore[no-any-return]


X = torch.linspace(-1, 1, 24).reshape(8, 3)


def batch_of(kind: str) -> Any:
    names = [str(number) for number in range(8)]
    return {
        "named tuple": Pair(X, X),
        "data class": Example(X, names),
        "encoding": Encoding(x=X),
        "strings": {"x": X, "ids": names, "scale": 8, "note": None},
        "opaque": Opaque(X),
    }[kind]


def gradient(group: Group, kind: str) -> tuple[Tensor, list[tuple[int, int]]]:
    net = Net()
    config = SetupConfig(device="cpu")
    setup = prepare(net, None, lambda p: torch.optim.SGD(p, lr=0.1), config, group)
    for _ in range(2):
        setup(batch_of(kind)).square().mean().backward()
        setup.step()
    return net.inner.weight.detach(), net.seen


@pytest.mark.parametrize("kind", ["named tuple", "data class", "encoding", "strings"])
def test_two_ranks_share_the_rows_of_any_structure(ranks: Ranks, kind: str) -> None:
    alone, seen = gradient(LocalGroup(), kind)
    (one, first), (other, second) = ranks(2, gradient, kind)
    assert torch.allclose(one, alone, atol=1e-6)
    assert torch.equal(one, other)
    assert [a + b for (a, _), (b, _) in zip(first, second, strict=True)] == [8, 8]
    if seen[0][1]:
        assert all(samples == ids for samples, ids in first + second)


def test_ranks_refuse_an_object_that_they_cannot_divide(ranks: Ranks) -> None:
    with pytest.raises(RankError, match="a Opaque hides its tensors"):
        ranks(2, gradient, "opaque")
