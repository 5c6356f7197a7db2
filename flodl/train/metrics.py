"""Values a training step reports beside its loss."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

from torch import Tensor

from flodl.errors import StateError
from flodl.train.device_values import DeviceValues

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Recorded: TypeAlias = "tuple[str, float | Tensor]"
"""One call of :func:`record_scalar`: name and value."""


class StepCounter(Protocol):
    """Who knows which step is under way, such as a step engine."""

    global_step: int


class Recorder(Protocol):
    """Who takes the values of a step."""

    def add(self, name: str, value: float | Tensor) -> None:
        """Take one value of a metric."""


class _Thread(threading.local):
    """Trainings in two threads keep their values apart."""

    log: Recorder | None = None


_here = _Thread()

# Only while torch.compile traces, which runs nothing: what it sees is a plain list, and no thread
# ever finds anything but None here.
_collected: list[Recorded] | None = None


def record_scalar(name: str, value: float | Tensor) -> None:
    """Report a value from inside a training step; the epoch shows the mean of what was reported.

    A tensor on an accelerator is kept there and read when the epoch ends, so no step waits for it.
    Works inside a training function that torch.compile traces.

    Args:
        name: Name of the metric.
        value: A number, or a tensor with one element.

    Raises:
        StateError: No step of a Trainer is running.
        ValueError: A tensor with another number of elements.
    """
    if _collected is not None:
        _collected.append((name, value))
        return
    log = _here.log
    if log is None:
        raise StateError(
            f"record_scalar({name!r}) outside of a training step: call it inside the train_fn "
            "given to Trainer.builder (with a loop of your own, use your own list)"
        )
    log.add(name, value)


@contextmanager
def collecting() -> Iterator[list[Recorded]]:
    """Divert :func:`record_scalar` into a plain list, unchecked; for a function being traced.

    There the list is an ordinary local value, which the function returns beside its loss. The
    engine hands the values on with :func:`record_scalar` once the step has run. In a function that
    really runs, :func:`recording_into` a :class:`RecordedValues` does the same for its thread only.
    """
    global _collected
    outer = _collected
    inner: list[Recorded] = []
    _collected = inner
    try:
        yield inner
    finally:
        _collected = outer


@contextmanager
def recording_into(log: Recorder) -> Iterator[None]:
    """Direct :func:`record_scalar` of this thread into ``log`` inside the context."""
    outer = _here.log
    _here.log = log
    try:
        yield
    finally:
        _here.log = outer


@final
class RecordedValues:
    """Keeps calls of :func:`record_scalar` as they came, unchecked.

    Attributes:
        calls: Name and value of each.
    """

    def __init__(self) -> None:
        self.calls: list[Recorded] = []

    def add(self, name: str, value: float | Tensor) -> None:
        """Keep one call."""
        self.calls.append((name, value))


@final
class _Scalar:
    """One metric in one epoch: values not yet counted, and the sums of those that are."""

    __slots__ = ("count", "device_values", "steps", "total", "values")

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0
        self.steps: list[int] = []
        self.values: list[float] = []
        self.device_values: DeviceValues | None = None

    def arrive(self, *, wait: bool) -> None:
        """Take over the values that can be read from the device; all, if told to wait."""
        if self.device_values is not None:
            for step, value in self.device_values.take(wait=wait):
                self.steps.append(step)
                self.values.append(value)

    def sums(self) -> list[float]:
        """Total and count of all values."""
        total = self.total
        for value in self.values:  # one by one: the sum of a resumed epoch is the same to the bit
            total += value
        return [total, self.count + len(self.values)]

    def settle(self) -> None:
        """Count the values that are there, and forget them."""
        total, count = self.sums()
        self.total, self.count = total, int(count)
        self.steps.clear()
        self.values.clear()


@final
class ScalarLog:
    """Named values over one epoch: their means, and the values themselves step by step.

    Args:
        counter: Its ``global_step`` is the step a value belongs to.
        sums: Totals and counts of an epoch that was interrupted, as :meth:`state` gave them.
    """

    __slots__ = ("_counter", "_scalars")

    def __init__(
        self, counter: StepCounter, sums: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        self._counter = counter
        self._scalars: dict[str, _Scalar] = {}
        for name, (total, count) in (sums or {}).items():
            scalar = self._scalars[name] = _Scalar()
            scalar.total, scalar.count = float(total), int(count)

    def add(self, name: str, value: float | Tensor) -> None:
        """Add one value of a metric."""
        scalar = self._scalars.get(name)
        if scalar is None:
            scalar = self._scalars[name] = _Scalar()
        # Asked first: a plain number, by far the most frequent, then costs two appends.
        if type(value) is not float:
            if isinstance(value, Tensor):
                if value.numel() != 1:
                    raise ValueError(
                        f"record_scalar({name!r}): a tensor of shape {list(value.shape)} has "
                        f"{value.numel()} elements, one is needed; reduce it, for instance with "
                        ".mean()"
                    )
                if value.device.type != "cpu":
                    if scalar.device_values is None:
                        scalar.device_values = DeviceValues()
                    scalar.device_values.add(value.detach(), self._counter.global_step)
                    return
                value = value.item()
            value = float(value)
        scalar.values.append(value)
        scalar.steps.append(self._counter.global_step)

    def take(self, *, wait: bool = False) -> Iterable[tuple[str, list[int], list[float]]]:
        """Yield the values that came since the last time, per metric, with their steps.

        Args:
            wait: Also for values that the device has not computed yet.
        """
        for name, scalar in self._scalars.items():
            scalar.arrive(wait=wait)
            if scalar.values:
                yield name, list(scalar.steps), list(scalar.values)
                scalar.settle()

    def state(self) -> dict[str, list[float]]:
        """Return total and count of every metric; waits for the device. JSON values."""
        for scalar in self._scalars.values():
            scalar.arrive(wait=True)
        return {name: scalar.sums() for name, scalar in self._scalars.items()}

    def means(self) -> dict[str, float]:
        """Return the mean of every metric, in the order of first appearance."""
        return {name: total / count for name, (total, count) in self.state().items()}
