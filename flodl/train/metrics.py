"""Values that a training step reports besides its loss."""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, final

import torch
from torch import Tensor

from flodl.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor


Reduction: TypeAlias = Literal["mean", "sum", "max", "min", "last"]
"""How the values of an epoch become one, over steps and ranks."""

REDUCTIONS: tuple[Reduction, ...] = ("mean", "sum", "max", "min", "last")

Recorded: TypeAlias = "tuple[str, float | Tensor, Reduction]"
"""One call of :func:`record_scalar`: name, value and reduction."""

Sums: TypeAlias = "Sequence[float | str]"
"""The values of a metric so far as JSON values: result (of a mean: the total), count, reduction."""


class StepCounter(Protocol):
    """Knows the number of the current step, as a step engine does."""

    global_step: int


class Recorder(Protocol):
    """Receives the values of a step."""

    def add(self, name: str, value: float | Tensor, reduce: Reduction = "mean") -> None:
        """Add one value of a metric."""


class _Thread(threading.local):
    """Keeps the values of trainings in different threads apart."""

    log: Recorder | None = None


_here = _Thread()

# Set only while torch.compile traces a function without running it: there it is a plain list. No
# thread ever finds anything but None here.
_collected: list[Recorded] | None = None


def record_scalar(name: str, value: float | Tensor, reduce: Reduction = "mean") -> None:
    """Report a value from inside a training step; the epoch shows one value for all of them.

    A tensor on a GPU stays there and is read when the epoch ends, so no step waits for it. It works
    inside a training function that torch.compile traces. Several ranks report the values of all of
    them as one, as one process on the same batches would. In a call from ``eval_fn`` it does
    nothing.

    Args:
        name: Name of the metric.
        value: A number, or a tensor with one element.
        reduce: ``"mean"`` of the reported values, their ``"sum"``, the ``"max"`` or ``"min"``, or
            the ``"last"`` one (of several ranks that of the highest rank).

    Raises:
        StateError: No step of a Trainer is running.
        ValueError: The tensor has more or fewer elements than one, there is no such reduction, or
            the metric has another one in this epoch.
    """
    if _collected is not None:
        _collected.append((name, value, reduce))
        return
    log = _here.log
    if log is None:
        raise outside_of_step(name)
    log.add(name, value, reduce)


def outside_of_step(name: str) -> StateError:
    """Return the error for a value that belongs to no step."""
    return StateError(
        f"record_scalar({name!r}) outside of a training step: call it inside the train_fn given to "
        "Trainer.builder, and run.log(…) of a callback in on_step_end (with a loop of your own, "
        "use your own list)"
    )


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

    def add(self, name: str, value: float | Tensor, reduce: Reduction = "mean") -> None:
        """Keep one call."""
        self.calls.append((name, value, reduce))


@final
class _Scalar:
    """One metric in one epoch: the values not yet counted, and the sums of the others."""

    __slots__ = ("count", "device_values", "reduce", "steps", "total", "values")

    def __init__(self, reduce: Reduction, known: Sums = (0.0, 0)) -> None:
        self.reduce = reduce
        self.total = float(known[0])
        self.count = int(known[1])
        self.steps: list[int] = []
        self.values: list[float] = []
        self.device_values: DeviceValues | None = None

    def arrive(self, *, wait: bool) -> None:
        """Fetch the values that can be read from the device; with ``wait``, all of them."""
        if self.device_values is not None:
            for step, value in self.device_values.take(wait=wait):
                self.steps.append(step)
                self.values.append(value)

    def sums(self) -> list[float | str]:
        """Result and count of all values, and the reduction if it is not the mean."""
        total, count = self.total, self.count + len(self.values)
        if self.reduce in ("mean", "sum"):
            for value in self.values:  # one by one: a resumed epoch gives the same sum to the bit
                total += value
        elif self.values:
            known = [total] if self.count else []
            total = _one_of(self.reduce, [*known, *self.values])
        return [total, count] if self.reduce == "mean" else [total, count, self.reduce]

    def settle(self) -> None:
        """Add the values to the sums, and forget the values."""
        total, count, *_ = self.sums()
        self.total, self.count = float(total), int(count)
        self.steps.clear()
        self.values.clear()


@final
class ScalarLog:
    """Named values of one epoch: their means, and the single values by step.

    Args:
        counter: Its ``global_step`` is the step that a value belongs to.
        sums: The values of an interrupted epoch, as :meth:`state` returned them.
    """

    __slots__ = ("_counter", "_scalars")

    def __init__(self, counter: StepCounter, sums: Mapping[str, Sums] | None = None) -> None:
        self._counter = counter
        self._scalars = {name: _Scalar(reduction_of(s), s) for name, s in (sums or {}).items()}

    def add(self, name: str, value: float | Tensor, reduce: Reduction = "mean") -> None:
        """Add one value of a metric."""
        scalar = self._scalars.get(name)
        if scalar is None:
            if reduce not in REDUCTIONS:
                raise ValueError(
                    f"record_scalar({name!r}, reduce={reduce!r}): use one of "
                    f"{', '.join(map(repr, REDUCTIONS))}"
                )
            scalar = self._scalars[name] = _Scalar(reduce)
        if scalar.reduce != reduce:
            raise ValueError(
                f"record_scalar({name!r}, reduce={reduce!r}): this epoch has values of {name!r} "
                f"with reduce={scalar.reduce!r}; use one of the two, or another name"
            )
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

    def state(self) -> dict[str, list[float | str]]:
        """Return the :data:`Sums` of every metric; waits for the device."""
        for scalar in self._scalars.values():
            scalar.arrive(wait=True)
        return {name: scalar.sums() for name, scalar in self._scalars.items()}


def reduction_of(sums: Sums) -> Reduction:
    """Return the reduction of a metric; that of earlier versions is the mean."""
    return next((one for one in REDUCTIONS if one == sums[-1]), "mean")


def reduced(sums: Sums) -> float | None:
    """Return the value of a metric; None without values."""
    total, count = float(sums[0]), int(sums[1])
    if not count:
        return None
    return total / count if reduction_of(sums) == "mean" else total


def merged(one: Sums, other: Sums) -> list[float | str]:
    """Return the sums of the values of both; those of ``other`` came later.

    Raises:
        ValueError: They have different reductions.
    """
    if (how := reduction_of(one)) != reduction_of(other):
        raise ValueError(f"reduce={how!r} on one rank and {reduction_of(other)!r} on another")
    if not other[1] or not one[1]:
        return [*(one if one[1] else other)]
    first, second, count = float(one[0]), float(other[0]), int(one[1]) + int(other[1])
    if how in ("mean", "sum"):
        return [first + second, count, *one[2:]]
    return [_one_of(how, [first, second]), count, how]


def _one_of(how: Reduction, values: Sequence[float]) -> float:
    """Return the largest, the smallest or the last value; the first two are nan if one value is.

    So the result does not depend on when values were added up, as that of Python's ``max`` would.
    """
    if how == "last":
        return values[-1]
    if any(map(math.isnan, values)):
        return math.nan
    return max(values) if how == "max" else min(values)


@final
class DeviceValues:
    """Keeps values on their device until their copies have arrived in host memory.

    One call of :meth:`take` starts a copy, and a later call finds it finished. So reading adds no
    wait to the queue of the device. Devices without asynchronous copies are read only with
    ``wait``.
    """

    __slots__ = ("_arriving", "_kept", "_steps")

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._steps: list[int] = []
        self._arriving: _Transfer | None = None

    def add(self, value: Tensor, step: int) -> None:
        """Keep the current value: later writes to the tensor do not change it."""
        self._kept.append(value.detach().reshape(()).clone())
        self._steps.append(step)

    def keep(self, value: Tensor, step: int) -> None:
        """Keep a tensor that nobody writes to, without a copy."""
        self._kept.append(value.detach().reshape(()))
        self._steps.append(step)

    def take(self, *, wait: bool) -> list[tuple[int, float]]:
        """Return the (step, value) pairs that have arrived, in order, and forget them.

        Args:
            wait: Wait until all have arrived.
        """
        arrived: list[tuple[int, float]] = []
        if self._arriving is not None and (wait or self._arriving.done()):
            arrived += self._arriving.read()
            self._arriving = None
        if not self._kept or self._arriving is not None:
            return arrived
        asynchronous = self._kept[0].is_cuda
        if wait or asynchronous:
            transfer = _Transfer(self._kept, self._steps, asynchronous=asynchronous)
            self._kept, self._steps = [], []
            if wait:
                arrived += transfer.read()
            else:
                self._arriving = transfer
        return arrived


@final
class _Transfer:
    """A copy of values to the host that is in progress."""

    def __init__(self, values: list[Tensor], steps: list[int], *, asynchronous: bool) -> None:
        # float64 holds every value of a floating dtype and integers up to 2^53; mps lacks it.
        dtype = torch.float32 if values[0].device.type == "mps" else torch.float64
        gathered = torch.stack(values).to(dtype)
        self._steps = steps
        self._landed: torch.cuda.Event | None = None
        if asynchronous:
            self._host = torch.empty(gathered.shape, dtype=dtype, pin_memory=True)
            self._host.copy_(gathered, non_blocking=True)
            self._landed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._landed.record(torch.cuda.current_stream(gathered.device))
        else:
            self._host = gathered.cpu()

    def done(self) -> bool:
        """Whether the values can be read without waiting."""
        return self._landed is None or bool(self._landed.query())  # type: ignore[no-untyped-call]

    def read(self) -> list[tuple[int, float]]:
        """Wait for the values and return them with their steps."""
        if self._landed is not None:
            self._landed.synchronize()
        return list(zip(self._steps, self._host.tolist(), strict=True))
