"""Each rank keeps its own state of what the program registers and of modules' extra state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import RunDirectory, Trainer
from flodl.ranks.group import Group
from flodl.train.runner import carry_out
from tests.flodl.distributed.ranks import RankError, Ranks
from tests.flodl.distributed.trainings import Numbers, plan_of, sgd


class Queue:
    """Values that every rank adds to."""

    def __init__(self, values: Any = ()) -> None:
        self.values: Any = list(values)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: Any) -> None:
        self.values = list(state["values"])


class Counting(nn.Linear):
    """A layer that counts its calls on this rank."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.calls: Any = {"count": torch.zeros(1)}

    def forward(self, x: Tensor) -> Tensor:
        self.calls["count"] += 1
        return super().forward(x)

    def get_extra_state(self) -> Any:
        return self.calls

    def set_extra_state(self, state: Any) -> None:
        self.calls = state


def trained(
    group: Group, policy: str, epochs: int, root: str, resume: str | None
) -> tuple[list[float], int, Any, Any]:
    queue = Queue()
    critic = nn.Linear(3, 1)
    second = torch.optim.Adam(critic.parameters(), lr=0.01 * (1 + group.rank))
    began: list[int] = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        if not began:
            began.append(len(queue.values))
        critic(batch[0]).square().mean().backward()
        second.step()
        second.zero_grad()
        queue.values.append(float(batch[2].sum()))
        return (model(batch[0]) - batch[1]).square().mean()

    builder = Trainer.builder(lambda _: Counting(), sgd, step).dataset(Numbers(64)).batch_size(8)
    builder.num_epochs(epochs).policy(policy).deterministic().resume(resume)
    builder.state("queue", queue).state("second", second).state("critic", critic)
    if group.leads and root:
        builder.run_dir(RunDirectory.create(root))
    model = carry_out(plan_of(builder), group).model
    moments = [value["exp_avg"].tolist() for value in second.state.values()]
    return queue.values, began[0], int(model.calls["count"]), moments


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_every_rank_continues_with_its_own(ranks: Ranks, policy: str, tmp_path: Path) -> None:
    first = ranks(2, trained, policy, 1, str(tmp_path / "a"), None)
    (run,) = (tmp_path / "a").iterdir()
    second = ranks(2, trained, policy, 2, "", str(run))
    assert first[0][0] != first[1][0]
    for (before, _, calls, _), (after, began, more, _) in zip(first, second, strict=True):
        assert began == len(before) == calls
        assert after[: len(before)] == before
        assert more == len(after) > len(before)


def test_the_second_optimizer_of_each_rank_continues_to_the_bit(
    ranks: Ranks, tmp_path: Path
) -> None:
    whole = ranks(2, trained, "sync", 2, "", None)
    ranks(2, trained, "sync", 1, str(tmp_path / "a"), None)
    (run,) = (tmp_path / "a").iterdir()
    assert [one[0] for one in ranks(2, trained, "sync", 2, "", str(run))] == [
        one[0] for one in whole
    ]
    assert [one[3] for one in ranks(2, trained, "sync", 2, "", str(run))] == [
        one[3] for one in whole
    ]


def test_new_ranks_begin_with_the_state_of_the_first(ranks: Ranks, tmp_path: Path) -> None:
    first = ranks(2, trained, "sync", 1, str(tmp_path / "a"), None)
    (run,) = (tmp_path / "a").iterdir()
    third = ranks(3, trained, "sync", 2, "", str(run))
    assert third[2][0][: len(first[0][0])] == first[0][0]


class Sparse(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 1)
        self.register_buffer("adjacency", torch.eye(2).to_sparse())


def train_sparse(group: Group) -> None:
    builder = Trainer.builder(lambda _: Sparse(), sgd, lambda m, b: m(b[0]).mean())
    builder.dataset(Numbers(64)).batch_size(8).num_epochs(1)
    carry_out(plan_of(builder), group)


def test_a_sparse_buffer_is_refused_with_its_name(ranks: Ranks) -> None:
    with pytest.raises(
        RankError, match=r"adjacency is torch.float32 \(torch.sparse_coo\), which ra"
    ):
        ranks(2, train_sparse)
