"""Metrics of a graph: values recorded per batch, averaged into one point per flush."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from flodl.errors import StateError


class Recorded:
    """A tensor kept until somebody reads its value: recording never waits for a device."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        # A fresh result of autograd is nobody else's buffer; anything else (a parameter, a static
        # input, a slice of either) may hold other numbers by the time of the flush.
        fresh = tensor.grad_fn is not None and not tensor._is_view()
        self.tensor = tensor.detach() if fresh else tensor.detach().clone()
        self.version = None if self.tensor.is_inference() else self.tensor._version

    def __reduce__(self) -> tuple[type[Recorded], tuple[Tensor]]:
        return Recorded, (self.tensor,)  # a copied tensor counts its versions anew

    def check(self, name: str) -> Tensor:
        """The tensor, unless an in-place operation has changed it since.

        Raises:
            StateError: The value is lost.
        """
        if self.version is not None and self.tensor._version != self.version:
            raise StateError(
                f"a tensor recorded as {name!r} was changed in place afterwards, its value is "
                "lost: record it after the change, or record tensor.clone()"
            )
        return self.tensor


class MetricHistory:
    """A batch buffer per metric, and the history its means are appended to."""

    def __init__(self) -> None:
        self.flush_count = 0
        self._pending: dict[str, list[float | Recorded]] = {}
        self._history: dict[str, list[float]] = {}

    def record(self, name: str, values: Iterable[float | Tensor] | Tensor) -> None:
        """Buffer values; a tensor of any shape counts as all of its elements."""
        if isinstance(values, Tensor):
            self._keep(name, [Recorded(values)] if values.numel() else [])
        else:
            self._keep(name, [_as_value(name, value) for value in values])

    def record_scalar(self, name: str, value: float | Tensor) -> None:
        """Buffer one value."""
        self._keep(name, [_as_value(name, value)])

    def collected(self, name: str) -> list[float]:
        """The raw values of one metric since its last flush."""
        values = self._read([name])[name]
        if name in self._pending:
            self._pending[name] = list(values)
        return values

    def flush(self, names: Iterable[str] = ()) -> None:
        """Append the mean of every buffer (or of the named ones) to its history and clear it."""
        chosen = list(dict.fromkeys(names)) or list(self._pending)
        values = self._read([name for name in chosen if self._pending.get(name)])
        for name, numbers in values.items():
            self._history[name].append(sum(numbers) / len(numbers))
            self._pending[name] = []
        self.flush_count += bool(values)

    def latest(self) -> list[tuple[str, float]]:
        """The last point of every metric that has one, in the order they were first seen."""
        return [(name, points[-1]) for name, points in self._history.items() if points]

    def _keep(self, name: str, values: list[float | Recorded]) -> None:
        self._history.setdefault(name, [])
        self._pending.setdefault(name, []).extend(values)

    def _read(self, names: list[str]) -> dict[str, list[float]]:
        """The buffered values as numbers, with one transfer per device and dtype."""
        batches: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for name in names:
            for value in self._pending.get(name, ()):
                if isinstance(value, Recorded):
                    flat = value.check(name).reshape(-1)
                    batches.setdefault((flat.device, flat.dtype), []).append(flat)
        numbers = {key: iter(torch.cat(flats).tolist()) for key, flats in batches.items()}
        result: dict[str, list[float]] = {}
        for name in names:
            result[name] = []
            for value in self._pending.get(name, ()):
                if isinstance(value, Recorded):
                    source = numbers[value.tensor.device, value.tensor.dtype]
                    result[name] += [float(next(source)) for _ in range(value.tensor.numel())]
                else:
                    result[name].append(value)
        return result


def _as_value(name: str, value: float | Tensor) -> float | Recorded:
    if not isinstance(value, Tensor):
        return float(value)
    if value.numel() != 1:
        raise ValueError(
            f"{name!r}: one value per entry, got a tensor of shape {list(value.shape)}; "
            "reduce it first, for instance with .mean(), or use record(name, tensor)"
        )
    return Recorded(value)


class Observed(nn.Module):
    """The metrics half of a graph's interface; a base class of ``Graph``."""

    def __init__(self) -> None:
        super().__init__()
        self._metrics = MetricHistory()

    def record(self, name: str, values: Iterable[float | Tensor] | Tensor) -> None:
        """Buffer values of a metric until the next :meth:`flush`.

        Args:
            name: The metric.
            values: Numbers or one-element tensors, or one tensor whose elements all count.
                Tensors are detached and read at the flush, all in one transfer.
        """
        self._metrics.record(name, values)

    def record_scalar(self, name: str, value: float | Tensor) -> None:
        """Buffer one value of a metric until the next :meth:`flush`.

        Raises:
            ValueError: A tensor with several elements.
        """
        self._metrics.record_scalar(name, value)

    def collected(self, name: str) -> list[float]:
        """The raw values of a metric since its last flush; empty for an unknown one.

        Raises:
            StateError: A recorded tensor was changed in place.
        """
        return self._metrics.collected(name)

    def flush(self, *names: str) -> None:
        """Turn what is buffered into one point per metric: the mean of its values.

        Args:
            names: The metrics to flush; all when none is given. Nothing buffered adds no point.

        Raises:
            StateError: A recorded tensor was changed in place; nothing is flushed.
        """
        self._metrics.flush(names)

    @property
    def flush_count(self) -> int:
        """How many flushes have added a point."""
        return self._metrics.flush_count

    def latest_metrics(self) -> list[tuple[str, float]]:
        """``(name, value)`` of every metric's last point, in the order they were first seen."""
        return self._metrics.latest()
