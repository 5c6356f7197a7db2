"""What every training can do: alone, in ranks that share steps, in windows, with a sharded model.

Each test trains the same small program in each group, and asks the same of it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from flodl import Batch, Callback, DataLoader, Rewind, RunDirectory, Trainer
from flodl.checkpoint.sharded import whole
from flodl.errors import DivergedError
from flodl.ranks.group import Group, LocalGroup, ProcessGroups
from flodl.train import TrainerBuilder
from flodl.train.observers.journal import Journal
from flodl.train.runner import carry_out
from tests import fork_server
from tests.flodl.distributed.ranks import Ranks
from tests.flodl.distributed.trainings import PATIENT, Numbers, plan_of
from tests.rows import each_row

SAMPLES, BATCH, EPOCHS = 160, 4, 2
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[3]
GROUPS = ("alone", "sync", "cadence", "sharded")


def network(_: torch.device) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)
    )


def sharded_network(device: torch.device) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network(device)
    fully_shard(model, mesh=init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    return model


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02)


def halving(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)


@dataclass
class Loss:
    """A mean square error, spoiled for the batches that hold a sample."""

    bad: tuple[int, ...] = ()
    value: float = float("nan")

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = (net(batch[0]) - batch[1]).square().mean()
        return loss * self.value if set(self.bad) & set(batch[2].tolist()) else loss


@dataclass
class Case:
    """How a training of this test differs from the plainest one."""

    settings: tuple[tuple[str, Any], ...] = ()
    loss: Loss = field(default_factory=Loss)
    guards: Mapping[str, Any] | None = None

    def builder(self, kind: str, group: Group, run: RunDirectory) -> TrainerBuilder:
        data: Any = Numbers(SAMPLES)
        model = sharded_network if kind == "sharded" else network
        if kind == "sharded":  # a program that shards its model also divides the data
            rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
            data = Subset(data, range(rank, SAMPLES, ranks))
        builder = (
            Trainer.builder(model, adam, self.loss)
            .dataset(data)
            .batch_size(BATCH)
            .num_epochs(EPOCHS)
            .device("cpu")
            .deterministic()
            .progress(False)
            .checkpoint_steps(5)
        )
        if kind == "sharded":
            builder.sharded()
        elif kind != "alone":
            builder.ddp({"policy": kind, "backend": "cpu", **PATIENT})
        if kind == "alone" or group.leads:
            builder.run_dir(run)
        elif kind != "sharded":
            builder.run_dir(run.for_rank(group.rank))
        if self.guards is not None:
            builder.guards(**self.guards)
        for name, value in self.settings:
            getattr(builder, name)(value)
        return builder


@dataclass
class Result:
    weights: list[Tensor]
    losses: list[float]
    average: list[Tensor]
    rates: list[float]


class Rates(Callback):
    def __init__(self) -> None:
        self.kept: list[float] = []

    def on_step_end(self, run: Any) -> None:
        self.kept.append(float(run.optimizer.param_groups[0]["lr"]))


def trained(builder: TrainerBuilder, kind: str, group: Group, *callbacks: Callback) -> Result:
    rates = Rates()
    plan = plan_of(builder.callbacks(rates, *callbacks))
    alone = kind in ("alone", "sharded")
    handle = carry_out(plan, LocalGroup(CPU) if alone else group, in_order=alone)
    # Each rank with a sharded model has buffers of its own, and the file has those of the first.
    model = handle.model
    state = model.state_dict() if group.leads else dict(model.named_parameters())
    weights = [whole(one).detach().clone() for one in state.values()]
    averaged = network(CPU)
    if plan.ema is not None:
        handle.average().load_into(averaged)
    losses = [one.avg_loss for one in handle.poll_metrics()]
    return Result(weights, losses, list(averaged.parameters()), rates.kept)


@dataclass
class Ends(Callback):
    """Ends a training in its second epoch, by an error or as Ctrl-C does."""

    how: str
    step: int

    def on_step_end(self, run: Any) -> None:
        if run.epoch == 1 and run.step >= self.step:
            self.step = 10_000
            if self.how == "error":
                raise RuntimeError("ended by the test")
            os.kill(os.getpid(), signal.SIGINT)


def run_of(group: Group, root: Path) -> RunDirectory:
    """Return one new run directory for all ranks."""
    run: RunDirectory = group.broadcast_object(RunDirectory.create(root) if group.leads else None)
    return run


def resumed(group: Group, kind: str, root: Path, case: Case, how: str) -> tuple[Result, Result]:
    """Train without a break, and with one; return both results."""
    runs = [run_of(group, root / name) for name in "abc"]
    expected = trained(case.builder(kind, group, runs[0]), kind, group)
    with pytest.raises((RuntimeError, KeyboardInterrupt)):
        trained(case.builder(kind, group, runs[1]), kind, group, Ends(how, 6))
    source = runs[1].path / "last.fdl"
    continued = case.builder(kind, group, runs[2]).resume(source)
    return expected, trained(continued, kind, group)


def in_each_group(ranks: Ranks, kind: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function as the processes of a group; return what each of them returns."""
    if kind == "alone":
        return [function(LocalGroup(CPU), kind, *arguments)]
    if kind == "sharded":
        return in_new_processes(function, kind, *arguments)
    return ranks(2, function, kind, *arguments)


def in_new_processes(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function in two ranks that were none before.

    DTensor remembers parts of tensors by mesh, and not by the rank of a process.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        job.write_bytes(pickle.dumps((function, arguments)))
        program = f"from {__name__} import as_rank; as_rank(*__import__('sys').argv[1:])"
        python = fork_server.torch_program(os.environ)
        started = [
            subprocess.Popen([python, "-c", program, str(rank), folder], cwd=ROOT)
            for rank in range(2)
        ]
        try:
            assert [process.wait(timeout=120) for process in started] == [0, 0]
        finally:
            for process in started:
                process.kill()
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(2)]


def as_rank(rank: str, folder: str) -> None:
    """Do the job in a folder as one of two ranks."""
    function, arguments = pickle.loads((Path(folder) / "job").read_bytes())
    group = ProcessGroups(
        rank=int(rank),
        world_size=2,
        local_rank=int(rank),
        device=CPU,
        store=torch._C._distributed_c10d.FileStore(f"{folder}/store", 2),
    )
    result = function(group, *arguments)
    (Path(folder) / rank).write_bytes(pickle.dumps(result))
    group.close()


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


PLAIN = Case()
CASES = {
    "plain": PLAIN,
    "with more settings": Case((
        ("ema", 0.9),
        ("lr_scheduler", halving),
        ("accumulate", 2),
        ("max_grad_norm", 0.1),
        ("seed", 7),
    )),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "with more settings") for kind in GROUPS),
        # What a signal ends is the plain one.
        *(pytest.param(kind, "plain", marks=pytest.mark.slow) for kind in GROUPS),
    ],
)
def test_a_training_that_an_error_ended_is_resumed_to_the_bit(
    ranks: Ranks, tmp_path: Path, kind: str, name: str
) -> None:
    told = in_each_group(ranks, kind, resumed, tmp_path / name, CASES[name], "error")
    check_resumed(kind, told)


@pytest.mark.parametrize("kind", [*GROUPS[:3], pytest.param("sharded", marks=pytest.mark.slow)])
def test_so_is_one_that_a_signal_ended(ranks: Ranks, tmp_path: Path, kind: str) -> None:
    check_resumed(kind, in_each_group(ranks, kind, resumed, tmp_path, PLAIN, "signal"))


def check_resumed(kind: str, told: list[tuple[Result, Result]]) -> None:
    for rank, (expected, found) in enumerate(told):
        assert same(expected.weights, found.weights)
        assert same(expected.average, found.average)
        assert expected.rates[-len(found.rates) :] == found.rates
        # The file of a sharded model has the history of the first rank.
        if kind != "sharded" or rank == 0:
            assert expected.losses == found.losses


# --- Guards ----------------------------------------------------------------------------------


def bad_sample() -> int:
    """A sample of the 37th batch, when 16 steps of two ranks are there to compare with."""
    return int(DataLoader(Numbers(SAMPLES), BATCH).order(0)[37 * BATCH])


@dataclass
class Rewinds(Callback):
    found: list[Rewind] = field(default_factory=list)

    def on_rewind(self, run: Any, rewind: Rewind) -> None:
        assert run.global_step == rewind.restored_step
        self.found.append(rewind)


def guarded(
    group: Group, kind: str, root: Path, case: Case
) -> tuple[Result | str, list[Rewind], list[str]]:
    """Train with guards; return the result or the error, what callbacks saw, and the acts."""
    run = run_of(group, root)
    watch = Rewinds()
    try:
        result: Result | str = trained(case.builder(kind, group, run), kind, group, watch)
    except DivergedError as error:
        result = str(error)
    file = run.path / "acts.jsonl"
    return result, watch.found, [act.act for act in Journal.read(file)] if file.exists() else []


GUARDED = GROUPS[:3]
"""Without a sharded model: no process holds a copy that it could go back to."""
GUARDED_AT_MERGE = ("alone", pytest.param("sync", marks=pytest.mark.slow), "cadence")
"""``test_rank_guards.py`` has guards of ranks that share steps."""


@pytest.mark.parametrize("kind", GUARDED_AT_MERGE)
@each_row("value", [float("nan"), float("inf"), 1e6])
def test_guards_leave_out_a_batch_that_spoils_the_loss(
    ranks: Ranks, tmp_path: Path, kind: str, value: float
) -> None:
    case = Case(loss=Loss((bad_sample(),), value), guards={"every": 5})
    told = in_each_group(ranks, kind, guarded, tmp_path / str(value), case)
    for result, rewinds, _ in told:
        assert isinstance(result, Result)
        assert all(one.isfinite().all() for one in result.weights if one.is_floating_point())
        assert max(result.losses) < 5.0
        assert rewinds
        assert all(bad_sample() in rewind.samples for rewind in rewinds)
    assert {"rewind", "skip"} <= set(told[0][2])


@pytest.mark.parametrize("kind", GUARDED_AT_MERGE)
@each_row("name", list(CASES))
def test_guards_change_no_bit_of_an_undisturbed_training(
    ranks: Ranks, tmp_path: Path, kind: str, name: str
) -> None:
    plain, case = CASES[name], Case(CASES[name].settings, guards={"every": 1000, "lower_lr": 1})
    for (without, *_), (with_, *_) in zip(
        in_each_group(ranks, kind, guarded, tmp_path / name / "a", plain),
        in_each_group(ranks, kind, guarded, tmp_path / name / "b", case),
        strict=True,
    ):
        assert same(without.weights, with_.weights)
        assert same(without.average, with_.average)
        assert without.losses == with_.losses


@pytest.mark.parametrize("kind", GUARDED)
def test_guards_that_give_up_name_the_module(ranks: Ranks, tmp_path: Path, kind: str) -> None:
    case = Case(loss=Loss(tuple(range(SAMPLES))), guards={"attempts": 1})
    told = in_each_group(ranks, kind, guarded, tmp_path, case)
    assert told[0][2][-1] == "give_up"
    for result, *_ in told:
        assert isinstance(result, str)
        assert "the guards give up after 1 of 1 attempts at this place" in result
        # A process that is alone ends a step at its loss, before there is a gradient.
        finite = "all modules were finite" if kind == "alone" else "module 4 (Linear)"
        assert finite in result
