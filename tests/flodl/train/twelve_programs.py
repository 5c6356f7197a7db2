"""Twelve programs whose steps change more than the model they train, or look closely at it.

Each is made anew for every run. ``state()`` tells what the run has left behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what everyone calls it

from flodl.data import Batch
from flodl.graph import FlowBuilder, NamedInputModule

ROWS, WIDTH, SIDE = 16, 16, 4


@dataclass
class Program:
    """A training, and what it leaves behind beside its model.

    Attributes:
        model: What is trained.
        optimizer: Over its parameters.
        train_fn: One step.
        images: Whether batches are images.
        counts: Returns what must be equal exactly.
        values: Returns what may differ by rounding.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    train_fn: Callable[[Any, Batch], Tensor]
    images: bool = False
    counts: Callable[[], Mapping[str, object]] = field(default=dict)
    values: Callable[[], Mapping[str, Tensor]] = field(default=dict)


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
    )


def cnn(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),  # normalisation takes a bias away again
        nn.BatchNorm2d(8),
        nn.ReLU(),
        *more,
        nn.Conv2d(8, 8, 3, padding=1),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * (SIDE // 2) ** 2, WIDTH),
    )


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=1e-4)


def error(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


# --- The twelve -----------------------------------------------------------------------------------


class Queue(nn.Module):
    """Keys of former batches, as MoCo keeps them; not a part of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(4 * ROWS, WIDTH), dim=1))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        at = int(self.ptr)
        self.keys[at : at + len(keys)] = keys
        self.ptr[0] = (at + len(keys)) % len(self.keys)


def moco(_: Path) -> Program:
    model, queue = cnn(), Queue()

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        query = F.normalize(model(batch["x"]), dim=1)
        logits = query @ queue.keys.clone().t()
        queue.push(F.normalize(batch["y"], dim=1))
        return logits.logsumexp(1).mean() - (query * F.normalize(batch["y"], dim=1)).sum(1).mean()

    return Program(
        model,
        adam(model),
        train_fn,
        images=True,
        counts=lambda: {"ptr": int(queue.ptr)},
        values=lambda: {"keys": queue.keys},
    )


CALLS = 0


def module_global(_: Path) -> Program:
    global CALLS
    CALLS = 0
    model = mlp()

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        global CALLS
        CALLS += 1
        return error(model, batch) / (1 + CALLS / 1000)

    return Program(model, adam(model), train_fn, counts=lambda: {"calls": CALLS})


class Schedule:
    done = 0

    @classmethod
    def next(cls) -> float:
        cls.done += 1
        return 1 / (1 + cls.done / 1000)


def class_attribute(_: Path) -> Program:
    Schedule.done = 0
    model = cnn()
    return Program(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
        lambda model, batch: error(model, batch) * Schedule.next(),
        images=True,
        counts=lambda: {"done": Schedule.done},
    )


class Annealed:
    def __init__(self) -> None:
        self.calls = 0

    def step(self, model: nn.Module, batch: Batch) -> Tensor:
        self._count()
        return error(model, batch) / (1 + self.calls / 1000)

    def _count(self) -> None:
        self.calls += 1


def method_counter(_: Path) -> Program:
    model, annealed = mlp(), Annealed()
    return Program(model, adam(model), annealed.step, counts=lambda: {"calls": annealed.calls})


def appended_file(folder: Path) -> Program:
    model, path = mlp(), folder / "steps.txt"
    path.write_text("")

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        with path.open("a") as file:
            file.write(f"{float(batch['x'][0, 0]):.6f}\n")
        return error(model, batch)

    return Program(model, adam(model), train_fn, counts=lambda: {"lines": path.read_text()})


def ema_teacher(_: Path) -> Program:
    model, teacher = cnn(), cnn()

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
            mine.data.mul_(0.99).add_(theirs.data, alpha=0.01)
        return error(model, batch) + F.mse_loss(model(batch["x"]), teacher(batch["x"]).detach())

    return Program(
        model,
        adam(model),
        train_fn,
        images=True,
        values=lambda: {f"teacher {n}": p for n, p in teacher.state_dict().items()},
    )


def gan(_: Path) -> Program:
    model, adversary = mlp(), mlp()
    theirs = torch.optim.SGD(adversary.parameters(), lr=1e-3)
    steps = [0]

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        steps[0] += 1
        made = model(batch["x"] + 0.1 * torch.randn_like(batch["x"]))
        theirs.zero_grad()
        apart = adversary(made.detach()).tanh().mean() - adversary(batch["y"]).tanh().mean()
        apart.backward()
        theirs.step()
        return error(model, batch) - 0.1 * adversary(made).tanh().mean()

    return Program(
        model,
        adam(model),
        train_fn,
        counts=lambda: {"steps": steps[0]},
        values=lambda: {f"adversary {n}": p for n, p in adversary.state_dict().items()},
    )


def accumulating_metric(_: Path) -> Program:
    model = cnn()
    seen = {"samples": torch.zeros((), dtype=torch.long), "sum": torch.zeros(WIDTH)}

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        made = model(batch["x"])
        with torch.no_grad():
            seen["samples"] += len(made)
            seen["sum"] += made.mean(0)
        return F.mse_loss(made, batch["y"])

    return Program(
        model,
        adam(model),
        train_fn,
        images=True,
        counts=lambda: {"samples": int(seen["samples"])},
        values=lambda: {"sum": seen["sum"]},
    )


def dropout(_: Path) -> Program:
    model = cnn(nn.Dropout(0.1))

    def train_fn(model: nn.Module, batch: Batch) -> Tensor:
        return error(model, batch) * (1 + 0.1 * random.random() + 0.1 * np.random.rand())

    return Program(model, adam(model), train_fn, images=True)


class Branching(nn.Module):
    """Flattens by a view only for some batches, most of them late in the training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * SIDE * SIDE, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.calls = self.branches = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.first(x).relu()
        if self.calls > 300 and float(x[0, 0, 0, 0]) > 0:
            self.branches += 1
            return self.head(self.drop(hidden).view(len(x), -1))
        return self.head(hidden.flatten(1))


def control_flow(_: Path) -> Program:
    model = Branching()
    return Program(
        model,
        adam(model),
        error,
        images=True,
        counts=lambda: {"calls": model.calls, "branches": model.branches},
    )


def reading_hooks(_: Path) -> Program:
    model, norms = cnn(), []
    model[0].register_forward_hook(lambda m, *_: norms.append(m.weight.view(-1).norm().detach()))
    return Program(
        model,
        adam(model),
        error,
        images=True,
        counts=lambda: {"hooked": len(norms)},
        values=lambda: {"norms": torch.stack(norms)},
    )


class Blend(NamedInputModule):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward_named(self, x: Tensor, refs: Mapping[str, Tensor]) -> Tensor:
        return x + self.gain * refs["memory"].mean(0)


def stateful_graph(_: Path) -> Program:
    graph = (
        FlowBuilder.from_(nn.Linear(WIDTH, WIDTH))
        .through(Blend())
        .using("memory", init={"memory": torch.zeros(ROWS, WIDTH)})
        .through(nn.Tanh())
        .tag("memory")
        .through(nn.Linear(WIDTH, WIDTH))
        .build()
    )

    def train_fn(model: Any, batch: Batch) -> Tensor:
        loss = error(model, batch)
        model.detach_state()
        return loss

    return Program(graph, adam(graph), train_fn, counts=lambda: {"calls": graph.step_count})


PROGRAMS: tuple[Callable[[Path], Program], ...] = (
    moco,
    module_global,
    class_attribute,
    method_counter,
    appended_file,
    ema_teacher,
    gan,
    accumulating_metric,
    dropout,
    control_flow,
    reading_hooks,
    stateful_graph,
)


def batches(images: bool, count: int) -> list[Batch]:
    """Draw batches with a generator of their own; they repeat after fifty."""
    draw = torch.Generator().manual_seed(1)
    shape = (3, SIDE, SIDE) if images else (WIDTH,)
    drawn = []
    for _ in range(min(count, 50)):
        x = torch.randn(ROWS, *shape, generator=draw)
        y = x.flatten(1)[:, :WIDTH].sin() + 0.1 * torch.randn(ROWS, WIDTH, generator=draw)
        drawn.append(Batch((x, y), ("x", "y")))
    return [drawn[number % len(drawn)] for number in range(count)]
