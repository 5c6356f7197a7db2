"""Many ranks that train a model, an optimizer or a scheduler of torch as a program gives them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from flodl import Trainer
from flodl.ranks.group import Group
from flodl.train import Callback, RunDirectory
from flodl.train.runner import carry_out
from tests import fork_server
from tests.flodl.distributed.ranks import RankError, Ranks
from tests.flodl.distributed.trainings import Numbers, plan_of

PROGRAM = """
import multiprocessing, sys
import torch
from torch import nn
from flodl import DataLoader, TensorDataSet, Trainer

inputs = torch.linspace(-1, 1, 64).reshape(64, 1)


def start():
    torch.manual_seed(7)
    return nn.Linear(1, 1)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def loss(net, batch):
    return (net(batch[0]) - 3 * batch[0]).square().mean()


if __name__ == "__main__":
    multiprocessing.set_executable(sys.argv[1])  # ranks do not import torch each time
    given, alone = start(), start()
    builder = Trainer.builder(given, sgd(given.parameters()), loss)
    builder.dataset(TensorDataSet(inputs)).batch_size(4).num_epochs(2).ranks(2).policy("sync")
    trained = builder.lr_scale_ratio(0.0).run().model
    optimizer = sgd(alone.parameters())
    for epoch in range(2):
        for batch in DataLoader(TensorDataSet(inputs), 8).epoch(epoch):
            optimizer.zero_grad()
            loss(alone, batch).backward()
            optimizer.step()
    print(trained is given, torch.allclose(given.weight, alone.weight, atol=1e-6))
"""


def test_ranks_of_its_own_train_the_model_that_a_program_gives(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = (str(program), fork_server.torch_program(os.environ))
    done = fork_server.python(*words, cwd=tmp_path, timeout=240, torch=True, abrupt=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True True"
    assert "earlier run()" not in done.stderr


class Rates(Callback):
    """The learning rate of every batch, by the number of the batch that a rank trained."""

    def __init__(self, cut: int | None = None) -> None:
        self.cut = cut
        self.seen: list[float] = []
        self.optimizer: torch.optim.Optimizer

    def train_fn(self, model: nn.Module, batch: Any) -> Tensor:
        self.seen.append(float(self.optimizer.param_groups[0]["lr"]))
        return (model(batch[0]) - batch[1]).square().mean()

    def on_step_end(self, run: Any) -> None:
        if run.step == self.cut:
            run.stop("enough")


def described(rates: Rates, policy: str) -> Any:
    torch.manual_seed(len(rates.seen))
    model = nn.Linear(3, 1)
    rates.optimizer = optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    builder = Trainer.builder(model, optimizer, rates.train_fn).dataset(Numbers(160)).batch_size(8)
    builder.num_epochs(2).engine("eager").progress(False)
    if rates.cut is not None:
        builder.callbacks(rates)
    return builder.ddp({"policy": policy, "lr_scale_ratio": 0.0, "simulate_ms": (2.0, 2.0)})


def cycle(optimizer: Any) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40)


def expected() -> list[float]:
    """The rate of each position of the cycle."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05, momentum=0.9)
    scheduler, rates = cycle(optimizer), []
    for _ in range(40):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_ranks_follow_one_cycle_through_the_batches_of_all(ranks: Ranks, policy: str) -> None:
    for seen, weights in (outcomes := ranks(2, train_by_step, policy)):
        assert set(seen) <= set(expected())
        assert len(seen) + len(outcomes[0][0]) == 40 or policy == "cadence"
        assert seen[0] == expected()[0]
        assert torch.equal(weights, outcomes[0][1])
    if policy == "sync":
        assert outcomes[0][0] == outcomes[1][0] == expected()[::2]


def train_by_step(group: Group, policy: str) -> tuple[list[float], Tensor]:
    rates = Rates()
    if group.rank:  # ranks begin with the values of the first, whatever theirs are
        rates.seen.append(0.0)
    builder = described(rates, policy).lr_scheduler(cycle, "step")
    rates.seen.clear()
    return rates.seen, carry_out(plan_of(builder), group).join().params[0]


def halving(optimizer: Any) -> Any:
    return lr_scheduler.StepLR(optimizer, 1, 0.5)


@pytest.mark.parametrize("policy", ["sync", "cadence", "async"])
def test_ranks_change_their_rate_together_at_the_end_of_an_epoch(ranks: Ranks, policy: str) -> None:
    both = ranks(2, train_by_epoch, policy)
    assert {rate for seen in both for rate in seen} == {0.05, 0.025}
    for seen in both:
        # Only `sync` gives every rank batches of every epoch, however slow the rank is.
        assert policy != "sync" or set(seen) == {0.05, 0.025}
        assert seen == sorted(seen, reverse=True)
    assert sum(seen.count(0.05) for seen in both) == 20
    assert sum(seen.count(0.025) for seen in both) == 20


def train_by_epoch(group: Group, policy: str) -> list[float]:
    rates = Rates()
    carry_out(plan_of(described(rates, policy).lr_scheduler(halving)), group)
    return rates.seen


def test_ranks_that_are_resumed_go_on_with_the_rates(ranks: Ranks, tmp_path: Path) -> None:
    whole = ranks(2, train_by_step, "sync")
    parts = ranks(2, train_in_two_runs, tmp_path)
    for (seen, weights), (all_seen, all_weights) in zip(parts, whole, strict=True):
        assert seen == all_seen
        assert torch.equal(weights, all_weights)


def train_in_two_runs(group: Group, root: Path) -> tuple[list[float], Tensor]:
    path = root / "runs"
    seen: list[float] = []
    for cut in (7, None):
        rates = Rates(cut)
        builder = described(rates, "sync").lr_scheduler(cycle, "step")
        if group.leads:
            if cut is None:
                (run,) = path.iterdir()
                builder.resume(run / "kept.fdl")
            else:
                run = RunDirectory.create(path)
                builder.run_dir(run)
        handle = carry_out(plan_of(builder), group)
        if cut is not None and group.leads:
            (run,) = path.iterdir()
            (run / "last.fdl").rename(run / "kept.fdl")
        group.barrier()
        seen += rates.seen
    return seen, handle.join().params[0]


def test_rates_that_are_scaled_for_the_ranks_are_refused(ranks: Ranks) -> None:
    with pytest.raises(RankError, match=r"write \.lr_scale_ratio\(0\)"):
        ranks(2, train_scaled)


def train_scaled(group: Group) -> None:
    builder = described(Rates(), "cadence").lr_scheduler(halving).lr_scale_ratio(1.0)
    carry_out(plan_of(builder), group)


def test_a_closure_is_refused_in_ranks(ranks: Ranks) -> None:
    with pytest.raises(RankError, match=r"LBFGS evaluates the loss several times.*2 ranks"):
        ranks(2, train_with_lbfgs)


def train_with_lbfgs(group: Group) -> None:
    builder = Trainer.builder(lambda _: nn.Linear(3, 1), torch.optim.LBFGS, Rates().train_fn)
    builder.dataset(Numbers(16)).batch_size(8).num_epochs(1).policy("cadence")
    carry_out(plan_of(builder), group)


def test_an_unknown_metric_ends_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"keep_best watches 'los'.*did you mean 'loss'"):
        ranks(2, train_for_the_best, RunDirectory.create(tmp_path))


def train_for_the_best(group: Group, run: RunDirectory) -> None:
    builder = described(Rates(), "cadence").keep_best("los").run_dir(run.for_rank(group.rank))
    carry_out(plan_of(builder), group)


@pytest.mark.parametrize("policy", ["sync", "async"])
def test_ranks_keep_the_parts_of_a_model_in_their_modes(ranks: Ranks, policy: str) -> None:
    for modes, mean in ranks(2, train_with_frozen_norm, policy):
        assert modes == [True, False, True]
        assert mean == [0.0, 0.0, 0.0]


def train_with_frozen_norm(group: Group, policy: str) -> tuple[list[bool], list[float]]:
    norm, last = nn.BatchNorm1d(3), nn.Linear(3, 1)
    model = nn.Sequential(norm.eval().requires_grad_(False), last)
    rates = Rates()
    builder = Trainer.builder(model, lambda _: sgd(last), rates.train_fn).dataset(Numbers(64))
    rates.optimizer = torch.optim.SGD(last.parameters(), lr=0.05)
    builder.batch_size(8).num_epochs(2).progress(False).eval_fn(lambda _: {"one": 1.0})
    builder.ddp({"policy": policy, "simulate_ms": (2.0, 2.0)})
    carry_out(plan_of(builder), group)
    assert norm.running_mean is not None
    return [module.training for module in model.modules()], norm.running_mean.tolist()


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05)
