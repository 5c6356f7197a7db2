"""Checks of the settings of a training, before its first step.

These checks see only settings, before any part is made. The checks of
:mod:`flodl.train.settings.part_checks` see the model and the optimizer once they exist.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from flodl import log
from flodl.ranks.launch.launcher import detect
from flodl.train.run.run_records import checkpoint_in
from flodl.train.settings.user_parts import GivenParts, example

if TYPE_CHECKING:
    from flodl.train.plan import ModelFactory, OptimizerFactory


def factories(
    model: ModelFactory | nn.Module, optimizer: OptimizerFactory | torch.optim.Optimizer
) -> tuple[GivenParts | None, ModelFactory, OptimizerFactory]:
    """Return functions that make model and optimizer, from functions or finished parts.

    Returns:
        The finished parts, if any, and the two functions.

    Raises:
        ValueError: One of them is neither a part of a training nor a function that makes it.
    """
    made = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    if not isinstance(model, nn.Module):
        if made is not None:
            raise ValueError(
                f"the optimizer is a {type(made).__name__}, made before the model, which a "
                "function makes: give the model itself, or a function for the optimizer, too, "
                f"such as {example(made)}"
            )
        _check_no_class(model)
        return None, takes("model", model, "device"), takes("optimizer", optimizer, "parameters")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            "the parameters of the model have no values (device 'meta'): load its weights first, "
            f"or give a function, such as lambda device: {type(model).__name__}(…)"
        )
    given = GivenParts(model, made)
    if made is not None:
        return given, given.model_on, given.optimizer_over
    return given, given.model_on, takes("optimizer", optimizer, "parameters")


def takes(name: str, function: Any, *arguments: str) -> Any:
    """Return a function that can be called with these arguments.

    Raises:
        ValueError: It is not a function, or takes other arguments.
    """
    form = f"lambda {', '.join(arguments)}: …"
    if not callable(function):
        graph = getattr(function, "graph", None)
        remedy = (
            "give its .graph" if isinstance(graph, nn.Module) else f"it must be a {_WANTED[name]}"
        )
        raise ValueError(f"{name}={function!r:.80}: {remedy}, such as {form}")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # written in C, or without a readable signature
        return function
    try:
        signature.bind(*arguments)
    except TypeError as error:
        called = f"{name}({', '.join(arguments)})"
        raise ValueError(
            f"{name} cannot be called as {called} ({error}): write it as {form}"
        ) from None
    return function


_WANTED = {
    "model": "torch.nn.Module, or a function",
    "optimizer": "function, or with a model that is given itself an optimizer",
    "train_fn": "function",
}


def _check_no_class(model: Any) -> None:
    """Refuse a class of modules: a call would pass the device as its first argument."""
    if not (isinstance(model, type) and issubclass(model, nn.Module)):
        return
    first = next(iter(inspect.signature(model).parameters), None)
    if first != "device":
        raise ValueError(
            f"the model is the class {model.__name__}: give a model, {model.__name__}(…), or a "
            f"function, such as lambda device: {model.__name__}(…)"
        )


def check_batch_size(batch_size: int, samples: int, *, drop_last: bool) -> None:
    """Check a data set that does not fill one batch.

    Raises:
        ValueError: ``drop_last`` would drop all of it.
    """
    if not 0 < samples < batch_size:
        return
    problem = f"batch_size={batch_size} is larger than the data set ({samples} samples): "
    if drop_last:
        raise ValueError(
            f"{problem}no batch would ever be full; choose .batch_size({samples}) or less, or "
            "leave drop_last out"
        )
    log.warning(f"{problem}each epoch is one batch of {samples}")


def is_first_rank() -> bool:
    """Whether this process is rank 0 or alone; only it reads and writes the files of a run."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank() == 0
    launched = detect(os.environ)
    return launched is None or launched.rank == 0


def check_files(settings: Mapping[str, Any]) -> None:
    """Check that the run directory and the checkpoint exist if the settings need them.

    Raises:
        ValueError: A setting needs a run directory and there is none.
        RunDirectoryError: There is no checkpoint to resume from.
    """
    if settings.get("run_dir") is None:
        wanted = [call for name, call in _KEPT.items() if settings.get(name) is not None]
        if "checkpoint_every" in settings and settings.get("checkpoint_fn") is None:
            wanted.append("checkpoint_every(…)")
        if wanted:
            raise ValueError(
                f".{wanted[0]} writes into a run directory and there is none: add "
                ".run_dir(RunDirectory.create('runs'))"
            )
    source = settings.get("resume")
    if source is not None and source != "last":
        checkpoint_in(source)


_KEPT = {"best": "keep_best(…)", "checkpoint_steps": "checkpoint_steps(…)"}


def check_schedules(settings: Mapping[str, Any]) -> None:
    """Check the settings of the learning rate.

    Raises:
        ValueError: Two settings set it, or the engine cannot use one of them.
    """
    if settings.get("lr_scheduler") is None:
        return
    if settings.get("scheduler") is not None:
        raise ValueError(
            ".scheduler(…) and .lr_scheduler(…) both set the learning rate: leave one of them out"
        )
    if settings.get("engine") == "cuda_graph":
        raise ValueError(
            "engine='cuda_graph' with .lr_scheduler(…): a captured step keeps its learning rate; "
            "use .engine('auto'), or a schedule of flodl.nn.schedule with .scheduler(…)"
        )
