"""Values a training step reports beside its loss."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from flodl.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator


def record_scalar(name: str, value: float | Tensor) -> None:
    """Report a value from inside a training step; the epoch shows the mean of what was reported.

    A tensor on an accelerator is added up there and read once, when the epoch ends.

    Args:
        name: Name of the metric.
        value: A number, or a tensor with one element.

    Raises:
        StateError: No step of a Trainer is running.
        ValueError: A tensor with another number of elements.
    """
    log = _active.get()
    if log is None:
        raise StateError(
            f"record_scalar({name!r}) outside of a training step: call it inside the train_fn "
            "given to Trainer.builder (with a loop of your own, use your own list)"
        )
    log.add(name, value)


@final
class ScalarLog:
    """Running means of named values over one epoch."""

    def __init__(self) -> None:
        self._sums: dict[str, float | Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, value: float | Tensor) -> None:
        """Add one value of a metric."""
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise ValueError(
                    f"record_scalar({name!r}): a tensor of shape {list(value.shape)} has "
                    f"{value.numel()} elements, one is needed; reduce it, for instance with .mean()"
                )
            value = value.detach()
        self._counts[name] = self._counts.get(name, 0) + 1
        if isinstance(value, Tensor) and value.device.type != "cpu":
            self._add_on_device(name, value)
        else:
            self._sums[name] = self._sums.get(name, 0.0) + float(value)

    def _add_on_device(self, name: str, value: Tensor) -> None:
        total = self._sums.get(name, 0.0)
        if isinstance(total, Tensor):
            total.add_(value.reshape(()))
        else:
            # A sum of our own, so that a later write into the value cannot change what was seen.
            dtype = torch.float32 if value.device.type == "mps" else torch.float64
            self._sums[name] = value.reshape(()).to(dtype, copy=True).add_(total)

    def means(self) -> dict[str, float]:
        """Return the mean of every metric, in the order of first appearance."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items()}


_active: ContextVar[ScalarLog | None] = ContextVar("flodl_scalar_log", default=None)


@contextmanager
def recording_into(log: ScalarLog) -> Iterator[None]:
    """Direct :func:`record_scalar` into ``log`` inside the context."""
    token = _active.set(log)
    try:
        yield
    finally:
        _active.reset(token)
