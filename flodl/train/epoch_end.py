"""The work between two epochs: evaluation, and the callbacks of the user's program."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from flodl import log
from flodl.errors import DivergedError
from flodl.nn.modes import evaluating
from flodl.ranks.launch.interrupt import Terminated

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from flodl.train.run.run_directory import EndState


def model_metrics(model: nn.Module) -> dict[str, float]:
    """End the epoch of a model that records metrics, and return them."""
    end_epoch = getattr(model, "end_epoch", None)
    if callable(end_epoch):
        end_epoch()
    latest = getattr(model, "latest_metrics", None)
    return {name: float(value) for name, value in latest()} if callable(latest) else {}


def evaluate(
    eval_fn: Callable[[Any], Mapping[str, float | Tensor]],
    model: nn.Module,
    averaged: AbstractContextManager[None],
    epoch: int,
) -> dict[str, float]:
    """Call ``eval_fn`` in eval mode, without gradients and with the averaged weights.

    Raises:
        TypeError: It did not return a mapping of numbers.
    """
    try:
        with evaluating(model), torch.no_grad(), averaged:
            values = eval_fn(model)
            if not isinstance(values, Mapping):
                raise TypeError(
                    f"eval_fn returned a {type(values).__name__}; "
                    "return a mapping such as {'accuracy': 0.9}"
                )
            return {str(name): _number(name, value) for name, value in values.items()}
    except Exception as error:
        error.add_note(f"in eval_fn after epoch {epoch} (counted from 0)")
        raise


def _number(name: object, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        kind = type(value).__name__ if shape is None else f"tensor of shape {list(shape)}"
        raise TypeError(
            f"eval_fn returned a {kind} for {name!r}; return one number for each name"
        ) from None


def call_back(name: str, epoch: int, callback: Callable[..., Any], *args: object) -> Any:
    """Call a callback of the user's program; report an exception and do not raise it."""
    try:
        return callback(*args)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        log.warning(
            f"{name} failed in epoch {epoch} and training continues: "
            f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
        )
        log.debug(traceback.format_exc().rstrip())
        return None


def end_state(error: BaseException) -> EndState:
    """Return the end state of a training that this error ends."""
    if isinstance(error, KeyboardInterrupt | Terminated):
        return "interrupted"
    return "diverged" if isinstance(error, DivergedError) else "failed"


def diverged(error: DivergedError, whereabouts: str, rate_note: str = "") -> DivergedError:
    """Return the error with the last good checkpoint and what to change.

    Args:
        error: Says what is not finite.
        whereabouts: Says where the last good checkpoint is.
        rate_note: Added to the learning rate in the text.
    """
    return DivergedError(
        f"{error}; {whereabouts}. Lower the learning rate{rate_note}, clip the gradients "
        "(max_grad_norm), or look for bad values in the data",
        epoch=error.epoch,
        step=error.step,
    )
