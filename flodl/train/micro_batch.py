"""How many samples of a batch a rank computes at once, so that they fit into its memory."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from flodl import log, terminal
from flodl.checkpoint.generators import generator_states, set_generator_states
from flodl.ranks.group import host_name
from flodl.ranks.settings import MICRO_AUTO
from flodl.train.peak_memory import available_bytes
from flodl.train.rehearsal import rehearse

if TYPE_CHECKING:
    from flodl.ranks.group import Group
    from flodl.train.rehearsal import Train
    from flodl.train.settings import TrainingPlan

_FIRST = 8
"""The first try has this part of a batch: one that is too large could end the process."""

_TRIES = 4
"""A try with more samples says more about each of them; what does not change weighs less."""


def settled_micro_batch(plan: TrainingPlan, group: Group, train: Train) -> TrainingPlan:
    """Return a plan whose ``micro_batch`` is a number, or None for whole batches; collective.

    Args:
        plan: The plan of this rank.
        group: The ranks; each measures its own device.
        train: Carries out a plan in this process alone, with a time ledger.

    Raises:
        ValueError: The data are batches of an unknown size.
    """
    settings = plan.distributed
    asks = settings.micro_batch == MICRO_AUTO
    if not any(group.gather_objects(asks)):
        return plan
    if asks and plan.batch_size is None:
        raise ValueError(
            "micro_batch='auto': the data are batches, and their size is not known; give a number"
        )
    # Ranks without a GPU share the memory of their host.
    neighbours = group.gather_objects(host_name()).count(host_name())
    found = settings.micro_batch
    if asks:
        terminal.status("looking for the largest micro-batch")
        device = group.device
        free = available_bytes(device, 1 if device.type == "cuda" else neighbours)
        found = largest_micro_batch(replace(plan, device=device), train, free)
    told = group.gather_objects(found)
    if group.leads:
        sizes = ", ".join(str(one or plan.batch_size) for one in told)
        log.msg(f"  samples computed at once, of {plan.batch_size}: {sizes} (--micro-batch auto)")
    return replace(plan, distributed=settings.having(micro_batch=found))


def largest_micro_batch(plan: TrainingPlan, train: Train, available: int) -> int | None:
    """Measure steps, as ``fdl plan --try`` does; return the samples that fit, as a power of 2.

    Args:
        plan: The plan, with the device.
        train: As for :func:`settled_micro_batch`.
        available: Bytes that this process may use in all.

    Returns:
        The number of samples; None if a whole batch fits.
    """
    whole = plan.batch_size or 1
    random = generator_states()
    size, fitting = max(1, whole // _FIRST), 1
    for _ in range(_TRIES):
        result, error = rehearse(_quiet(plan, size), train, available)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if error is None:
            fitting = whole if result.largest_batch_size is None else result.largest_batch_size
        elif isinstance(error, torch.OutOfMemoryError) and size > 1:
            fitting = size // 2
        else:
            raise error
        if fitting <= size or size == whole:
            break
        size = min(fitting, whole)
    set_generator_states(random)
    return None if fitting >= whole else 1 << (max(1, fitting).bit_length() - 1)


def _quiet(plan: TrainingPlan, size: int) -> TrainingPlan:
    """Return a plan of steps with fewer samples that writes nothing and calls no hook."""
    return replace(
        plan, batch_size=size, accumulate=1, run_dir=None, whole=None, callbacks=(), sinks=(),
        live_settings=(), epoch_fn=None, metrics_fn=None, eval_fn=None, checkpoint_fn=None,
        best=None, guards=None, histograms=None,
    )  # fmt: skip
