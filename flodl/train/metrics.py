"""Values that a training step reports besides its loss."""

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
    """Knows the number of the current step, as a step engine does."""

    global_step: int


class Recorder(Protocol):
    """Receives the values of a step."""

    def add(self, name: str, value: float | Tensor) -> None:
        """Add one value of a metric."""


class _Thread(threading.local):
    """Keeps the values of trainings in different threads apart."""

    log: Recorder | None = None


_here = _Thread()

# Set only while torch.compile traces a function without running it: there it is a plain list. No
# thread ever finds anything but None here.
_collected: list[Recorded] | None = None


def record_scalar(name: str, value: float | Tensor) -> None:
    """Report a value from inside a training step; the epoch shows the mean of the reported values.

    A tensor on a GPU stays there and is read when the epoch ends, so no step waits for it. It works
    inside a training function that torch.compile traces.

    Args:
        name: Name of the metric.
        value: A number, or a tensor with one element.

    Raises:
        StateError: No step of a Trainer is running.
        ValueError: The tensor has more or fewer elements than one.
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
    """Divert :func:`record_scalar` into a plain list, unchecked; for a function that is traced.

    The list is an ordinary local value there, and the function returns it with its loss. After the
    step has run, the engine passes the values on with :func:`record_scalar`. In a function that
    really runs, use :func:`recording_into` with a :class:`RecordedValues`: it does the same for its
    thread only.
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
    """Send the values of :func:`record_scalar` in this thread to ``log`` inside the context."""
    outer = _here.log
    _here.log = log
    try:
        yield
    finally:
        _here.log = outer


@final
class RecordedValues:
    """Keeps the calls of :func:`record_scalar` in their order, unchecked.

    Attributes:
        calls: Name and value of each call.
    """

    def __init__(self) -> None:
        self.calls: list[Recorded] = []

    def add(self, name: str, value: float | Tensor) -> None:
        """Keep one call."""
        self.calls.append((name, value))


@final
class _Scalar:
    """One metric in one epoch: the values not yet counted, and the sums of the others."""

    __slots__ = ("count", "device_values", "steps", "total", "values")

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0
        self.steps: list[int] = []
        self.values: list[float] = []
        self.device_values: DeviceValues | None = None

    def arrive(self, *, wait: bool) -> None:
        """Fetch the values that can be read from the device; with ``wait``, all of them."""
        if self.device_values is not None:
            for step, value in self.device_values.take(wait=wait):
                self.steps.append(step)
                self.values.append(value)

    def sums(self) -> list[float]:
        """Total and count of all values."""
        total = self.total
        for value in self.values:  # one by one: a resumed epoch gives the same sum to the bit
            total += value
        return [total, self.count + len(self.values)]

    def settle(self) -> None:
        """Add the values to the sums, and forget the values."""
        total, count = self.sums()
        self.total, self.count = total, int(count)
        self.steps.clear()
        self.values.clear()


@final
class ScalarLog:
    """Named values of one epoch: their means, and the single values by step.

    Args:
        counter: Its ``global_step`` is the step that a value belongs to.
        sums: Totals and counts of an interrupted epoch, as :meth:`state` returned them.
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
        # Check this first: a plain number is by far the most frequent case and costs two appends.
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
        """Yield the values since the last call, per metric, with their steps.

        Args:
            wait: Include values that the device has not computed yet, and wait for them.
        """
        for name, scalar in self._scalars.items():
            scalar.arrive(wait=wait)
            if scalar.values:
                yield name, list(scalar.steps), list(scalar.values)
                scalar.settle()

    def state(self) -> dict[str, list[float]]:
        """Return total and count of every metric as JSON values; waits for the device."""
        for scalar in self._scalars.values():
            scalar.arrive(wait=True)
        return {name: scalar.sums() for name, scalar in self._scalars.items()}

    def means(self) -> dict[str, float]:
        """Return the mean of every metric, in the order of first appearance."""
        return {name: total / count for name, (total, count) in self.state().items()}
