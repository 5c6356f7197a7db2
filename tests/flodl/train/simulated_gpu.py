"""A GPU that is simulated: the host launches into a queue, and the device works the queue off.

Launches cost time of the host, kernels time of the device. Neither waits for the other but where
somebody asks: for an event, for the device, or for room in a full queue. Steps compute for real,
on the processor; only the time is simulated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flodl.data import Batch
from flodl.train.step import (
    AutoEngine,
    AutoPolicy,
    StepSettings,
    auto,
    capturing,
    trials,
    tuned,
)
from flodl.train.step.step_values import loss_log
from flodl.train.step.trials import DeviceClock
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import Tuning

AHEAD = 50
"""Steps that the host may be ahead of the device."""

GRAPH_MS = 0.04
"""What a launch of a whole graph takes the host, with the copies of the batch."""


@dataclass(frozen=True)
class Model:
    """What a step of a model costs, in milliseconds.

    Attributes:
        host: Launches of forward and backward.
        device: Their kernels.
        update: Launches and kernels of torch's own optimizer.
        fused: Launches and kernels of the fused one.
        rows: Factor of the kernels with channels last; 1 without convolutions.
        compiled: Factors of launches and kernels after compiling; None: it cannot be compiled.
        compile_s: Seconds that compiling takes.
        capture_s: Seconds that a capture takes, beside the step.
        autotuned: Factor of the compiled kernels after torch has tried many.
        captures: What can be captured: "all", "plain" for what is not compiled, or "".
    """

    host: float
    device: float
    update: tuple[float, float] = (0.3, 0.1)
    fused: tuple[float, float] = (0.1, 0.05)
    rows: float = 1.0
    compiled: tuple[float, float] | None = (0.4, 0.8)
    compile_s: float = 20.0
    capture_s: float = 0.25
    captures: str = "all"
    autotuned: float = 1.0

    def costs(self, tuning: Tuning) -> tuple[float, float]:
        """Seconds of the host and of the device."""
        launches, kernels = self.host, self.device
        if tuning.compiled or tuning.autotuned:
            assert self.compiled is not None
            launches, kernels = launches * self.compiled[0], kernels * self.compiled[1]
            kernels *= self.autotuned if tuning.autotuned else 1.0
        elif tuning.channels_last:
            kernels *= self.rows
        update = self.fused if tuning.fused else self.update
        host, device = launches + update[0], kernels + update[1]
        return (GRAPH_MS if tuning.captured else host) / 1e3, device / 1e3

    def step_s(self, tuning: Tuning) -> float:
        """Seconds of a step once the queue is full: the slower of the two decides."""
        return max(self.costs(tuning))

    def ways(self) -> list[Tuning]:
        """Every way in which the step can be computed."""
        found = [Tuning(), Tuning(fused=True)]
        if self.rows != 1.0:
            found += [replace(one, channels_last=True) for one in found]
        if self.captures:
            found += [replace(one, captured=True) for one in found]
        if self.compiled is not None:
            whole = self.captures == "all"
            found += [
                replace(one, channels_last=False, **{mode: True})
                for one in found
                if whole or not one.captured
                for mode in ("compiled", "autotuned")
            ]
        return found

    def best_s(self) -> float:
        """Seconds of a step by the fastest way."""
        return min(map(self.step_s, self.ways()))


class Event:
    """A point in the queue."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu, self.at = gpu, max(gpu.host, gpu.device)

    def synchronize(self) -> None:
        self.gpu.waits += 1
        self.gpu.host = max(self.gpu.host, self.at)

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 1e3


class SimulatedGpu:
    """The clocks of the host and of the device, in seconds."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.host = self.device = 0.0
        self.waits = self.captures = self.compilations = 0
        self._queue: deque[float] = deque()

    def step(self, tuning: Tuning) -> None:
        """Launch a step; the host waits only if the queue is full."""
        host, device = self.model.costs(tuning)
        begins = max(self.host, self.device)
        self.host += host
        self.device = max(begins + device, self.host)
        self._queue.append(self.device)
        if len(self._queue) > AHEAD:
            self.host = max(self.host, self._queue.popleft())

    def busy_host(self, seconds: float) -> None:
        """Let the host do something else, such as compiling; it waits for the device first."""
        self.host = max(self.host, self.device) + seconds


class Graph:
    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def replay(self) -> None:
        self.function()


def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(batch["x"]).sum()
    return loss


DATA = Batch((torch.ones(1, 2),), ("x",))


def engine_on(
    gpu: SimulatedGpu,
    patch: pytest.MonkeyPatch,
    *,
    steps: int,
    train_fn: Any = loss_fn,
    model: nn.Module | None = None,
    **more: Any,
) -> AutoEngine:
    """An engine that trains on a simulated GPU."""

    plainly = TunedEngine._carry_out

    def carried_out(own: TunedEngine, *args: Any, **named: Any) -> None:
        plainly(own, *args, **named)
        gpu.step(replace(own.tuning, captured=False))

    def capture(_: int, __: object, function: Any) -> Graph:
        own = function.__self__._compute.__self__  # the engine whose step it is
        compiles = own.tuning.compiled or own.tuning.autotuned
        kinds = {"": False, "plain": not compiles, "all": True}
        gpu.captures += 1
        gpu.busy_host(gpu.model.capture_s)
        if not kinds[gpu.model.captures]:
            raise RuntimeError("operation not permitted when stream is capturing")

        def replayed() -> None:
            function()
            gpu.step(own.tuning)

        return Graph(replayed)

    def compiled(_: nn.Module, settings: StepSettings, *, autotunes: bool, **__: Any) -> Any:
        gpu.compilations += 1
        gpu.busy_host(gpu.model.compile_s * (9 if autotunes else 1))

        def refused(*_: object) -> Tensor:
            raise RuntimeError("Unsupported: torch.nn.GRU")

        return settings.train_fn if gpu.model.compiled is not None else refused

    patch.setattr(TunedEngine, "_carry_out", carried_out)
    for module in (auto, trials):
        patch.setattr(module, "step_clock", lambda _: DeviceClock(lambda: Event(gpu)))
    for module in (auto, trials, capturing):
        patch.setattr(module, "captures_on", lambda _: True)
    patch.setattr(auto, "rows_of_layers", lambda _: gpu.model.rows != 1.0)
    patch.setattr(capturing, "cuda_graph_capture", capture)
    patch.setattr(tuned, "compiled_forward", compiled)
    patch.setattr(tuned, "time", SimpleNamespace(perf_counter=lambda: gpu.host))
    only = frozenset({"fused", "channels_last", "captured", "compiled", "autotuned"})
    policy = AutoPolicy(only=only, block=10)
    model = model or nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    settings = StepSettings(train_fn=train_fn)
    made = {"pure": True, "policy": policy, **more}
    return AutoEngine(model, optimizer, settings, total_steps=steps, **made)


def decide(
    engine: AutoEngine, most: int = 6000, between: Callable[[int], object] = lambda _: None
) -> int:
    """Train until the engine has decided; return the number of steps."""
    losses = loss_log(torch.device("cpu"), 0)
    for step in range(most):
        between(step)
        engine.step(DATA, losses)
        if engine.decided:
            return step + 1
    raise AssertionError(f"it has not decided after {most} steps: {engine.report()}")
