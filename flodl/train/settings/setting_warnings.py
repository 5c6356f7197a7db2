"""Warnings about settings that are allowed but rarely intended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.modules.batchnorm import _BatchNorm

from flodl import log

if TYPE_CHECKING:
    from torch import nn

    from flodl.train.step.learning_rate import Schedule


def warn_of_unfinished_schedule(schedule: Schedule | None, steps: int) -> None:
    """Warn if a schedule that knows its length is longer than the ``steps`` of the run."""
    total = getattr(schedule, "total_steps", None)
    if isinstance(total, int) and total > steps:
        log.warning(
            f"the learning-rate schedule is made for {total} optimizer steps and the run makes "
            f"{steps}: it never gets to its end; count its steps from the run (a warm-up adds to "
            "those of the schedule inside it)"
        )


def warn_of_single_sample(model: nn.Module, samples: int, batch_size: int, *, kept: bool) -> None:
    """Warn if the last batch of an epoch is one sample and the model uses batch statistics.

    Args:
        model: The model that is trained.
        samples: Number of samples in the data set.
        batch_size: Samples per batch.
        kept: Whether an incomplete last batch is trained on.
    """
    if not kept or samples % batch_size != 1 or batch_size == 1:
        return
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.training
    ]
    if names:
        log.warning(
            f"the last batch of an epoch is a single sample ({samples} samples, batch_size="
            f"{batch_size}) and {names[0] or 'the model'} normalises over the batch: its variance "
            "is 0; let it join the batch before (join_remainder=True, as it is by default), leave "
            "it out (drop_last=True) or choose another batch size"
        )
