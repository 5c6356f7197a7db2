"""Records of a timeline: samples of the machine, events of the training, and summaries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from flodl.monitor.records import finite
from flodl.monitor.resources import GpuSnapshot

_WHOLE, _NUMBER, _TEXT = "a whole number", "a number", "text"
_WHOLES = "a list of whole numbers"


class EventKind(StrEnum):
    """Kinds of events, each with its fields."""

    _fields: Mapping[str, str]

    def __new__(cls, value: str, fields: Mapping[str, str] = MappingProxyType({})) -> EventKind:
        """Make a member with the names of its fields and what they are."""
        kind = str.__new__(cls, value)
        kind._value_, kind._fields = value, fields
        return kind

    EPOCH_START = "epoch_start", {"epoch": _WHOLE}
    """``epoch``, counted from 0."""
    EPOCH_END = "epoch_end", {"epoch": _WHOLE, "loss": _NUMBER}
    """``epoch`` and ``loss``."""
    SYNC_START = "sync_start"
    SYNC_END = "sync_end", {"ms": _NUMBER}
    """``ms``: duration of an exchange of gradients or weights between the ranks."""
    CPU_AVG_START = "cpu_avg_start"
    CPU_AVG_END = "cpu_avg_end", {"ms": _NUMBER}
    """``ms``: duration of an averaging of weights on the CPU."""
    ANCHOR = "anchor", {"from": _WHOLE, "to": _WHOLE}
    """``from`` and ``to``: batches between two averages, before and after."""
    THROTTLE = "throttle", {"rank": _WHOLE}
    """``rank``: the rank that was held back."""
    IDLE = "idle", {"dev": _WHOLE, "ms": _NUMBER}
    """``dev`` and ``ms``: an idle device."""
    PLAN = "plan", {"window": _WHOLE, "counts": _WHOLES}
    """``window`` and ``counts``: the number of batches of each rank until the next average."""
    WAIT = "wait", {"ms": _NUMBER}
    """``ms``: the time that a rank has waited for the others, up to now."""
    GUARD = "guard", {"rank": _WHOLE, "what": _TEXT}
    """``rank`` and ``what``: the rank reported by the guard against divergence, and its report."""
    SKIP = "skip", {"count": _WHOLE}
    """``count``: averages skipped so far because a rank did not come in time."""
    WORKER_LOST = "worker_lost", {"rank": _WHOLE}
    """``rank``: the rank whose process has ended."""
    RESTART = "restart", {"count": _WHOLE}
    """``count``: number of restarts of the ranks so far."""
    CUSTOM = "custom", {"label": _TEXT}
    """``label``: any other event."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        known = ", ".join(cls)
        raise ValueError(
            f"{value!r} is not a kind of timeline event; use one of {known}; "
            "anything else is 'custom' with a label"
        )


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An event at one moment.

    Attributes:
        t_ms: Milliseconds since the timeline was created.
        kind: The kind; the string of an :class:`EventKind` is accepted.
        fields: The values of that kind. A name that is a keyword of Python may end in ``_``.
        rank: The rank of its timeline; a field ``rank`` names the rank that the event is about.

    Raises:
        ValueError: The kind is unknown, or the fields do not fit the kind.
    """

    t_ms: float
    kind: EventKind
    fields: Mapping[str, Any] = field(default_factory=dict)
    rank: int | None = None

    def __post_init__(self) -> None:
        kind = EventKind(self.kind)
        given = {name.removesuffix("_"): value for name, value in self.fields.items()}
        fields = _checked_fields(kind, given)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "fields", MappingProxyType(fields))

    def as_json(self) -> dict[str, Any]:
        """Return ``{"t", "k", "r", …fields}``, without ``r`` if the rank is unknown.

        The loss has six decimals; non-finite values are null.
        """
        rank = {} if self.rank is None else {"r": self.rank}
        return {"t": self.t_ms, "k": self.kind.value, **rank, **self.fields_as_json()}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> TimelineEvent:
        """Read the result of :meth:`as_json`; a null value becomes nan.

        Raises:
            KeyError, TypeError, ValueError: `form` is something else.
        """
        fields = {
            name: math.nan if value is None else value
            for name, value in form.items()
            if name not in ("t", "k", "r")
        }
        return cls(float(form["t"]), EventKind(form["k"]), fields, _rank(form))

    def fields_as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        form: dict[str, Any] = {}
        for name, value in self.fields.items():
            if isinstance(value, float):
                form[name] = finite(round(value, 6) if name == "loss" else value)
            else:
                form[name] = list(value) if isinstance(value, tuple) else value
        return form


@dataclass(frozen=True, slots=True)
class TimelineSample:
    """The load of the machine at one moment; unknown values are None or absent.

    Attributes:
        t_ms: Milliseconds since the timeline was created.
        cpu: Percent of all cores.
        ram: Used and total bytes.
        gpus: One snapshot per device.
        rank: The rank of its timeline.
        busy: Percent of the time since the previous sample that this rank worked on batches.
    """

    t_ms: float
    cpu: float | None = None
    ram: tuple[int, int] | None = None
    gpus: Sequence[GpuSnapshot] = ()
    rank: int | None = None
    busy: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return ``{"t", "cpu", "ram": [used, total], "gpus": [{"d", "u", "vu", "va", "vt"}]}``.

        If known, ``r`` is the rank and ``busy`` its percentage.
        Per GPU: device, utilisation in percent, and bytes of its memory: used by this process,
        reserved by it (more than used if the driver spills to host memory), and total.
        """
        form: dict[str, Any] = {
            "t": self.t_ms,
            "cpu": finite(self.cpu),
            "ram": None if self.ram is None else list(self.ram),
            "gpus": [
                {
                    "d": gpu.device,
                    "u": finite(gpu.util),
                    "vu": min(gpu.reserved, gpu.total),
                    "va": gpu.reserved,
                    "vt": gpu.total,
                }
                for gpu in self.gpus
            ],
        }
        if self.rank is not None:
            form["r"] = self.rank
        if self.busy is not None:
            form["busy"] = finite(self.busy)
        return form

    @classmethod
    def from_json(cls, form: Mapping[str, Any], names: Mapping[int, str]) -> TimelineSample:
        """Read the result of :meth:`as_json`.

        Args:
            form: The JSON form.
            names: The names of the GPUs by device.

        Raises:
            KeyError, TypeError, ValueError: `form` is something else.
        """
        ram = None if form["ram"] is None else (int(form["ram"][0]), int(form["ram"][1]))
        gpus = tuple(
            GpuSnapshot(
                device=int(gpu["d"]),
                name=names.get(int(gpu["d"]), ""),
                util=_optional(gpu["u"]),
                reserved=int(gpu["va"]),
                total=int(gpu["vt"]),
            )
            for gpu in form["gpus"]
        )
        cpu, busy = _optional(form["cpu"]), _optional(form.get("busy"))
        return cls(float(form["t"]), cpu, ram, gpus, _rank(form), busy)

    def util(self, device: int) -> float | None:
        """Return the utilisation of a device in percent; None if it is unknown."""
        return next((finite(gpu.util) for gpu in self.gpus if gpu.device == device), None)


class IdleGap(NamedTuple):
    """A time in which a device was idle, in milliseconds."""

    start_ms: float
    end_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankActivity:
    """A summary of one rank of a timeline.

    Attributes:
        sync_count: Number of exchanges that began.
        sync_ms: Total duration of the finished ones.
        wait_ms: Time it waited for the others.
        busy_pct: Mean percentage of time that it worked on batches; None if unknown.
    """

    sync_count: int
    sync_ms: float
    wait_ms: float
    busy_pct: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineSummary:
    """A summary of a timeline.

    Ranks exchange and average together, so each of these events counts once, and its duration is
    that of the slowest rank. `ranks` tells the ranks apart.

    Attributes:
        total_ms: Length of the timeline.
        sample_count: Number of samples, those of all ranks.
        event_count: Number of events.
        gpu_idle_pct: Percent of samples in which a device was used less than 5 %, by device.
        sync_count: Number of exchanges that began.
        sync_avg_ms: Mean duration of the finished ones; None if there are none.
        cpu_avg_count: Number of averagings on the CPU that began.
        cpu_avg_avg_ms: Mean duration of the finished ones; None if there are none.
        anchor_count: Number of changes of the anchor.
        throttle_count: Number of times that a rank was held back.
        ranks: A summary per rank, if records have a rank.
    """

    total_ms: float
    sample_count: int
    event_count: int
    gpu_idle_pct: Mapping[int, float]
    sync_count: int
    sync_avg_ms: float | None
    cpu_avg_count: int
    cpu_avg_avg_ms: float | None
    anchor_count: int
    throttle_count: int
    ranks: Mapping[int, RankActivity] = field(default_factory=dict)


def _checked_fields(kind: EventKind, fields: Mapping[str, object]) -> dict[str, object]:
    expected = kind._fields
    if fields.keys() != expected.keys():
        wanted = ", ".join(f"{name} ({what})" for name, what in expected.items()) or "no fields"
        given = ", ".join(fields) or "nothing"
        raise ValueError(f"an event {kind.value!r} takes {wanted}, but was given {given}")
    return {name: _checked_field(kind, name, fields[name]) for name in expected}


def _checked_field(kind: EventKind, name: str, value: object) -> object:
    what = kind._fields[name]
    if what == _TEXT and isinstance(value, str):
        return str(value)
    if what == _WHOLES and isinstance(value, Iterable) and not isinstance(value, str | bytes):
        parts = tuple(value)
        if all(isinstance(part, Integral) and not isinstance(part, bool) for part in parts):
            return tuple(map(int, parts))
    # A bool also counts as a number; the abstract numbers include those of NumPy.
    if what in (_WHOLE, _NUMBER) and type(value) is not bool:
        if isinstance(value, Integral):
            return int(value)
        if what == _NUMBER and isinstance(value, Real):
            return float(value)
    raise ValueError(f"{name} of an event {kind.value!r} must be {what}, not {value!r}")


def _rank(form: Mapping[str, Any]) -> int | None:
    rank = form.get("r")
    if rank is not None and (type(rank) is not int or rank < 0):
        raise TypeError(f"{rank!r} is not the number of a rank")
    return rank


def _optional(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
