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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader as TorchLoader, TensorDataset

from benchmarks.measure import (
    command_line,
    in_turns,
    median_ratio,
    middle,
    page,
    publish,
    ratios,
    read_options,
    spread,
    table,
)
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
    """Loops by hand: batches made beforehand, torch's loader, our loader, and the fused Adam."""
    x, y = (tensor.to(task.device) for tensor in task.samples())
    drawn = list(zip(torch.split(x, task.batch), torch.split(y, task.batch), strict=True))
    loader = task.loader()
    ours = DataLoader(TensorDataSet(x.cpu(), y.cpu()), task.batch, device=task.device)
    return {
        "raw loop, batches made beforehand": partial(raw, task, lambda: drawn, None),
        "raw loop, torch's DataLoader": partial(raw, task, lambda: loader, None),
        "equal raw loop": partial(raw, task, lambda: ours, None),
        "raw loop, fused Adam": partial(raw, task, lambda: drawn, True),
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
    """Seconds of a whole training with the eager engine."""
    ends = flodl_trainer(task, "eager", None, epochs)
    return ends[-1] - ends[0]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds per step.

    Attributes:
        step: Without start-up, and with engine auto after its decision.
        total: Of the whole training, with start-up and the trials of an engine.
    """

    step: float
    total: float


def flodl_auto(task: Task, epochs: int) -> Cost:
    """A training with engine auto: the last quarter of its epochs, and all of it."""
    ends = flodl_trainer(task, "auto", None, epochs)
    late = ends[-max(2, epochs // 4) :]
    spans = [after - before for before, after in pairwise(late)]
    total = (ends[-1] - ends[0]) / (epochs * task.steps)
    return Cost(statistics.median(spans) / task.steps, total)


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
    """Hugging Face's Trainer with the same Adam, without checkpoints and reporters."""
    from transformers import Trainer as HfTrainer, TrainingArguments

    x, y = task.samples()
    samples: Any = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=task.batch,
            learning_rate=LR,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            report_to="none",
            save_strategy="no",
            use_cpu=task.device.type == "cpu",
        )
        model = WithLoss(task.model())
        adam = torch.optim.Adam(model.parameters(), lr=LR)
        trainer = HfTrainer(model, arguments, train_dataset=samples, optimizers=(adam, None))
        with timed(task) as clock:
            trainer.train()
    return clock.seconds


@dataclass(frozen=True, slots=True)
class Turns:
    """One training beside one loop by hand.

    Attributes:
        loop: Seconds per step of the loop, by epoch.
        trainer: The same of the Trainer.
        apart: Largest difference of a weight at the end, relative to the largest weight.
        drift: The same difference between the loop and a loop whose Adam differs: fused or not.
    """

    loop: list[float]
    trainer: list[float]
    apart: float
    drift: float


def turns(task: Task, engine: str, fused: bool | None, epochs: int) -> Turns:
    """Let one training and one loop by hand take turns, epoch by epoch, in one process.

    The loop runs while the training waits to begin an epoch. Nothing starts up and nothing is
    subtracted, so this resolves microseconds where whole trainings do not.
    """
    by_hand, other = (ByHand(task, way) for way in (fused, not fused))
    loops, trainings = [], []

    def loop(epoch: int, _: object) -> None:
        other.epoch(epoch)
        loops.append(by_hand.epoch(epoch))

    def note(metrics: EpochMetrics) -> None:
        trainings.append(metrics.epoch_ms / 1e3 / task.steps)

    run = training(task, engine, fused, epochs).epoch_fn(loop).metrics_fn(note).run()
    # The beginning warms up, and engine auto decides there.
    late = epochs // 2 if engine == "auto" else epochs // 8
    return Turns(
        loops[late:],
        trainings[late:],
        apart(by_hand.model, run.model),
        apart(by_hand.model, other.model),
    )


class ByHand:
    """A loop by hand over the batches that the Trainer draws."""

    def __init__(self, task: Task, fused: bool | None) -> None:
        self.model = task.model()
        self._task = task
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=LR, fused=fused)
        self._loader = DataLoader(TensorDataSet(*task.samples()), task.batch, device=task.device)

    def epoch(self, number: int) -> float:
        """Train an epoch; returns seconds per step."""
        task, losses = self._task, []
        with timed(task) as clock:
            for x, y in self._loader.epoch(number):
                loss = mse_loss(self.model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
                self._optimizer.zero_grad()
                losses.append(loss.item() if task.device.type == "cpu" else loss.detach())
        return clock.seconds / task.steps


def apart(one: nn.Module, other: nn.Module) -> float:
    """Largest difference of a weight, relative to the largest weight."""
    mine, theirs = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (one, other))
    return float((mine - theirs).abs().max() / mine.abs().max())


def turns_row(task: Task, engine: str, fused: bool | None, epochs: int) -> list[str]:
    """What one step of the Trainer costs beside the same step by hand."""
    found = turns(task, engine, fused, epochs)
    over = [mine - theirs for mine, theirs in zip(found.trainer, found.loop, strict=True)]
    return [
        f"engine {engine}, {'fused Adam' if fused else 'Adam as it comes'}",
        middle(found.loop, ".1f", 1e6),
        middle(over, "+.1f", 1e6),
        f"{median_ratio(found.trainer, found.loop):.3f}",
        spread(ratios(found.trainer, found.loop), ".3f"),
        f"{found.apart:.1e}",
        f"{found.drift:.1e}",
    ]


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


def subjects(task: Task, *, alone: bool) -> dict[str, Run]:
    """All ways whose start-up drops out by difference.

    Args:
        task: What they train.
        alone: Leave the other trainers out.
    """
    ours: dict[str, Run] = {
        **raw_loops(task),
        "flodl Trainer, engine eager": partial(flodl_eager, task),
    }
    others: dict[str, Run] = {
        "Accelerate": partial(accelerate, task),
        "Lightning, all off": partial(lightning, task, True),
        "Lightning, defaults": partial(lightning, task, False),
        "Hugging Face Trainer": partial(hugging_face, task),
    }
    return ours if alone else {**ours, **others}


AUTO = "flodl Trainer, engine auto"
DIFFERS = {
    "raw loop, fused Adam": "fused Adam",
    "Lightning, defaults": "log, progress bar, checkpoint",
    AUTO: "tunings that the engine chose",
}
"""What a way has that the others do not have."""

TURNS: tuple[tuple[str, bool | None], ...] = (("eager", True), ("eager", None), ("auto", None))
"""Engine and fused Adam of the trainings that take turns with a loop."""


def measure(task: Task, options: argparse.Namespace) -> dict[str, list[Cost]]:
    """What a step costs in every round."""
    runs = subjects(task, alone=options.alone)

    def cost(name: str) -> Cost:
        if name == AUTO:
            return flodl_auto(task, options.auto_epochs)
        more = options.epochs
        short, long = runs[name](1), runs[name](1 + more)
        return Cost((long - short) / (more * task.steps), long / ((1 + more) * task.steps))

    return in_turns([*runs, AUTO], cost, options.rounds)


def section(found: Mapping[str, Sequence[Cost]]) -> str:
    """The table of whole trainings."""
    steps = {name: [cost.step for cost in costs] for name, costs in found.items()}
    names = {
        "/ raw loop": "raw loop, batches made beforehand",
        "/ equal raw loop": "equal raw loop",
        "/ Lightning": "Lightning, defaults",
    }
    bases = {title: steps[name] for title, name in names.items() if name in steps}
    rows = [
        [
            name,
            middle(each, ".1f", 1e6),
            *(f"{median_ratio(each, base):.3f}" for base in bases.values()),
            spread(ratios(each, bases["/ raw loop"]), ".3f"),
            middle([cost.total for cost in found[name]], ".1f", 1e6),
            DIFFERS.get(name, ""),
        ]
        for name, each in steps.items()
    ]
    return table(
        ["", "µs per step", *bases, "spread of / raw loop", "total µs per step", "what differs"],
        rows,
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


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("trainer_overhead", __doc__, rounds=5)
    parser.add_argument("--steps", type=int, default=500, help="steps of an epoch")
    parser.add_argument("--epochs", type=int, default=4, help="epochs the long run has more")
    parser.add_argument("--auto-epochs", type=int, default=100)
    parser.add_argument("--turns", type=int, default=80, help="epochs of a training in turns")
    parser.add_argument("--alone", action="store_true", help="leave the other trainers out")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    small = {"rounds": 1, "steps": 3, "epochs": 1, "auto_epochs": 3, "turns": 4, "alone": True}
    options = read_options(parser, argv, **small)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    tasks = [
        Task(name="Tiny", width=16, hidden=16, batch=4, steps=options.steps, device=device),
        Task(name="Small", width=64, hidden=256, batch=64, steps=options.steps, device=device),
    ]
    sections = []
    for task in tasks:
        with quiet():
            close = [turns_row(task, *way, options.turns) for way in TURNS]
            found = measure(task, options) if options.rounds else {}
        sections.append(
            f"## {task.name}: {task.width} → {task.hidden} → {task.hidden} → {task.width}, "
            f"batches of {task.batch}"
        )
        sections += [section(found)] if found else []
        sections.append(f"{task.name}, one training and one loop in turns, epoch by epoch:")
        header = ["", "loop µs", "more µs", "/ loop", "spread", "weights apart", "honest drift"]
        sections.append(table(header, close))
    text = page(options, "Trainer overhead", _intro(options), *sections, packages=PACKAGES)
    publish(text, options.output)


PACKAGES = ("torch", "pytorch-lightning", "accelerate", "transformers")


def _intro(options: argparse.Namespace) -> str:
    return (
        f"Device {options.device}; {options.rounds} interleaved rounds, medians and the middle "
        "80 %. All ways run in one process and have Adam as it comes, float32, one heap and the "
        "same threads; the last column names every exception. Time per step is the difference "
        f"between a training of one epoch of {options.steps} steps and one of "
        f"{1 + options.epochs}, divided by the steps between them. Engine auto: the last quarter "
        f"of {options.auto_epochs} epochs, after its decision. *Total* divides the whole "
        "training by its steps, with start-up and trials. The *equal raw loop* has the Trainer's "
        "data loader; *raw loop* in a ratio is the one over batches made beforehand. *Weights "
        "apart* compares Trainer and loop after the last epoch: the largest difference of a "
        "weight by the largest weight. *Honest drift* is the same between two loops by hand, "
        "with and without the fused Adam."
    )


if __name__ == "__main__":
    main()
