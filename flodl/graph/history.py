"""Named values: buffered one by one, averaged into one point per flush."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby, islice
from typing import Any, NamedTuple, SupportsFloat, cast

import torch
from torch import Tensor

from flodl.errors import StateError

_LOOSE = 1024
"""Values that a buffer holds one by one before it joins its tensors, which saves their headers."""


class Point(NamedTuple):
    """One flush of one metric."""

    value: float
    """Mean of the buffered values."""
    seconds: float
    """Time of the flush, counted from the start of the history's clock."""


class Recorded:
    """A tensor whose values are read later, so that recording never waits for a device.

    Args:
        tensor: Detached from autograd.
        version: Its version, if other code may change it in place; None if no other code can.
    """

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor, version: int | None = None) -> None:
        self.tensor = tensor
        self.version = version

    def __reduce__(self) -> tuple[type[Recorded], tuple[Tensor]]:
        return Recorded, (self.tensor,)  # no other code has the copied tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Recorded:
        """Keep the current values of a tensor, without its autograd graph."""
        # No other code writes into a fresh result of autograd. Any other tensor (a parameter, a
        # static input, a slice of either) may hold other numbers at the flush, so it is copied.
        if tensor.is_leaf or tensor._is_view():
            return cls(tensor.detach().clone())
        return cls(tensor.detach(), tensor._version)

    @property
    def kind(self) -> tuple[torch.device, torch.dtype]:
        """Device and dtype: tensors that share them can be joined."""
        return self.tensor.device, self.tensor.dtype

    def flat(self, name: str) -> Tensor:
        """The values as one dimension.

        Raises:
            StateError: The values are lost: an in-place operation has changed them.
        """
        if self.version is not None and self.tensor._version != self.version:
            raise StateError(
                f"a tensor recorded as {name!r} was changed in place afterwards, its value is "
                "lost: record it after the change, or record tensor.clone()"
            )
        return self.tensor.reshape(-1)


Values = SupportsFloat | Iterable[float | Tensor] | Tensor
"""Values for one call of ``record``: one number of Python, NumPy or torch, or several."""

Entry = float | Recorded
"""One recorded value, or a tensor that holds one or several."""


class MetricHistory:
    """A buffer of values per metric, and the history of their means.

    Args:
        clock: Returns seconds that never decrease.

    Attributes:
        started: The clock at the first forward, record or flush; None before.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.started: float | None = None
        self._clock = clock
        self._flush_times: list[float] = []
        self._pending: dict[str, list[Entry]] = {}
        self._limits: dict[str, int] = {}  # length at which a buffer's new entries are joined
        self._points: dict[str, list[Point]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Another process has another clock, so only the elapsed time is passed on.
        passed = None if self.started is None else self._clock() - self.started
        return {**self.__dict__, "started": passed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.started is not None:
            self.started = self._clock() - self.started

    def start(self) -> None:
        """Start the clock if it is not running."""
        if self.started is None:
            self.started = self._clock()

    # --- For another process ---------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all values as text, numbers and float64 tensors, for :meth:`set_state`.

        Raises:
            StateError: A recorded tensor was changed in place.
        """
        buffers = self._read(list(self._points))
        return {
            "passed": None if self.started is None else self._clock() - self.started,
            "flushes": _column(self._flush_times),
            "buffers": {name: _column(values) for name, values in buffers.items()},
            "points": {
                name: torch.tensor(points, dtype=torch.float64, device="cpu").reshape(-1, 2)
                for name, points in self._points.items()
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over the result of :meth:`state`; everything recorded here is lost.

        Raises:
            ValueError: ``state`` does not come from :meth:`state`; nothing is changed.
        """
        try:
            passed = None if state["passed"] is None else float(state["passed"])
            flushes: list[float] = _vector(state["flushes"])
            buffers: dict[str, list[Entry]] = {
                name: [*_vector(values)] for name, values in state["buffers"].items()
            }
            points = {
                name: [Point(*map(float, pair)) for pair in pairs.tolist()]
                for name, pairs in state["points"].items()
            }
            if buffers.keys() != points.keys():
                raise ValueError("buffers and points have other names")
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise ValueError(f"this is not a history of metrics: {problem}") from problem
        self.started = None if passed is None else self._clock() - passed
        self._flush_times, self._points = flushes, points
        self._pending, self._limits = {}, {}
        for name, entries in buffers.items():
            self._replace(name, entries)

    # --- Buffering -------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        """Whether the metric was ever recorded."""
        return name in self._points

    def record(self, name: str, values: Values) -> None:
        """Buffer values; a tensor of any shape counts as all of its elements.

        Raises:
            TypeError: ``values`` is a string, or neither a number nor several numbers.
            ValueError: One of several values is a tensor with several elements; nothing is
                buffered.
        """
        if isinstance(values, str | bytes):
            raise TypeError(f"{name!r}: a value is a number or a tensor, not {values!r}")
        if isinstance(values, Tensor) and values.numel() == 1:
            self.record_scalar(name, values)
        elif isinstance(values, Tensor):
            self._keep(name, [Recorded.of(values)] if values.numel() else [])
        elif not isinstance(values, Iterable) or getattr(values, "ndim", None) == 0:
            # A NumPy array without dimensions looks iterable but is not.
            self.record_scalar(name, cast("float", values))
        else:
            self._keep(name, [_as_entry(name, value) for value in values])

    def record_scalar(self, name: str, value: float | Tensor) -> None:
        """Buffer one value.

        Raises:
            ValueError: ``value`` is a tensor with several elements.
        """
        # This method runs several times in every step, so it must be fast.
        if not isinstance(value, Tensor):
            number = float(value)
        elif value.is_cpu:
            try:
                number = value.item()
            except RuntimeError as error:
                raise _not_one(name, value) from error
        else:
            self._keep(name, [_as_entry(name, value)])
            return
        try:
            self._pending[name].append(number)
        except KeyError:
            self._begin(name).append(number)

    def collected(self, name: str) -> list[float]:
        """The buffered values of one metric since its last flush.

        Raises:
            StateError: A recorded tensor was changed in place.
        """
        values = self._read([name])[name]
        if name in self._pending:
            self._replace(name, list(values))
        return values

    def _keep(self, name: str, entries: list[Entry]) -> None:
        buffer = self._pending[name] if name in self._pending else self._begin(name)
        buffer += entries
        if len(buffer) >= self._limits[name]:
            self._join(name)

    def _begin(self, name: str) -> list[Entry]:
        self.start()
        self._points[name] = []
        self._replace(name, [])
        return self._pending[name]

    def _replace(self, name: str, entries: list[Entry]) -> None:
        self._pending[name] = entries
        self._limits[name] = len(entries) + _LOOSE

    def _join(self, name: str) -> None:
        """Join the tensors among the entries that were added since the last join."""
        buffer, start = self._pending[name], self._limits[name] - _LOOSE
        buffer[start:] = _joined(name, buffer[start:])
        self._limits[name] = len(buffer) + _LOOSE

    # --- Flushing --------------------------------------------------------------------------

    def flush(self, names: Iterable[str] = ()) -> None:
        """Append the mean of every buffer (or of the named ones) to its history; clear the buffer.

        Raises:
            StateError: A recorded tensor was changed in place; nothing is flushed.
        """
        self.append(self.means(names))

    def means(self, names: Iterable[str] = ()) -> dict[str, float]:
        """The mean of every buffer with a value (or of the named ones).

        Raises:
            StateError: A recorded tensor was changed in place.
        """
        chosen = list(dict.fromkeys(names)) or list(self._pending)
        values = self._read([name for name in chosen if self._pending.get(name)])
        return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}

    def append(self, means: dict[str, float]) -> None:
        """Add one point to each of these metrics and clear their buffers; counts as a flush."""
        self.start()
        if not means:
            return
        seconds = self._clock() - (self.started or 0.0)
        self._flush_times.append(seconds)
        for name, mean in means.items():
            self._points[name].append(Point(mean, seconds))
            self._replace(name, [])

    @property
    def flush_count(self) -> int:
        """Number of flushes that added a point."""
        return len(self._flush_times)

    def eta(self, total: int) -> float:
        """Seconds until the number of flushes reaches `total`, at the mean pace so far."""
        if not self._flush_times:
            return 0.0
        return self._flush_times[-1] / self.flush_count * max(0, total - self.flush_count)

    # --- History ---------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All recorded metrics, in the order of their first value."""
        return list(self._points)

    def points(self, name: str) -> list[Point]:
        """All points of a metric, oldest first; none for an unknown one."""
        return list(self._points.get(name, ()))

    def values(self, name: str) -> list[float]:
        """The values of all points of a metric, oldest first; none for an unknown one."""
        return [point.value for point in self._points.get(name, ())]

    def latest(self) -> list[tuple[str, float]]:
        """The last point of every metric that has one, in the order of their first value."""
        return [(name, points[-1].value) for name, points in self._points.items() if points]

    def _read(self, names: list[str]) -> dict[str, list[float]]:
        """The buffered values as numbers, with one transfer per device and dtype."""
        batches: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for name in names:
            for entry in self._pending.get(name, ()):
                if isinstance(entry, Recorded):
                    batches.setdefault(entry.kind, []).append(entry.flat(name))
        numbers = {kind: iter(torch.cat(flats).tolist()) for kind, flats in batches.items()}
        result: dict[str, list[float]] = {}
        for name in names:
            values = result[name] = []
            for entry in self._pending.get(name, ()):
                if isinstance(entry, Recorded):
                    values += map(float, islice(numbers[entry.kind], entry.tensor.numel()))
                else:
                    values.append(float(entry))
        return result


def _column(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _vector(values: Tensor) -> list[float]:
    return [float(value) for value in values.tolist()]


def _as_entry(name: str, value: float | Tensor) -> Entry:
    if not isinstance(value, Tensor):
        return float(value)
    if value.numel() != 1:
        raise _not_one(name, value)
    # On the CPU nothing waits, so reading the number is quicker than keeping the tensor.
    return value.item() if value.is_cpu else Recorded.of(value)


def _not_one(name: str, value: Tensor) -> ValueError:
    return ValueError(
        f"{name!r}: one value per entry, got a tensor of shape {list(value.shape)}; "
        "reduce it first, for instance with .mean(), or use record(name, tensor)"
    )


def _joined(name: str, entries: list[Entry]) -> list[Entry]:
    """Return the same values in the same order, with adjacent tensors of one kind joined."""
    result: list[Entry] = []
    for kind, run in groupby(entries, lambda one: one.kind if isinstance(one, Recorded) else None):
        if kind is None:
            result += run
        else:
            flats = [entry.flat(name) for entry in run if isinstance(entry, Recorded)]
            result.append(Recorded(torch.cat(flats)))
    return result
