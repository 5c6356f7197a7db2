"""How ranks share a training: the settings, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self, final

if TYPE_CHECKING:
    from flodl.ranks.averaging.outer_optimizer import OuterOptimizer


class Policy(StrEnum):
    """When the ranks bring their models together."""

    SYNC = "sync"
    """Average the gradients after every batch: the same math as one process with a larger batch."""
    CADENCE = "cadence"
    """Average the parameters after a window, which all ranks end at the same time."""
    ASYNC = "async"
    """As CADENCE, but the ranks train the next window while the average is in progress."""
    AUTO = "auto"
    """SYNC if all devices have the same name, else CADENCE; no measurement decides."""


class Backend(StrEnum):
    """How values are exchanged."""

    NCCL = "nccl"
    """From device to device, in place; ranks on the CPU use Gloo on their live tensors."""
    CPU = "cpu"
    """Through a copy in host memory and Gloo; if a rank is late, the average can be skipped."""


MODES = tuple(f"{b}-{p}" for b in Backend for p in Policy if p is not Policy.AUTO)
"""Backend and policy in one word."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class DdpRunConfig:
    """How the ranks of a training share its work; the builder has a method for each field.

    Raises:
        ValueError: A value is out of its range, or two settings contradict each other.
    """

    policy: Policy = Policy.AUTO
    backend: Backend = Backend.NCCL
    anchor: int = 10
    """Batches of the slowest rank in a window, at the start."""
    min_anchor: int | None = None
    """Lower limit of the anchor; None: ``anchor``."""
    max_anchor: int = 200
    """Upper limit of the anchor."""
    overhead_target: float = 0.10
    """Communication ÷ computation above which windows become longer."""
    speed_hint: tuple[int, float] | None = None
    """``(rank, ratio)``: this rank is slower than the others by this ratio. A ratio below 1 is
    replaced by its reciprocal."""
    speeds: tuple[float, ...] | None = None
    """Speed of each rank, relative to the others."""
    max_batch_diff: int | None = None
    """How many batches a rank may be ahead of another; 0: lockstep, None: no limit."""
    max_overshoot: int | None = None
    """ASYNC: batches a rank may train while an average is in progress; None: adapt the limit."""
    divergence_threshold: float = 0.05
    """Relative distance of a rank from the average that alerts the guard."""
    divergence_guard: bool = True
    progressive_dispatch: bool | None = None
    """True: hand out batches during an epoch. False: fix the shares at its start. None: True,
    except for SYNC and with ``partition_ratios``."""
    partition_ratios: tuple[float, ...] | None = None
    """Fixed shares, one per rank; they turn balancing off."""
    snapshot_timeout: float = 5.0
    """Seconds to wait for a late rank before the average is skipped (backend CPU)."""
    lr_scale_ratio: float = 0.0
    """The learning rate is multiplied by ``1 + ratio · (W - 1)``; 0 changes nothing."""
    lr_world: Literal["count", "effective"] = "count"
    """W: ``count`` is the number of ranks, ``effective`` is ``(Σc)² / Σc²`` of their batches."""
    average_optimizer_state: bool = False
    outer_optimizer: OuterOptimizer | None = None
    """Steps from the last average to the new one; None: take the new one."""
    overlap: bool = False
    """CADENCE: keep training while the average is in progress."""
    stream_epochs: bool | None = None
    """Let a window reach into the next epoch if nothing is due between the two. None: True,
    except for SYNC."""
    ranks: int | None = None
    """Processes to start if no launcher did; None: one per usable GPU."""
    max_restarts: int = 3
    simulate_ms: tuple[float, ...] | None = None
    """Pad every batch of a rank to this duration."""
    simulate_speed: tuple[float, ...] | None = None
    """Stretch the time of every batch by ``1 / speed``."""
    simulate_sync_ms: float = 0.0
    """Pad every averaging to this duration."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "policy", _member(Policy, "policy", self.policy))
        set_field(self, "backend", _member(Backend, "backend", self.backend))
        set_field(self, "overhead_target", min(max(float(self.overhead_target), 0.01), 0.50))
        for name in ("anchor", "max_anchor"):
            _at_least(name, getattr(self, name), 1)
        for name in ("min_anchor", "ranks"):
            _at_least(name, getattr(self, name), 1)
        for name in ("max_batch_diff", "max_overshoot", "max_restarts"):
            _at_least(name, getattr(self, name), 0)
        for name in ("speeds", "partition_ratios", "simulate_ms", "simulate_speed"):
            set_field(self, name, _positive_numbers(name, getattr(self, name)))
        set_field(self, "speed_hint", _checked_hint(self.speed_hint))
        for name in ("divergence_threshold", "snapshot_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: it must be greater than 0")
        if self.lr_world not in ("count", "effective"):
            raise ValueError(f"lr_world={self.lr_world!r}: use 'count' or 'effective'")
        if self.speeds is not None and self.speed_hint is not None:
            raise ValueError(
                "speeds and speed_hint both set the speeds of the ranks: leave one of them out"
            )

    def having(self, **changes: object) -> Self:
        """Return these settings with some of them changed.

        Raises:
            ValueError: A name is unknown or a value is out of its range.
        """
        known = {f.name for f in fields(self)}
        if unknown := [name for name in changes if name not in known]:
            allowed = ", ".join(sorted(known))
            raise ValueError(f"{unknown[0]} is not a setting of ranks; use {allowed}")
        changed: Any = replace(self, **changes)  # type: ignore[arg-type]
        return changed  # type: ignore[no-any-return]

    def check_world(self, world_size: int) -> None:
        """Check the settings that have one value per rank.

        Raises:
            ValueError: A setting does not have one value per rank, or names an unknown rank.
        """
        for name in ("speeds", "partition_ratios", "simulate_ms", "simulate_speed"):
            values = getattr(self, name)
            if values is not None and len(values) != world_size:
                raise ValueError(
                    f"{name} has {len(values)} values and there are {world_size} ranks: give one "
                    "value per rank"
                )
        hinted_speeds(self.speed_hint, world_size)

    def relative_speeds(self, world_size: int) -> tuple[float, ...] | None:
        """Return the speeds given in the settings, one per rank; None if none were given."""
        if self.speeds is not None:
            return self.speeds
        return hinted_speeds(self.speed_hint, world_size)

    def lr_scale(self, counts: Sequence[int]) -> float:
        """Return the factor for the learning rate.

        Args:
            counts: Batches per window of each rank.
        """
        world = float(len(counts))
        if self.lr_world == "effective" and any(counts):
            world = sum(counts) ** 2 / sum(count * count for count in counts)
        return 1.0 + self.lr_scale_ratio * (world - 1.0)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class DdpConfig:
    """How ranks share a training with a loop that the user wrote."""

    speed_hint: tuple[int, float] | None = None
    """As in :class:`DdpRunConfig`."""
    overhead_target: float = 0.10
    max_anchor: int | None = None
    """None: windows adapt up to 200 batches of the slowest rank; 0: no windows; n: up to n."""
    max_grad_norm: float | None = None
    timeline: Any = None
    """A :class:`~flodl.Timeline` in which the exchanges are recorded."""
    average_optimizer_state: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "overhead_target", min(max(self.overhead_target, 0.01), 0.50))
        object.__setattr__(self, "speed_hint", _checked_hint(self.speed_hint))
        _at_least("max_anchor", self.max_anchor, 0)
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm={self.max_grad_norm!r}: it must be greater than 0")


def hinted_speeds(hint: tuple[int, float] | None, world_size: int) -> tuple[float, ...] | None:
    """Return the relative speed of each rank after a ``speed_hint``; None without a hint.

    Raises:
        ValueError: The hint names an unknown rank.
    """
    if hint is None:
        return None
    slow, ratio = hint
    if slow >= world_size:
        raise ValueError(f"speed_hint names rank {slow}; the ranks are 0 to {world_size - 1}")
    return tuple(1.0 if rank == slow else ratio for rank in range(world_size))


def mode_of(word: str) -> tuple[Policy, Backend]:
    """Split a mode, such as ``cpu-async``; ``sync`` and ``auto`` are modes, too.

    Raises:
        ValueError: The word is not a mode.
    """
    if word in (Policy.SYNC, Policy.AUTO):
        return Policy(word), Backend.NCCL
    if word not in MODES:
        raise ValueError(f"mode={word!r}: use one of sync, auto, {', '.join(MODES)}")
    backend, policy = word.split("-")
    return Policy(policy), Backend(backend)


def settings_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a ``ddp:`` section, or the options made from one, to fields of DdpRunConfig.

    Null values are ignored. Names that belong to another part of a training (``nodes``, ``rdzv``,
    ``max_grad_norm``, ``checkpoint_every``, ``timeline``) are ignored, too.

    Raises:
        ValueError: A value has the wrong form.
    """
    given = {name.replace("-", "_"): value for name, value in section.items() if value is not None}
    found: dict[str, Any] = {}
    if "mode" in given:
        word = str(given["mode"])
        if not word.startswith("solo-"):
            found["policy"], found["backend"] = mode_of(word)
    for name in (f.name for f in fields(DdpRunConfig)):
        if name in given:
            found[name] = _from_text(name, given[name])
    for name in ("anchor", "ranks"):
        if given.get(name) == "auto":
            del found[name]
    if given.get("progressive", "auto") != "auto":
        found["progressive_dispatch"] = _switch("progressive", given["progressive"])
    if given.get("no_divergence_guard"):
        found["divergence_guard"] = False
    return found


def _from_text(name: str, value: Any) -> Any:
    if name == "speed_hint":
        if isinstance(value, str):
            rank, _, ratio = value.partition(":")
            return int(rank), float(ratio)
        if isinstance(value, Mapping):
            return int(value["slow_rank"]), float(value["ratio"])
    if name in ("speeds", "partition_ratios", "simulate_ms", "simulate_speed"):
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(float(part) for part in parts)
    return value


def _switch(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ValueError(f"{name}={value!r}: use auto, true or false")


def _member(kind: Any, name: str, value: object) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name}={value!r}: use one of {', '.join(kind)}") from None


def _at_least(name: str, value: object, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: it must be an integer of at least {least}")


def _positive_numbers(name: str, values: Any) -> tuple[float, ...] | None:
    if values is None:
        return None
    numbers = tuple(float(value) for value in values)
    if not numbers or not all(math.isfinite(value) and value > 0 for value in numbers):
        raise ValueError(f"{name}={values!r}: it must be numbers above 0, one per rank")
    return numbers


def _checked_hint(hint: tuple[int, float] | None) -> tuple[int, float] | None:
    if hint is None:
        return None
    rank, ratio = hint
    if rank < 0 or not ratio > 0:
        raise ValueError(f"speed_hint={hint!r}: it is (rank, ratio) with a ratio above 0")
    return int(rank), ratio if ratio >= 1 else 1 / ratio
