"""Checks of the model, the optimizer and the schedule of a training, before its first step."""

from __future__ import annotations

import functools
import inspect
from itertools import chain
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from flodl import log
from flodl.checkpoint.forms import CASTABLE
from flodl.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from flodl.train.plan import TrainingPlan
    from flodl.train.step.learning_rate import Schedule


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer evaluates the loss itself in a step, as LBFGS does."""
    # The method of the class: a scheduler of torch puts a wrapper into the object.
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def check_closure(optimizer: torch.optim.Optimizer, plan: TrainingPlan, world_size: int) -> None:
    """Check that the settings fit an optimizer that needs a closure.

    Raises:
        ValueError: A setting does not fit.
    """
    if not needs_closure(optimizer):
        return
    obstacles = {
        f"engine={plan.engine!r} (use .engine('eager'))": plan.engine not in ("auto", "eager"),
        f".accumulate({plan.accumulate})": plan.accumulate != 1,
        "a gradient scaler (use .autocast(torch.bfloat16))": plan.scaler is not None,
        f"{world_size} ranks": world_size > 1,
    }
    found = [name for name, there in obstacles.items() if there]
    if found:
        raise ValueError(
            f"{type(optimizer).__name__} evaluates the loss several times per step, on one batch, "
            f"in full precision and on one device: it does not go with {' nor '.join(found)}"
        )


def check_exchanged(model: nn.Module) -> None:
    """Check that ranks can exchange the parameters and buffers of a model.

    Raises:
        ValueError: A tensor is not dense, or torch cannot convert its type.
    """
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if tensor.layout is not torch.strided or tensor.dtype not in CASTABLE:
            raise ValueError(
                f"{name} is {tensor.dtype} ({tensor.layout}), which ranks cannot exchange: keep it "
                "as a plain attribute if it never changes, or train on one device"
            )


def check_carried(plan: TrainingPlan, model: nn.Module, size: int, samples: int) -> None:
    """Check a graph that carries state if the epoch has batches of two sizes.

    The check passes if the training function, the model or a callback calls ``reset_state()``, or
    if the program sets ``drop_last`` itself.

    Args:
        plan: The plan of the training.
        model: The model.
        size: Samples of a full batch.
        samples: Number of samples in the data set.

    Raises:
        ValueError: The smaller batch would meet the state of a larger one.
    """
    options = plan.loader_options
    left = samples % size
    joins = left == 1 and options.get("join_remainder", True)
    if not left or "drop_last" in options or samples <= size + joins:
        return
    graphs = [m for m in model.modules() if isinstance(m, Graph) and m.topology.state_tags]
    if not graphs or _resets(plan, model):
        return
    tags = ", ".join(map(repr, graphs[0].topology.state_tags))
    raise ValueError(
        f"the graph carries {tags} from one batch to the next, and the last batch of an epoch has "
        f"{size + 1 if joins else left} samples where the others have {size}: leave it out with "
        ".loader_options(drop_last=True), call reset_state() of the graph in the training "
        "function, or keep it with .loader_options(drop_last=False) if what is carried has no "
        "row per sample"
    )


_RESETS = {"reset_state", "set_carried_state"}


def _resets(plan: TrainingPlan, model: nn.Module) -> bool:
    functions = [plan.train_fn, *(getattr(one, "on_step_end", None) for one in plan.callbacks)]
    functions += [
        type(module).forward
        for module in model.modules()
        if not type(module).__module__.startswith(("torch.", "flodl."))
    ]
    return any(_RESETS & set(_names(function, set())) for function in functions)


def _names(function: Any, seen: set[int]) -> Iterator[str]:
    """Yield the names that a function uses, and those in functions it calls by name."""
    while isinstance(function, functools.partial | MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if not isinstance(function, FunctionType | type):
        function = getattr(type(function), "__call__", None)  # noqa: B004 - not whether, which
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    if function.__module__.startswith(("torch.", "flodl.")):
        return
    seen.add(id(function))
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name in _names_in(function.__code__):
        yield name
        yield from _names(function.__globals__.get(name), seen)
    for cell in cells.values():
        try:
            yield from _names(cell.cell_contents, seen)
        except ValueError:  # not filled yet
            continue


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


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
