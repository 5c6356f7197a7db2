"""One network trained in one way, in a process of its own, told over its standard input what to do.

``benchmarks.ten_models`` starts one such process for every way of training and lets them take
turns: each has its own heap and its own settings, and all share the state of the machine. A line of
standard input is a command, a line of JSON the answer:

    settle N S train at least N steps, and on until an engine has decided, for S seconds at most
               -> {"steps": …, "seconds": …}
    train N    train N steps -> {"seconds": …}
    loss       the loss of the first batch now -> {"loss": …}
    weights F  save the weights to the file F
    report     what the engine says about itself
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import cycle
from typing import final

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.ten_models_networks import Benchmark, Pair, networks
from benchmarks.ten_models_tuned import Recipe, variants
from flodl.data import Batch
from flodl.train.step import StepSettings, make_engine, tuning
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuning import onednn_refusal

BY_HAND = "by_hand:"
NAMED = {"fused": Recipe(heap=False), "compiled": Recipe(heap=False, compiled=True)}
"""Variants by hand that every network has."""

TOTAL_STEPS = 2500  # 50 epochs: what the engine is told the run intends
PATIENCE = 300.0  # seconds an engine may take to decide, unless the command says otherwise
UNWATCHED = {"cpu": 1, "cuda": 50}  # steps between two looks at what an engine has decided


class Subject(ABC):
    """A way to train a network.

    Args:
        benchmark: The network.
        device: Where it trains.
        batches: Batches of its epoch.
    """

    def __init__(self, benchmark: Benchmark, device: torch.device, batches: int) -> None:
        self.benchmark = benchmark
        self.device = device
        self.model: nn.Module = benchmark.build().to(device)
        self.data: list[Pair] = [(x.to(device), y.to(device)) for x, y in benchmark.data(batches)]

    @abstractmethod
    def train(self, steps: int) -> None:
        """Train some steps, going on in the epoch."""

    def report(self) -> Mapping[str, object]:
        """Facts about the way, as JSON values."""
        return {}

    def loss(self) -> float:
        """Loss of the first batch, in training mode."""
        with torch.no_grad():
            return float(self.benchmark.loss(self.model, self.data[0]))


@final
class Eager(Subject):
    """Plain PyTorch as its users write it."""

    def __init__(self, benchmark: Benchmark, device: torch.device, batches: int) -> None:
        super().__init__(benchmark, device, batches)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=benchmark.lr)
        self.batches = cycle(self.data)
        self.losses: list[float] = []

    def train(self, steps: int) -> None:
        """Train; the loss is read at each step."""
        for _ in range(steps):
            loss = self.benchmark.loss(self.model, next(self.batches))
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.losses.append(loss.item())


@final
class ByHand(Subject):
    """What somebody who measures would do.

    Args:
        benchmark: The network.
        device: Where it trains.
        batches: Batches of its epoch.
        recipe: What is done. The heap belongs to the process, which must have been started so.
    """

    def __init__(
        self, benchmark: Benchmark, device: torch.device, batches: int, recipe: Recipe
    ) -> None:
        super().__init__(benchmark, device, batches)
        model = self.model
        if recipe.rewrite is not None:
            model = recipe.rewrite(model)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.data = [(self._laid_out(x), self._laid_out(y)) for x, y in self.data]
        if recipe.route and device.type == "cpu" and not onednn_refusal():
            # In this process nothing else multiplies.
            torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=benchmark.lr, fused=recipe.fused or None
        )
        if recipe.compiled:
            model = torch.compile(model)  # type: ignore[assignment]
        self.model = model
        self.recipe = recipe
        self.batches = cycle(self.data)

    def train(self, steps: int) -> None:
        """Train; the losses are read at the end."""
        losses: list[Tensor] = []
        for _ in range(steps):
            loss = self.benchmark.loss(self.model, next(self.batches))
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.detach())
        torch.stack(losses).tolist()

    def report(self) -> Mapping[str, object]:
        """What was done."""
        return {"tuning": str(self.recipe)}

    @staticmethod
    def _laid_out(tensor: Tensor) -> Tensor:
        if tensor.dim() != 4:
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)


@final
class Flodl(Subject):
    """The step engine that a Trainer makes, over the optimizer of :class:`Eager`.

    Args:
        benchmark: The network.
        device: Where it trains.
        batches: Batches of its epoch.
        engine: Its name.
        steps: What the engine is told the run intends.
        pure: As after ``.pure_step()``: compiling is tried, too.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        device: torch.device,
        batches: int,
        engine: str,
        *,
        steps: int = TOTAL_STEPS,
        pure: bool = False,
    ) -> None:
        super().__init__(benchmark, device, batches)
        self.engine = make_engine(
            engine,
            self.model,
            torch.optim.Adam(self.model.parameters(), lr=benchmark.lr),
            StepSettings(train_fn=benchmark.loss),
            device=device,
            total_steps=steps,
            pure=pure,
        )
        self.batches = cycle([Batch(pair, ("input", "target")) for pair in self.data])

    def train(self, steps: int) -> None:
        """Train as a Trainer's loop does."""
        losses = loss_log(self.device, 0)
        for _ in range(steps):
            self.engine.step(next(self.batches), losses)
        losses.mean()

    def report(self) -> Mapping[str, object]:
        """What the engine says about itself."""
        return self.engine.report()


def make_subject(name: str, benchmark: Benchmark, options: argparse.Namespace) -> Subject:
    """Make plain PyTorch, a way of flodl, or a variant by hand: a named one, or by its number."""
    device = torch.device(options.device)
    if name == "eager":
        return Eager(benchmark, device, options.batches)
    if name in ("flodl", "pure"):
        told = {"steps": options.total_steps, "pure": name == "pure"}
        return Flodl(benchmark, device, options.batches, options.engine, **told)
    if name in NAMED:
        return ByHand(benchmark, device, options.batches, NAMED[name])
    recipes = variants(benchmark.name, routing=not options.no_routing, compiling=True)
    return ByHand(benchmark, device, options.batches, recipes[int(name.removeprefix(BY_HAND))])


def settle(subject: Subject, steps: int, patience: float = PATIENCE) -> Mapping[str, object]:
    """Train at least ``steps`` steps, and on until an engine that is deciding has decided."""
    seconds = timed(subject, steps)
    done, limit = steps, time.monotonic() + patience
    few = UNWATCHED.get(subject.device.type, 1)
    while subject.report().get("decided", True) is False and time.monotonic() < limit:
        seconds += timed(subject, few)
        done += few
    return {"steps": done, "seconds": seconds}


def timed(subject: Subject, steps: int) -> float:
    """Seconds for some steps, the device's work included."""
    synchronize(subject.device)
    start = time.perf_counter()
    subject.train(steps)
    synchronize(subject.device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait for a device that works by itself."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def answer(subject: Subject, command: str, argument: str) -> Mapping[str, object]:
    """Carry out one command."""
    if command == "settle":
        count, _, patience = argument.partition(" ")
        return settle(subject, int(count), float(patience or PATIENCE))
    if command == "train":
        return {"seconds": timed(subject, int(argument))}
    if command == "loss":
        return {"loss": subject.loss()}
    if command == "weights":
        weights = [each.detach().cpu().flatten() for each in subject.model.parameters()]
        save_file({"weights": torch.cat(weights)}, argument)
        return {}
    return dict(subject.report())


def main() -> None:
    """Serve commands until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("subject")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--total-steps", type=int, default=TOTAL_STEPS)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--no-routing", action="store_true")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr  # an engine may print; the parent reads answers
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.no_routing:
        # As on a machine whose processor multiplies less exactly.
        tuning._TOLERANCE = -1.0
    benchmark = networks(small=options.small)[options.model]
    subject = make_subject(options.subject, benchmark, options)
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        reply = answer(subject, command, argument)
        answers.write(json.dumps(reply, default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
