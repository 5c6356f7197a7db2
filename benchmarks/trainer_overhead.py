"""What a trainer costs per step beside a loop by hand, where the model itself costs little.

Every subject trains the same perceptron on the same samples from nothing, once for one epoch and
once for several; the difference is steps without start-up. Subjects take turns in one process.

    python -m benchmarks.trainer_overhead --output docs/benchmarks/trainer_overhead.md
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader as TorchLoader, TensorDataset

from benchmarks.measure import environment, median_ratio, publish, table
from flodl import Trainer
from flodl.data import Batch, DataLoader
from flodl.data.dataset import TensorDataSet
from flodl.monitor import EpochMetrics
from flodl.train import TrainerBuilder

LR = 1e-3
Run = Callable[[int], float]
"""``(epochs) -> seconds``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A perceptron and its samples.

    Attributes:
        name: What the page calls it.
        width: Features of an input and of a target.
        hidden: Width of the two hidden layers.
        batch: Samples per step.
        steps: Steps per epoch.
        device: Where it trains.
    """

    name: str
    width: int
    hidden: int
    batch: int
    steps: int
    device: torch.device

    def model(self) -> nn.Module:
        """The same weights every time."""
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(self.width, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.width),
        ).to(self.device)

    def samples(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of an epoch, on the CPU."""
        draw = torch.Generator().manual_seed(1)
        shape = (self.batch * self.steps, self.width)
        return torch.randn(shape, generator=draw), torch.randn(shape, generator=draw)

    def loader(self) -> TorchLoader[tuple[Tensor, ...]]:
        """Torch's loader as its users make it."""
        return TorchLoader(TensorDataset(*self.samples()), batch_size=self.batch, shuffle=True)


def raw(task: Task, batches: Callable[[], Iterable[Any]], fused: bool | None, epochs: int) -> float:
    """A loop by hand; the loss is read at each step."""
    model = task.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, fused=fused)
    losses = []
    with timed(task) as clock:
        for _ in range(epochs):
            for x, y in batches():
                loss = mse_loss(model(x.to(task.device)), y.to(task.device))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(loss.item() if task.device.type == "cpu" else loss.detach())
    return clock.seconds


def raw_loops(task: Task) -> dict[str, Run]:
    """Loops by hand: on batches made beforehand, over torch's loader, and equal to the Trainer."""
    x, y = (tensor.to(task.device) for tensor in task.samples())
    drawn = list(zip(torch.split(x, task.batch), torch.split(y, task.batch), strict=True))
    loader = task.loader()
    ours = DataLoader(TensorDataSet(x.cpu(), y.cpu()), task.batch, device=task.device)
    return {
        "raw loop, batches made beforehand": partial(raw, task, lambda: drawn, None),
        "raw loop, torch's DataLoader": partial(raw, task, lambda: loader, None),
        "equal raw loop": partial(raw, task, lambda: ours, True),
    }


def train_fn(model: nn.Module, batch: Batch) -> Tensor:
    """The step a Trainer is given."""
    x, y = batch
    return mse_loss(model(x), y)


def training(task: Task, engine: str, fused: bool | None, epochs: int) -> TrainerBuilder:
    """Describe a training with flodl."""
    return (
        Trainer.builder(
            lambda _: task.model(),
            lambda parameters: torch.optim.Adam(parameters, lr=LR, fused=fused),
            train_fn,
        )
        .dataset(TensorDataSet(*task.samples()))
        .batch_size(task.batch)
        .num_epochs(epochs)
        .device(task.device)
        .engine(engine)
    )


def flodl_trainer(task: Task, engine: str, fused: bool | None, epochs: int) -> list[float]:
    """Train with flodl; returns the moments at which epochs ended, the start first."""
    ends = [time.perf_counter()]
    told = training(task, engine, fused, epochs)
    told.metrics_fn(lambda _: ends.append(time.perf_counter())).run()
    return ends


def flodl_eager(task: Task, epochs: int) -> float:
    """Seconds of a whole training with the eager engine and the fused Adam."""
    ends = flodl_trainer(task, "eager", True, epochs)
    return ends[-1] - ends[0]


def flodl_auto(task: Task, epochs: int) -> float:
    """Seconds per step of the last quarter of a training with engine auto and Adam as it comes."""
    ends = flodl_trainer(task, "auto", None, epochs)
    late = ends[-max(2, epochs // 4) :]
    spans = [after - before for before, after in pairwise(late)]
    return statistics.median(spans) / task.steps


def lightning(task: Task, bare: bool, epochs: int) -> float:
    """PyTorch Lightning with its defaults, or with everything off that can be."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = task.model()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            x, y = batch
            loss = mse_loss(self.net(x), y)
            if not bare:
                self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=LR)

    with tempfile.TemporaryDirectory() as folder:
        switches: dict[str, Any] = {"barebones": True} if bare else {"default_root_dir": folder}
        kind = "gpu" if task.device.type == "cuda" else "cpu"
        trainer = pl.Trainer(max_epochs=epochs, accelerator=kind, devices=1, **switches)
        model, loader = Module(), task.loader()
        with timed(task) as clock:
            trainer.fit(model, loader)
    return clock.seconds


def accelerate(task: Task, epochs: int) -> float:
    """The same loop with Hugging Face Accelerate around model, optimizer and loader."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=task.device.type == "cpu")
    model = task.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    model, optimizer, loader = accelerator.prepare(model, optimizer, task.loader())
    with timed(task) as clock:
        for _ in range(epochs):
            for x, y in loader:
                loss = mse_loss(model(x), y)
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()
                loss.item()
    return clock.seconds


class WithLoss(nn.Module):
    """A model that computes its own loss, as Hugging Face's Trainer wants it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Predict and compare."""
        prediction = self.net(x)
        return {"loss": mse_loss(prediction, labels), "logits": prediction}


def hugging_face(task: Task, epochs: int) -> float:
    """Hugging Face's Trainer without checkpoints and reporters."""
    from transformers import Trainer as HfTrainer, TrainingArguments

    x, y = task.samples()
    samples: Any = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=task.batch,
            learning_rate=LR,
            report_to="none",
            save_strategy="no",
            use_cpu=task.device.type == "cpu",
        )
        trainer = HfTrainer(WithLoss(task.model()), arguments, train_dataset=samples)
        with timed(task) as clock:
            trainer.train()
    return clock.seconds


def turns(task: Task, engine: str, fused: bool | None, epochs: int) -> dict[str, list[float]]:
    """Let one training and one loop by hand take turns, epoch by epoch, in one process.

    The loop runs while the training waits to begin an epoch. Nothing starts up and nothing is
    subtracted, so this resolves microseconds where whole trainings do not.

    Returns:
        Seconds per step of every epoch: ``loop`` and ``trainer``.
    """
    model = task.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, fused=fused)
    loader = DataLoader(TensorDataSet(*task.samples()), task.batch, device=task.device)
    seconds: dict[str, list[float]] = {"loop": [], "trainer": []}

    def loop(epoch: int, _: object) -> None:
        losses = []
        with timed(task) as clock:
            for x, y in loader.epoch(epoch):
                loss = mse_loss(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item() if task.device.type == "cpu" else loss.detach())
        seconds["loop"].append(clock.seconds / task.steps)

    def note(metrics: EpochMetrics) -> None:
        seconds["trainer"].append(metrics.epoch_ms / 1e3 / task.steps)

    training(task, engine, fused, epochs).epoch_fn(loop).metrics_fn(note).run()
    # The beginning warms up, and engine auto decides there.
    late = epochs // 2 if engine == "auto" else epochs // 8
    return {name: each[late:] for name, each in seconds.items()}


def turns_line(task: Task, engine: str, fused: bool | None, epochs: int) -> str:
    """What one step of the Trainer costs beside the same step by hand."""
    seconds = turns(task, engine, fused, epochs)
    pairs = list(zip(seconds["trainer"], seconds["loop"], strict=True))
    over = statistics.median(mine - theirs for mine, theirs in pairs) * 1e6
    ratio = median_ratio(seconds["trainer"], seconds["loop"])
    theirs = statistics.median(seconds["loop"]) * 1e6
    what = "fused Adam" if fused else "Adam as it comes"
    return (
        f"- engine {engine} against a loop by hand with {what}: {ratio:.3f}, {over:+.1f} µs on "
        f"{theirs:.1f} µs ({len(pairs)} epochs each)"
    )


class Clock:
    """Seconds between its start and its end."""

    seconds = 0.0


@contextlib.contextmanager
def timed(task: Task) -> Iterator[Clock]:
    """Time a block, the device's work included."""
    clock = Clock()
    start = time.perf_counter()
    yield clock
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)
    clock.seconds = time.perf_counter() - start


def subjects(task: Task) -> dict[str, Run]:
    """Everyone whose start-up drops out by difference."""
    return {
        **raw_loops(task),
        "flodl Trainer, engine eager": partial(flodl_eager, task),
        "Accelerate": partial(accelerate, task),
        "Lightning, all off": partial(lightning, task, True),
        "Lightning, defaults": partial(lightning, task, False),
        "Hugging Face Trainer": partial(hugging_face, task),
    }


AUTO = "flodl Trainer, engine auto"
TURNS: tuple[tuple[str, bool | None], ...] = (("eager", True), ("eager", None), ("auto", None))
"""Engine and fused Adam of the trainings that take turns with a loop."""


def measure(task: Task, rounds: int, epochs: int, auto_epochs: int) -> dict[str, list[float]]:
    """Seconds per step in every round; the first round warms up and does not count."""
    runs = subjects(task)
    names = [*runs, AUTO]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            if name == AUTO:
                took = flodl_auto(task, auto_epochs)
            else:
                short, long = runs[name](1), runs[name](1 + epochs)
                took = (long - short) / (epochs * task.steps)
            if number:
                seconds[name].append(took)
    return seconds


def section(task: Task, seconds: Mapping[str, list[float]]) -> str:
    """One table with the lines that decide."""
    by_hand, _, equal = list(seconds)[:3]
    bases = (by_hand, equal, "Lightning, defaults")
    rows = [
        [name, f"{statistics.median(each) * 1e6:.1f}"]
        + [f"{median_ratio(each, seconds[base]):.3f}" for base in bases]
        for name, each in seconds.items()
    ]
    header = ["", "µs per step", "/ raw loop", "/ equal raw loop", "/ Lightning"]
    return "\n\n".join(
        [
            f"## {task.name}: {task.width} → {task.hidden} → {task.hidden} → {task.width}, "
            f"batches of {task.batch}",
            table(header, rows),
        ]
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let trainers print where nobody reads."""
    for name in ("lightning", "pytorch_lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sink = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        warnings.simplefilter("ignore")
        yield


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500, help="steps of an epoch")
    parser.add_argument("--epochs", type=int, default=4, help="epochs the long run has more")
    parser.add_argument("--auto-epochs", type=int, default=100)
    parser.add_argument("--turns", type=int, default=80, help="epochs of a training in turns")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    tasks = [
        Task(name="Tiny", width=16, hidden=16, batch=4, steps=options.steps, device=device),
        Task(name="Small", width=64, hidden=256, batch=64, steps=options.steps, device=device),
    ]
    sections = []
    for task in tasks:
        with quiet():
            close = [turns_line(task, *way, options.turns) for way in TURNS]
            if options.rounds:
                seconds = measure(task, options.rounds, options.epochs, options.auto_epochs)
                sections.append(section(task, seconds))
        sections.append(f"{task.name}, one training and one loop in turns, epoch by epoch:")
        sections.append("\n".join(close))
    packages = environment("torch", "pytorch-lightning", "accelerate", "transformers")
    intro = (
        f"{packages}, {options.device}, {options.threads} threads; {options.rounds} interleaved "
        f"rounds, medians. Time per step is the difference between a training of one epoch of "
        f"{options.steps} steps and one of {1 + options.epochs}, divided by the steps between "
        f"them; engine auto: the last quarter of {options.auto_epochs} epochs, after its "
        "decision. The *equal raw loop* has the Trainer's data loader and the fused Adam; *raw "
        "loop* in a ratio is the one over batches made beforehand, Adam as it comes."
    )
    publish("\n\n".join(["# Trainer overhead", intro, *sections]), options.output)


if __name__ == "__main__":
    main()
