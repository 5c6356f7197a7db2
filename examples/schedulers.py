"""Learning-rate schedules side by side: the rates, the losses and the accuracies.

    python examples/schedulers.py

Trains the same small classifier once per schedule, from the same weights and in the same order.
Prints the rate at the beginning of every epoch, then the loss and the accuracy on digits that
training never saw. Takes a few seconds on a CPU.
"""

import math

import torch
from torch import Tensor, nn

from flodl import Batch, EpochMetrics, FlowBuilder, Graph, Trainer, digits
from flodl.nn.losses import cross_entropy_loss
from flodl.nn.optim import SGD
from flodl.nn.schedule import (
    CosineScheduler,
    CyclicLR,
    ExponentialLR,
    MultiStepLR,
    OneCycleLR,
    PlateauScheduler,
    Scheduler,
    StepDecay,
    WarmupScheduler,
)

EPOCHS = 6
BATCH_SIZE = 32
STEPS_PER_EPOCH = math.ceil(len(digits("train")) / BATCH_SIZE)
STEPS = EPOCHS * STEPS_PER_EPOCH
PEAK = 0.2
"""Highest learning rate of every schedule."""


def schedules() -> dict[str, Scheduler]:
    """Every schedule, stretched over the whole run."""
    warmup = STEPS_PER_EPOCH
    return {
        "step decay": StepDecay(PEAK, 2 * STEPS_PER_EPOCH, 0.3),
        "multi-step": MultiStepLR(PEAK, [STEPS // 2, 3 * STEPS // 4], 0.1),
        "exponential": ExponentialLR(PEAK, 0.01 ** (1 / STEPS)),  # ends at a hundredth
        "cosine": CosineScheduler(PEAK, 0.0, STEPS),
        "warm-up, cosine": WarmupScheduler(
            CosineScheduler(PEAK, 0.0, STEPS - warmup), PEAK, warmup
        ),
        "one cycle": OneCycleLR(PEAK, STEPS),
        "cyclic": CyclicLR(PEAK / 20, PEAK, STEPS_PER_EPOCH),
        "plateau": PlateauScheduler(PEAK, patience=1, factor=0.3, min_lr=1e-4),
    }


def build_model(_: torch.device) -> Graph:
    """Images [B, 1, 8, 8] in, logits [B, 10] out; the same weights every time."""
    torch.manual_seed(0)
    return (
        FlowBuilder.from_(nn.Flatten())
        .through(nn.Linear(64, 32))
        .through(nn.GELU())
        .through(nn.Linear(32, 10))
        .build()
    )


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """One step of training: the loss of a batch."""
    return cross_entropy_loss(model(batch["image"]), batch["label"])


def evaluate(model: nn.Module) -> dict[str, float]:
    """Loss and accuracy on the held-out digits."""
    images, labels = digits("test").tensors
    logits = model(images)
    return {
        "held_out_loss": cross_entropy_loss(logits, labels).item(),
        "accuracy": (logits.argmax(dim=1) == labels).float().mean().item(),
    }


def make_optimizer(parameters: list[nn.Parameter]) -> SGD:
    """The schedule sets the rate of every step, from the first on."""
    return SGD(parameters, lr=PEAK, momentum=0.9)


def train(schedule: Scheduler) -> tuple[list[float], EpochMetrics]:
    """Train with a schedule: the rate at the start of each epoch, and the last metrics."""
    rates = [schedule.lr(0)]

    def epoch_done(metrics: EpochMetrics) -> None:
        if isinstance(schedule, PlateauScheduler):
            schedule.observe(metrics.scalars["held_out_loss"])  # the only one that wants to know
        rates.append(schedule.lr((metrics.epoch + 1) * STEPS_PER_EPOCH))

    handle = (
        Trainer.builder(build_model, make_optimizer, loss_of)
        .dataset(digits("train"))
        .batch_size(BATCH_SIZE)
        .num_epochs(EPOCHS)
        .scheduler(lambda world_size: schedule)  # noqa: ARG005 - one device, one schedule
        .eval_fn(evaluate)
        .metrics_fn(epoch_done)
        .run()
    )
    return rates[:EPOCHS], handle.poll_metrics()[-1]


def main() -> None:
    """Train with each schedule and print one line for it."""
    epochs = "".join(f"{f'epoch {epoch}':>9}" for epoch in range(1, EPOCHS + 1))
    print(f"{'rate at':<16}{epochs}{'loss':>9}{'accuracy':>10}")
    for name, schedule in schedules().items():
        rates, last = train(schedule)
        columns = "".join(f"{rate:>9.5f}" for rate in rates)
        print(f"{name:<16}{columns}{last.avg_loss:>9.4f}{last.scalars['accuracy']:>10.3f}")


if __name__ == "__main__":
    main()
