"""A model set up on many ranks: how they begin, windows by speed, learning rates."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from flodl import Trainer
from flodl.data import DataLoader, TensorDataSet
from flodl.errors import DistributedError, StateError
from flodl.graph import FlowBuilder, LossContext
from flodl.monitor import Timeline
from flodl.ranks.group import Group, LocalGroup
from flodl.ranks.settings import DdpConfig
from flodl.train.plain_loop import shared_loop
from flodl.train.plain_loop.setup import SetupConfig, TrainingSetup, prepare
from flodl.train.plain_loop.shared_loop import best_device, launch_command
from tests import fork_server
from tests.flodl.distributed.ranks import RankError, Ranks
from tests.flodl.distributed.test_raw_loop import Declared, gradients, sgd

CPU = SetupConfig(device="cpu")


def line(samples: int) -> TensorDataSet:
    x = torch.linspace(-1, 1, samples).unsqueeze(1)
    return TensorDataSet(x, 3 * x - 1, names=("x", "y"))


def network() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))


def error(context: LossContext) -> Tensor:
    return mse_loss(context.output, context.batch["y"])


def windowed(
    group: Group,
    config: SetupConfig | DdpConfig = CPU,
    *,
    samples: int = 64,
    batch_size: int = 8,
    ms: tuple[float, ...] = (40.0, 100.0),
    model: nn.Module | None = None,
) -> TrainingSetup:
    watch = Declared(ms[group.rank % len(ms)])
    setup = prepare(model or network(), None, sgd, config, group, watch)
    setup.set_data_loader(DataLoader(line(samples), batch_size, drop_last=False), "x")
    setup.set_loss_fn(error)
    return setup


# --- How ranks begin -------------------------------------------------------------------------


def beginning(group: Group) -> dict[str, Any]:
    torch.manual_seed(group.rank)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).eval()
    model.register_buffer("odd", torch.rand(4, 4, dtype=torch.bfloat16).T > 0.5)
    setup = prepare(model, None, sgd, CPU, group)
    return {
        "state": model.state_dict(),
        "training": model.training,
        "world": (setup.rank, setup.world_size, setup.is_distributed),
        "devices": setup.devices,
        "parts": (setup.chunk_ratios, setup.throughput, setup.shard_sizes, setup.training_step),
        "el_che": setup.has_el_che,
    }


def test_ranks_begin_with_the_parameters_and_buffers_of_the_first(ranks: Ranks) -> None:
    found = ranks(2, beginning)
    torch.manual_seed(0)
    first = nn.Linear(2, 3)
    assert torch.equal(found[1]["state"]["0.weight"], first.weight)
    for rank, one in enumerate(found):
        for name, value in found[0]["state"].items():
            assert torch.equal(one["state"][name], value), name
        assert one["training"]
        assert one["world"] == (rank, 2, True)
        assert one["devices"] == (torch.device("cpu"),) * 2
        assert one["parts"] == ((0.5, 0.5), (0.0, 0.0), (0, 0), 0)
        assert not one["el_che"]


def other_model(group: Group) -> None:
    prepare(nn.Linear(2, 3 + group.rank), None, sgd, CPU, group)


def test_models_that_differ_are_refused_with_the_parameter_that_does(ranks: Ranks) -> None:
    with pytest.raises(RankError, match=r"weight is '\[3, 2\] torch.float32' on rank 0 and"):
        ranks(2, other_model)


def test_one_process_has_no_ranks_and_no_hooks() -> None:
    model = network()
    setup = Trainer.setup(model, None, sgd, device="cpu")
    assert not setup.is_distributed
    assert (setup.rank, setup.world_size, setup.devices) == (0, 1, (torch.device("cpu"),))
    assert not setup.has_el_che
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not torch.distributed.is_initialized()
    assert torch.equal(setup(torch.ones(1, 1)), setup.forward(torch.ones(1, 1)))
    assert setup.graph is model


def test_a_model_without_values_is_made_by_its_factory() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    setup = Trainer.setup(model, lambda device: nn.Linear(2, 2).to(device), sgd, device="cpu")
    assert setup.model is not model
    held = [p for group in setup.optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in setup.model.parameters()}
    with pytest.raises(NotImplementedError):
        Trainer.setup(model, None, sgd, device="cpu")


PROGRAM = """
import os
import sys
from pathlib import Path

import torch
from torch import nn

from flodl import Trainer

torch.manual_seed(int(os.environ["RANK"]))
model = nn.Linear(4, 1)
setup = Trainer.setup(model, None, lambda p: torch.optim.SGD(p, lr=0.1), device="cpu")
other = Trainer.setup(nn.Linear(1, 1), None, lambda p: torch.optim.SGD(p, lr=0.1), device="cpu")
for step in range(5):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
    model(x).square().mean().backward()
    setup.step()
told = f"{setup.world_size} {setup.shard_sizes} {model.weight.sum().item():.6f}"
Path(sys.argv[1], str(setup.rank)).write_text(told)
"""


@pytest.mark.slow
def test_a_program_that_torchrun_starts_trains_on_all_of_its_ranks(tmp_path: Path) -> None:
    program = tmp_path / "loop.py"
    program.write_text(PROGRAM, encoding="utf-8")
    python = fork_server.torch_program(os.environ)
    torchrun = [python, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", str(program), str(tmp_path)],
        env={**os.environ, "PYTHON_EXEC": python},
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    told = [(tmp_path / rank).read_text(encoding="utf-8") for rank in "01"]
    assert [line[:8] for line in told] == ["2 (3, 3)"] * 2

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    for printed in told:
        assert float(printed.split()[-1]) == pytest.approx(model.weight.sum().item(), abs=2e-6)


# --- Several GPUs and no launcher ------------------------------------------------------------


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small GPU first and a large one second, as far as anybody asks."""
    sizes = [
        SimpleNamespace(multi_processor_count=10, total_memory=6),
        SimpleNamespace(multi_processor_count=36, total_memory=16),
    ]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: sizes[index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {'ab'[index]}")
    monkeypatch.setattr(shared_loop, "usable_gpus", lambda: [0, 1])


@pytest.mark.usefixtures("two_gpus")
def test_without_a_launcher_the_largest_gpu_trains_and_the_way_to_all_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["my train.py", "--epochs", "5"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert best_device() == torch.device("cuda:1")
    assert capsys.readouterr().out == (
        "  2 GPUs are usable and this program runs on one, cuda:1 (GPU b); on all of them:\n"
        "    torchrun --standalone --nproc-per-node=2 -- 'my train.py' --epochs 5\n"
        "  or, as a command of an fdl project, fdl train --ranks 2\n"
    )


def test_the_launch_command_of_a_module_starts_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/train/__main__.py", "-v"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="train.__main__"))
    assert launch_command(3) == "torchrun --standalone --nproc-per-node=3 -m -- train -v"


# --- Windows ---------------------------------------------------------------------------------


def counted(group: Group, config: SetupConfig | DdpConfig, epochs: int) -> dict[str, Any]:
    setup = windowed(group, config, samples=1003, batch_size=8)
    trained: list[tuple[int, int]] = []
    plans, losses = [], []
    for epoch in range(epochs):
        for window in setup.epoch(epoch):
            count = window.counts[group.rank]
            trained += [(epoch, window.start + number) for number in range(count)]
            plans.append(window.counts)
            losses.append(window.loss)
            setup.step()
    return {
        "trained": trained,
        "plans": plans,
        "steps": setup.training_step,
        "weights": [p.detach().clone() for p in setup.model.parameters()],
        "finite": all(loss is None or bool(loss.isfinite()) for loss in losses),
        "el_che": setup.has_el_che,
    }


def test_windows_train_every_batch_once_and_give_fast_ranks_more(ranks: Ranks) -> None:
    found = ranks(2, counted, DdpConfig(), 2)
    everything = sorted(found[0]["trained"] + found[1]["trained"])
    assert everything == [(epoch, batch) for epoch in range(2) for batch in range(126)]
    for one in found:
        assert one["finite"]
        assert one["el_che"]
        assert one["plans"] == found[0]["plans"]
        assert one["plans"][0] == (3, 3)
        assert one["plans"][1] == (25, 10)
        assert one["steps"] == len(one["plans"])
        for mine, first in zip(one["weights"], found[0]["weights"], strict=True):
            assert torch.equal(mine, first)


def test_a_hint_is_heeded_from_the_first_window_on(ranks: Ranks) -> None:
    for hint in ((1, 2.5), (1, 0.4)):
        assert ranks(2, counted, DdpConfig(speed_hint=hint), 1)[0]["plans"][0] == (25, 10)
    with pytest.raises(RankError, match="speed_hint names rank 2; the ranks are 0 to 1"):
        ranks(2, counted, DdpConfig(speed_hint=(2, 2.0)), 1)


@pytest.mark.parametrize("config", [DdpConfig(max_anchor=0), CPU])
def test_without_windows_every_rank_trains_one_batch_per_step(
    ranks: Ranks, config: SetupConfig | DdpConfig
) -> None:
    found = ranks(2, counted, config, 1)
    assert not found[0]["el_che"]
    assert set(found[0]["plans"]) == {(1, 1)}
    assert len(found[0]["trained"] + found[1]["trained"]) == 126


def test_a_cap_of_windows_holds_from_the_first_on(ranks: Ranks) -> None:
    plans = ranks(2, counted, DdpConfig(max_anchor=2), 1)[0]["plans"]
    assert plans[0] == (2, 2)
    assert plans[1] == (5, 2)


def test_windows_adapt_by_themselves_where_the_ranks_are_of_different_kinds(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLODL_SIM_MS", "1,2")
    assert [found["el_che"] for found in ranks(2, beginning)] == [True, True]
    monkeypatch.setenv("FLODL_SIM_MS", "2,2")
    assert [found["el_che"] for found in ranks(2, beginning)] == [False, False]
    monkeypatch.setenv("FLODL_SIM_MS", "2,2,2")
    with pytest.raises(RankError, match="FLODL_SIM_MS has 3 values and there are 2 ranks"):
        ranks(2, beginning)
    monkeypatch.setenv("FLODL_SIM_MS", "fast")
    with pytest.raises(RankError, match="FLODL_SIM_MS='fast': give the milliseconds of a batch"):
        ranks(2, beginning)


def uneven_window(group: Group, dtype: torch.dtype) -> list[Tensor]:
    torch.set_default_dtype(dtype)
    setup = windowed(group, DdpConfig(), ms=(1.0,))
    windows = setup._loop.windows
    assert windows._elche is not None
    windows._elche = dataclasses.replace(windows._elche, counts=(5, 2, 1))
    seen: list[list[Tensor]] = []
    setup.optimizer.register_step_pre_hook(lambda *_: seen.append(gradients(setup.model)))
    for window in setup.epoch(0):
        assert window.counts == (5, 2, 1)
        setup.step()
    torch.set_default_dtype(torch.float32)
    return seen[0]


@pytest.mark.case("distributed", 17)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_five_two_and_one_batches_are_one_batch_of_all_samples(
    ranks: Ranks, dtype: torch.dtype, close: float
) -> None:
    found = ranks(3, uneven_window, dtype)
    torch.set_default_dtype(dtype)
    try:
        model = network()
        data = line(64)
        mse_loss(model(data.tensors[0]), data.tensors[1]).backward()  # type: ignore[no-untyped-call]
        for one in found:
            for mine, whole in zip(one, gradients(model), strict=True):
                torch.testing.assert_close(mine, whole, rtol=0, atol=close)
    finally:
        torch.set_default_dtype(torch.float32)


class Constant(nn.Module):
    """Its gradient has norm 3, whatever it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return 3.0 * self.weight * torch.ones_like(x)


def constant(context: LossContext) -> Tensor:
    return context.output.mean()


def clipped(group: Group, limit: float) -> float:
    setup = windowed(
        group, DdpConfig(max_grad_norm=limit), samples=160, ms=(1.0,), model=Constant()
    )
    setup.set_loss_fn(constant)
    windows = setup._loop.windows
    assert windows._elche is not None
    windows._elche = dataclasses.replace(windows._elche, counts=(10, 10))
    seen: list[list[Tensor]] = []
    setup.optimizer.register_step_pre_hook(lambda *_: seen.append(gradients(setup.model)))
    for _ in setup.epoch(0):
        setup.step()
    return float(seen[0][0].norm())


@pytest.mark.case("distributed", 22)
def test_the_mean_of_ten_gradients_is_clipped_and_not_their_sum(ranks: Ranks) -> None:
    assert ranks(2, clipped, 5.0) == [3.0, 3.0]
    assert ranks(2, clipped, 1.5) == pytest.approx([1.5, 1.5], abs=1e-5)


def tail(group: Group) -> list[tuple[tuple[int, ...], int, bool]]:
    setup = windowed(group, DdpConfig(), samples=16, batch_size=8, ms=(1.0,))
    found = []
    for window in setup.epoch(0):
        found.append((window.counts, window.samples, window.loss is None))
        setup.step()
    return found


def test_a_rank_without_a_batch_takes_part_with_nothing(ranks: Ranks) -> None:
    assert ranks(3, tail) == [
        [((1, 1, 0), 8, False)],
        [((1, 1, 0), 8, False)],
        [((1, 1, 0), 0, True)],
    ]


def graph_in_windows(group: Group) -> dict[str, Any]:
    torch.manual_seed(8)
    model = (
        FlowBuilder.from_(nn.Linear(1, 6)).through(nn.BatchNorm1d(6)).through(nn.Linear(6, 1))
    ).build()
    setup = windowed(group, DdpConfig(), samples=400, model=model)
    for _ in setup.epoch(0):
        model.step()
    return {"steps": (model.training_step, setup.training_step), "state": model.state_dict()}


def test_a_graph_trains_in_windows_and_its_own_step_ends_them(ranks: Ranks) -> None:
    one, other = ranks(2, graph_in_windows)
    assert one["steps"][0] == one["steps"][1] > 1
    for name, value in one["state"].items():
        assert torch.equal(other["state"][name], value), name


def test_on_one_rank_windows_are_the_plain_loop_to_the_bit() -> None:
    setup = windowed(LocalGroup(), DdpConfig(), samples=20)
    for _ in setup.epoch(0):
        setup.step()
    assert setup.training_step == 3

    model = network()
    optimizer = sgd(list(model.parameters()))
    for batch in DataLoader(line(20), 8, drop_last=False).epoch(0):
        mse_loss(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    for mine, plain in zip(setup.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, plain)


def test_a_window_without_a_step_and_an_epoch_without_data_are_refused() -> None:
    setup = windowed(LocalGroup())
    windows = setup.epoch(0)
    next(windows)
    with pytest.raises(StateError, match=r"call step\(\) after each window"):
        next(windows)

    bare = prepare(network(), None, sgd, CPU, LocalGroup())
    with pytest.raises(StateError, match="call set_data_loader first"):
        bare.epoch(0)
    bare.set_data_loader(DataLoader(line(20), 8))
    with pytest.raises(StateError, match="call set_loss_fn first"):
        bare.epoch(0)
    with pytest.raises(ValueError, match="the loader has no field 'z'; its fields are: x, y"):
        bare.set_data_loader(DataLoader(line(20), 8), "z")


def other_data(group: Group) -> str:
    setup = windowed(group, samples=64 + 8 * group.rank)
    with pytest.raises(DistributedError) as caught:
        setup.epoch(0)
    return str(caught.value)


def test_loaders_that_differ_are_refused(ranks: Ranks) -> None:
    for message in ranks(2, other_data):
        assert "n is 64 on rank 0 and 72 on rank 1" in message


def with_timeline(group: Group) -> list[str]:
    timeline = Timeline()
    timeline.start()
    setup = windowed(group, DdpConfig(timeline=timeline, speed_hint=(1, 4.0)), samples=2000)
    for _ in setup.epoch(0):
        setup.step()
    setup(torch.ones(4, 1)).sum().backward()
    setup.step()
    timeline.stop()
    return [event.kind.value for event in timeline.events]


def test_exchanges_are_on_the_timeline(ranks: Ranks) -> None:
    for kinds in ranks(2, with_timeline):
        assert kinds.count("sync_start") == kinds.count("sync_end") > 1


# --- Learning rates --------------------------------------------------------------------------


class Falling:
    """A tenth less with each step."""

    def lr(self, step: int) -> float:
        return 0.1 / (1 + step)


def rates(group: Group, scheduled: bool) -> tuple[list[float], list[int]]:
    asked: list[int] = []

    def factory(world_size: int) -> Falling:
        asked.append(world_size)
        return Falling()

    config = SetupConfig(device="cpu", scheduler=factory if scheduled else None)
    setup = prepare(network(), None, sgd, config, group)
    seen: list[float] = []
    setup.optimizer.register_step_post_hook(
        lambda optimizer, *_: seen.append(optimizer.param_groups[0]["lr"])
    )
    for factor in (1.0, 2.0, 2.0, 0.5):
        setup.set_lr_scale(factor)
        setup(torch.ones(4, 1)).sum().backward()
        setup.step()
    setup.set_scheduler(None)
    setup.set_lr(0.3)
    setup(torch.ones(4, 1)).sum().backward()
    setup.step()
    return seen, asked


def test_rates_follow_the_schedule_by_steps_and_the_scale_that_was_set(ranks: Ranks) -> None:
    for seen, asked in ranks(2, rates, True):
        assert seen == pytest.approx([0.1, 0.1, 0.2 / 3, 0.05 / 4, 0.15])
        assert asked == [2]
    for seen, _ in ranks(2, rates, False):
        assert seen == pytest.approx([0.05, 0.1, 0.1, 0.025, 0.15])


def test_a_scale_that_stops_everything_is_refused() -> None:
    setup = prepare(network(), None, sgd, CPU, LocalGroup())
    with pytest.raises(ValueError, match="lr_scale=0: it must be greater than 0"):
        setup.set_lr_scale(0)


def test_a_graph_that_steps_itself_clips_and_follows_the_schedule() -> None:
    model = FlowBuilder.from_(nn.Linear(1, 1)).build()
    config = SetupConfig(device="cpu", scheduler=lambda _: Falling(), max_grad_norm=1e-3)
    setup = Trainer.setup(model, None, sgd, config=config)
    before = [p.detach().clone() for p in model.parameters()]
    (1e6 * model(torch.ones(2, 1))).sum().backward()
    model.step()
    assert setup.training_step == setup.global_step == 1
    assert setup.optimizer.param_groups[0]["lr"] == 0.1
    moved = torch.cat([(p - b).flatten() for p, b in zip(model.parameters(), before, strict=True)])
    assert float(moved.detach().norm()) == pytest.approx(0.1 * 1e-3, rel=1e-3)


# --- How fast it is --------------------------------------------------------------------------


def paced(group: Group) -> tuple[float, tuple[float, ...], tuple[int, ...]]:
    setup = prepare(network(), None, sgd, CPU, group)
    x = torch.ones(70, 1)
    began = 0.0
    for step in range(260):
        if step == 60:
            began = time.perf_counter()
        setup(x).square().mean().backward()
        setup.step()
    return 200 / (time.perf_counter() - began), setup.chunk_ratios, setup.shard_sizes


@pytest.mark.slow
@pytest.mark.case("distributed", 40)
def test_unequal_ranks_come_near_the_sum_of_their_speeds(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLODL_SIM_MS", "40,100")
    for per_second, ratios, sizes in ranks(2, paced):
        assert ratios == pytest.approx((0.714, 0.286), abs=0.03)
        assert sizes == (pytest.approx(50, abs=2), pytest.approx(20, abs=2))
        assert per_second >= 0.85 * 35
