"""Builder, set-up and plain torch: the same numbers on each, to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl import Trainer
from flodl.data import Batch, DataLoader, TensorDataSet
from flodl.graph import FlowBuilder, Graph, StateAdd
from flodl.train.plain_loop.setup import SetupConfig
from tests.rows import each_row

from .programs import line, loader_as_built, network, sgd, squared_error


class HalfCosine:
    """Falls from `top` to 0 over `steps`."""

    def __init__(self, top: float, steps: int) -> None:
        self._top, self._steps = top, steps

    def lr(self, step: int) -> float:
        return self._top * 0.5 * (1 + math.cos(math.pi * step / self._steps))


def adam(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(
        [{"params": params[:1], "lr": 0.02}, {"params": params[1:], "lr": 0.01}], weight_decay=0.1
    )


def convolutions(_: torch.device | str = "cpu") -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 2)
    )


def images() -> TensorDataSet:
    generator = torch.Generator().manual_seed(5)
    return TensorDataSet(
        torch.randn(14, 1, 5, 5, generator=generator),
        torch.randn(14, 2, generator=generator),
        names=("x", "y"),
    )


def remembering(_: torch.device | str = "cpu") -> nn.Module:
    """What it saw before is added to what it sees."""
    return (
        FlowBuilder.from_(nn.Linear(1, 4))
        .through(StateAdd())
        .using("memory")
        .through(nn.Tanh())
        .tag("memory")
        .through(nn.Linear(4, 1))
        .build()
    )


@dataclass(frozen=True)
class Program:
    model: Callable[[Any], nn.Module]
    data: Callable[[], TensorDataSet]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = sgd
    batch_size: int = 3
    epochs: int = 3
    accumulate: int = 1
    clip: float | None = None
    scheduled: bool = False
    drop_last: bool = False

    @property
    def optimizer_steps(self) -> int:
        return self.epochs * math.ceil(self.loader().num_batches / self.accumulate)

    def loader(self) -> DataLoader:
        if self.drop_last:
            return DataLoader(self.data(), self.batch_size, drop_last=True)
        return loader_as_built(self.data(), self.batch_size)

    def schedule(self, _: int = 1) -> HalfCosine:
        return HalfCosine(0.02, self.optimizer_steps)

    def by_the_builder(self) -> tuple[nn.Module, list[float]]:
        builder = (
            Trainer.builder(self.model, self.optimizer, squared_error)
            .dataset(self.data())
            .batch_size(self.batch_size)
            .num_epochs(self.epochs)
            .accumulate(self.accumulate)
            .device("cpu")
            .engine("eager")
        )
        if self.clip is not None:
            builder.max_grad_norm(self.clip)
        if self.scheduled:
            builder.scheduler(self.schedule)
        if self.drop_last:
            builder.loader_options(drop_last=True)
        handle = builder.run()
        return handle.model, [metrics.avg_loss for metrics in handle.poll_metrics()]

    def by_the_set_up(self) -> nn.Module:
        torch.manual_seed(42)
        setup = Trainer.setup(
            self.model("cpu"),
            None,
            self.optimizer,
            config=SetupConfig(
                device="cpu",
                max_grad_norm=self.clip,
                scheduler=self.schedule if self.scheduled else None,
            ),
        )
        loader = self.loader()
        for epoch in range(self.epochs):
            for batch in loader.epoch(epoch):
                squared_error(setup.model, batch).backward()  # type: ignore[no-untyped-call]
                setup.step()
        return setup.model

    def by_plain_torch(self) -> tuple[nn.Module, list[float]]:
        torch.manual_seed(42)
        model = self.model("cpu")
        model.train()
        optimizer = self.optimizer(list(model.parameters()))
        top = [group["lr"] for group in optimizer.param_groups]
        loader = self.loader()
        step, means = 0, []
        for epoch in range(self.epochs):
            batches, losses = list(loader.epoch(epoch)), []
            for first in range(0, len(batches), self.accumulate):
                group = batches[first : first + self.accumulate]
                for batch in group:
                    loss = squared_error(model, batch)
                    losses.append(loss.item())
                    (loss / len(group) if len(group) > 1 else loss).backward()  # type: ignore[no-untyped-call]
                if self.clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                if self.scheduled:
                    for place, group_of_optimizer in enumerate(optimizer.param_groups):
                        ratio = top[place] / top[0]
                        group_of_optimizer["lr"] = self.schedule().lr(step) * ratio
                optimizer.step()
                optimizer.zero_grad()
                if isinstance(model, Graph):
                    model.end_step()
                step += 1
            means.append(sum(losses) / len(losses))
        assert step == self.optimizer_steps
        return model, means


PROGRAMS = {
    "sgd": Program(network, lambda: line(10)),
    "adam with a schedule": Program(network, lambda: line(10), adam, scheduled=True),
    "clipped": Program(network, lambda: line(10), clip=0.05),
    "convolutions and batch norm": Program(convolutions, images, adam, batch_size=4),
    # What is remembered of a batch fits batches of the same size only.
    "a graph with memory": Program(remembering, lambda: line(10), drop_last=True),
    "a graph with memory, all at once": Program(
        remembering, lambda: line(10), adam, clip=0.5, scheduled=True, drop_last=True
    ),
}
ACCUMULATING = {
    "pairs": Program(network, lambda: line(12), accumulate=2),
    "a smaller last group": Program(network, lambda: line(15), accumulate=2),
    "more than an epoch has": Program(network, lambda: line(10), accumulate=100),
    "with clip and schedule": Program(
        convolutions, images, adam, batch_size=2, accumulate=3, clip=0.1, scheduled=True
    ),
}


def assert_same(one: nn.Module, other: nn.Module) -> None:
    left, right = one.state_dict(), other.state_dict()
    assert list(left) == list(right)
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_builder_set_up_and_plain_loop_agree_to_the_bit(program: Program) -> None:
    plain, means = program.by_plain_torch()
    built, losses = program.by_the_builder()
    assert_same(built, plain)
    assert losses == means
    assert_same(program.by_the_set_up(), plain)


@each_row("program", ACCUMULATING.values(), ids=ACCUMULATING)
def test_accumulating_is_the_hand_written_loop_to_the_bit(program: Program) -> None:
    plain, means = program.by_plain_torch()
    built, losses = program.by_the_builder()
    assert_same(built, plain)
    assert losses == means


def test_two_halves_of_a_batch_are_the_batch_up_to_rounding() -> None:
    def model(_: object) -> nn.Module:
        return nn.Linear(1, 1)

    whole = Program(model, lambda: line(12), batch_size=4).by_the_builder()[0]
    halves = Program(model, lambda: line(12), batch_size=2, accumulate=2).by_the_builder()[0]
    for one, other in zip(whole.parameters(), halves.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_head_is_set_up_through_its_graph() -> None:
    class Head:
        graph = remembering()

    setup = Trainer.setup_head(Head(), None, sgd, config=SetupConfig(device="cpu"))
    assert setup.model is Head.graph
    squared_error(setup.model, next(iter(DataLoader(line(4), 2)))).backward()  # type: ignore[no-untyped-call]
    setup.step()
    assert setup.global_step == 1
    with pytest.raises(TypeError, match=r"object whose .graph is a torch.nn.Module; that of int"):
        Trainer.setup_head(3, None, sgd)  # type: ignore[arg-type]


def test_a_set_up_refuses_a_norm_that_clips_everything_away() -> None:
    with pytest.raises(ValueError, match="max_grad_norm=0: it must be greater than 0"):
        SetupConfig(max_grad_norm=0)


def test_checkpoints_and_schedule_count_optimizer_steps_not_batches() -> None:
    asked: list[int] = []

    class Constant:
        def lr(self, step: int) -> float:
            asked.append(step)
            return 0.01

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        return squared_error(model, batch)

    (
        Trainer.builder(network, sgd, train_fn)
        .dataset(line(15))
        .batch_size(3)
        .num_epochs(2)
        .accumulate(2)
        .device("cpu")
        .scheduler(lambda _: Constant())
        .run()
    )
    assert asked == [0, 1, 2, 3, 4, 5]
