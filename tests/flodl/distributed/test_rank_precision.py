"""`.precision("bf16")` of several ranks, alone and with guards."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Batch, DataLoader, GradScaler, RunDirectory
from flodl.ranks.group import Group
from flodl.train.run.verify import verify_run
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.test_rank_guards import (
    BATCH,
    SAMPLES,
    acts,
    bad_sample,
    same,
    train as train_guarded,
)
from tests.flodl.distributed.trainings import Numbers, Outcome, train

TOLD = re.compile(r"bf16-mixed: loss \S+ of the first batch, \S+ in float32")


def network(_: object = None) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def train_in_bf16(group: Group, policy: str) -> tuple[Outcome, set[torch.dtype], str]:
    """What a rank saw, the dtypes of its outputs in training, and what it printed."""
    dtypes: set[torch.dtype] = set()

    def loss(net: nn.Module, batch: Batch, *_: object) -> Tensor:
        output = net(batch[0])
        if net.training:
            dtypes.add(output.dtype)
        return nn.functional.mse_loss(output, batch[1])

    with contextlib.redirect_stdout(io.StringIO()) as said:
        outcome = train(
            group, n=128, policy=policy, model=network, optimizer=momentum, loss=loss,
            builder={"precision": "bf16"},
        )  # fmt: skip
    return outcome, dtypes, said.getvalue()


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_every_rank_computes_in_bf16_and_keeps_its_weights_in_float32(
    ranks: Ranks, policy: str
) -> None:
    results = ranks(2, train_in_bf16, policy)
    for outcome, dtypes, _ in results:
        assert dtypes == {torch.bfloat16}
        assert {value.dtype for value in (*outcome.params, *outcome.moments)} == {torch.float32}
    assert same(results[0][0].params, results[1][0].params)
    # The comparison with float32 belongs to the training, so only the first rank makes it.
    assert [len(TOLD.findall(said)) for _, _, said in results] == [1, 0]


def test_ranks_in_step_are_the_plain_loop_over_both_batches_to_the_bit(ranks: Ranks) -> None:
    outcomes = [outcome for outcome, _, _ in ranks(2, train_in_bf16, "sync")]
    torch.manual_seed(42)
    model = network()
    optimizer = momentum(model.parameters())
    batches = [batch for epoch in range(2) for batch in DataLoader(Numbers(128), 8).epoch(epoch)]
    for pair in zip(batches[::2], batches[1::2], strict=True):
        gradients = []
        for batch in pair:
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.mse_loss(model(batch[0]), batch[1])
            gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        for parameter, *both in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = (both[0] + both[1]) / 2
        optimizer.step()
    for outcome in outcomes:
        assert same(outcome.params, [parameter.detach() for parameter in model.parameters()])


def test_two_ranks_in_bf16_go_back_together(ranks: Ranks, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path)
    bad = (bad_sample(),)
    (first, _), (second, _) = ranks(2, train_guarded_in_bf16, run, bad)
    assert same(first, second)
    assert acts(run, "skip")[0].value["batches"] == [44, 45]
    found = verify_run(run.path)
    assert found.proven
    assert found.samples_left_out == 4 * BATCH
    assert found.samples_once == 2 * SAMPLES - 4 * BATCH


def train_guarded_in_bf16(
    group: Group, run: RunDirectory, bad: tuple[int, ...]
) -> tuple[list[Tensor], list[float]]:
    return train_guarded(group, run, bad, 1e6, {"every": 5}, precision="bf16")


def train_in_fp16(group: Group, scaler: Any) -> Outcome:
    builder = {"autocast": torch.float16, "grad_scaler": scaler, "max_grad_norm": 1.0}
    return train(group, n=24, policy="sync", model=network, optimizer=momentum, builder=builder)


@pytest.mark.parametrize(
    "scaler", [GradScaler(), torch.amp.GradScaler("cpu")], ids=["flodl", "torch"]
)
def test_a_rank_without_a_batch_takes_the_steps_of_the_others_in_fp16(
    ranks: Ranks, scaler: Any
) -> None:
    first, second = ranks(2, train_in_fp16, scaler)  # three batches: one rank has the last alone
    assert [len(one.batches) for one in (first, second)] == [4, 2]
    assert same(first.params, second.params)
    assert same(first.moments, second.moments)
