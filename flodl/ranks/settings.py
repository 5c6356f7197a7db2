"""How ranks share a training: the settings, checked once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self, final

from fdl.base.suggest import similar
from flodl.setting import (
    Above,
    OneOf,
    Settings,
    Shares,
    UnfitError,
    Whole,
    checked,
    how,
    setting,
    switch,
)

if TYPE_CHECKING:
    from flodl.ranks.averaging.outer_optimizer import OuterOptimizer

SETTINGS_VARIABLE = "FLODL_DDP"
"""A ``ddp:`` section as JSON; settings that the program makes itself take precedence."""

SIMULATION_VARIABLE = "FLODL_SIM_MS"
"""Milliseconds per batch of each rank, separated by commas."""

OF_ANY_TRAINING = {
    "max_grad_norm": "max_grad_norm",
    "checkpoint_every": "checkpoint_every",
    "timeline": "record_timeline",
}
"""Keys of the section that any training has, and the names of its settings."""


class Policy(StrEnum):
    """When the ranks bring their models together."""

    SYNC = "sync"
    """Average the gradients after every batch: the same math as one process with a larger batch."""
    CADENCE = "cadence"
    """Average the parameters after a window, which all ranks end at the same time."""
    ASYNC = "async"
    """As CADENCE, but the ranks train the next window while the average is in progress."""
    AUTO = "auto"
    """SYNC if all devices have the same name or the training is short, else CADENCE; no measurement
    decides."""


class Backend(StrEnum):
    """How values are exchanged."""

    NCCL = "nccl"
    """From device to device, in place; ranks on the CPU use Gloo on their live tensors."""
    CPU = "cpu"
    """Through a copy in host memory and Gloo; if a rank is late, the average can be skipped."""


class ExchangeFormat(StrEnum):
    """How the values are written that the ranks exchange."""

    FLOAT32 = "float32"
    """As they are: 4 bytes per value."""
    BF16 = "bf16"
    """Rounded to bfloat16: 2 bytes per value."""
    INT8 = "int8"
    """Rounded to 255 steps per 256 values: 1 byte per value. The next exchange adds the error."""


PER_RANK = ("speeds", "partition_ratios", "simulate_ms", "simulate_speed")
"""Settings with one value per rank."""

MODES = tuple(f"{b}-{p}" for b in Backend for p in Policy if p is not Policy.AUTO)
"""Backend and policy in one word."""


def _hint(rank: int, ratio: float) -> tuple[int, float]:
    return rank, ratio


def _checked_hint(hint: Any) -> tuple[int, float]:
    """Check a pair, which may be text or the mapping of a manifest."""
    try:
        given = (hint["slow_rank"], hint["ratio"]) if isinstance(hint, Mapping) else hint
        rank, ratio = given.split(":") if isinstance(given, str) else given
        rank, ratio = int(rank), float(ratio)
    except (KeyError, TypeError, ValueError):
        rank, ratio = -1, 0.0
    if rank < 0 or not 0 < ratio < math.inf:
        raise UnfitError("it is (rank, ratio) with a ratio above 0, or text such as 1:2.5")
    return rank, max(ratio, 1 / ratio)


MICRO_AUTO = "auto"
"""Each rank finds out how many samples it can compute at once."""


@final
class WholeOrAuto(Whole):
    """A whole number of at least 1, or ``auto``."""

    def __call__(self, value: Any) -> Any:
        """Check a value."""
        return value if value == MICRO_AUTO else Whole()(value)


def _overhead(part: float) -> float:
    return min(max(0.01, float(part)), 0.50)


def _switched(on: Any) -> bool:
    if not isinstance(on, bool) and on not in ("true", "false"):
        raise UnfitError("use auto, true or false")
    return on in (True, "true")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class DdpRunConfig(Settings):
    """How the ranks of a training share its work; the builder has a method for each field.

    Raises:
        ValueError: A value is out of its range, or two settings contradict each other.
    """

    policy: Policy = setting(
        Policy.AUTO, OneOf(Policy), takes="policy", kind="Policy | str", key="policy"
    )
    """When the ranks average; ``auto``: ``sync`` on equal devices, else ``cadence``.

    ``sync`` averages gradients in every step, ``cadence`` weights after each window, and ``async``
    weights during the next window. Devices of one name are equal. A training of fewer than twelve
    windows takes ``sync`` on any devices.
    """
    backend: Backend = setting(
        Backend.NCCL, OneOf(Backend), takes="backend", kind="Backend | str", key="backend"
    )
    """Average with ``nccl`` on the GPUs, or with ``cpu`` through main memory."""
    exchange: ExchangeFormat = setting(
        ExchangeFormat.FLOAT32,
        OneOf(ExchangeFormat),
        takes="format",
        kind="ExchangeFormat | str",
        key="exchange",
    )
    """Send gradients, or changes of weights, as ``float32``, ``bf16`` or ``int8``.

    ``bf16`` sends half of the bytes and rounds them; ``int8`` sends a quarter. Its rounding errors
    are added to the next exchange. Buffers and the state of optimizers are not rounded.
    """
    anchor: int = setting(10, Whole(), takes="batches", key="anchor", auto=True)
    """Batches of the slowest rank between two averages, at first."""
    min_anchor: int | None = setting(None, Whole(), takes="batches", usual="the anchor")
    """Lower limit of the anchor."""
    max_anchor: int = setting(
        200, Whole(), takes="batches", key="max_anchor", form="NonNegativeInt"
    )
    """Upper limit of the anchor."""
    overhead_target: float = setting(0.10, _overhead, takes="part", key="overhead_target")
    """Part of the computing time that averages may take: 0.01 to 0.5.

    Above it, windows become longer.
    """
    divergence_threshold: float = setting(
        0.05, Above(), takes="distance", key="divergence_threshold"
    )
    """Relative distance from the average that makes windows shorter."""
    divergence_guard: bool = True
    """Whether to watch the distance between ranks; ``.no_divergence_guard()`` turns it off."""
    max_batch_diff: int | None = setting(
        None, Whole(0), takes="batches", key="max_batch_diff", usual="no limit"
    )
    """Batches a rank may be ahead of another; 0: lockstep."""
    max_overshoot: int | None = setting(
        None, Whole(0), takes="batches", key="max_overshoot", usual="adapts"
    )
    """With ``async``: batches a rank may train while an average arrives."""
    snapshot_timeout: float = setting(5.0, Above(), takes="seconds", key="snapshot_timeout")
    """With ``cadence`` and backend ``cpu``: seconds to wait for a late rank.

    After them, all ranks skip the average together.
    """
    progressive_dispatch: bool | None = switch(
        None, check=_switched, key="progressive", auto=True, usual="auto"
    )
    """Hand out batches window by window.

    False divides them at the start of an epoch. ``auto``, in Python None, does so for
    ``sync`` and with ``partition_ratios``.
    """
    speed_hint: tuple[int, float] | None = setting(
        None, _checked_hint, made=_hint, key="speed_hint", form="SpeedHint"
    )
    """Slow rank, and how many times slower than the others it is.

    A ratio below 1 is replaced by its reciprocal.
    """
    speeds: tuple[float, ...] | None = setting(
        None, Shares(), takes="speeds", kind="Sequence[float] | None"
    )
    """Speed of each rank, relative to the others; not together with ``speed_hint``."""
    partition_ratios: tuple[float, ...] | None = setting(
        None,
        Shares(),
        takes="ratios",
        kind="Sequence[float] | None",
        key="partition_ratios",
        usual="by measured speed",
    )
    """Fixed share of the data for each rank. Nothing is balanced then."""
    lr_scale_ratio: float = setting(0.0, Above(itself=True), takes="ratio", key="lr_scale_ratio")
    """Multiply the learning rate by 1 + this × (ranks - 1)."""
    lr_world: Literal["count", "effective"] = setting(
        "count", OneOf(("count", "effective")), takes="world"
    )
    """What counts as ranks in the formula of ``lr_scale_ratio``.

    ``count`` is their number, ``effective`` is ``(Σc)² / Σc²`` of their batches per window.
    """
    micro_batch: int | str | None = setting(
        None, WholeOrAuto(), takes="samples", key="micro_batch", auto=True, usual="the whole batch"
    )
    """Compute a batch in pieces of so many samples.

    The step stays the same. With ``auto``, each rank takes what fits into its memory, as ``fdl plan
    --try`` measures it.
    """
    average_optimizer_state: bool = switch()
    """Average the floating-point state of the optimizers, too; step counters take the maximum."""
    outer_optimizer: OuterOptimizer | None = setting(None, takes="outer", usual="none")
    """Step from the last average to the new one with this: ``Nesterov(0.7, 0.9)``, or your own."""
    overlap: bool = switch()
    """With ``cadence``: continue to train while an average is under way."""
    stream_epochs: bool | None = switch(None, usual="yes, except for ``sync``")
    """Let a window reach into the next epoch if nothing is due between the two."""
    ranks: int | None = setting(
        None, Whole(), takes="count", key="ranks", auto=True, usual="one per usable GPU"
    )
    """Processes to start if no launcher did."""
    elastic: bool = switch(key="elastic")
    """Let ranks come and go while the others train on; needs ``flodl[elastic]`` and ``cadence``.

    What a lost rank has trained since the last average is trained again by the others.
    """
    min_ranks: int = setting(1, Whole(), takes="count", key="min_ranks")
    """With ``elastic``: the fewest ranks that train; fewer wait for others to join."""
    max_restarts: int = setting(3, Whole(0), takes="count", key="max_restarts")
    """How often all ranks start again when one is lost after a first step."""
    simulate_ms: tuple[float, ...] | None = setting(
        None, Shares(), takes="ms", kind="Sequence[float] | None", key="simulate_ms"
    )
    """Milliseconds per batch of each rank, to simulate unequal ranks. Batches are padded."""
    simulate_speed: tuple[float, ...] | None = setting(
        None, Shares(), takes="speeds", kind="Sequence[float] | None"
    )
    """Speed of each rank, to simulate unequal ranks. Batches are stretched by ``1 / speed``."""
    simulate_sync_ms: float = setting(0.0, Above(itself=True), takes="ms")
    """Milliseconds to which averages are padded, to simulate a slow network."""

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
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

    def named_in(self, kind: Any) -> dict[str, Any]:
        """Return the settings that another dataclass has under the same names."""
        names = [one.name for one in fields(kind) if one.name in self.__dataclass_fields__]
        return {name: getattr(self, name) for name in names}

    def check_world(self, world_size: int) -> None:
        """Check the settings that have one value per rank.

        Raises:
            ValueError: A setting does not have one value per rank, or names an unknown rank.
        """
        for name in PER_RANK:
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

    def simulated(self, rank: int) -> tuple[float | None, float | None]:
        """Return the simulated milliseconds per batch and the simulated speed of a rank."""
        ms, speed = self.simulate_ms, self.simulate_speed
        return (
            ms[rank % len(ms)] if ms is not None else None,
            speed[rank % len(speed)] if speed is not None else None,
        )

    def lr_scale(self, counts: Sequence[int]) -> float:
        """Return the factor for the learning rate.

        Args:
            counts: Batches per window of each rank.
        """
        world = float(len(counts))
        if self.lr_world == "effective" and any(counts):
            world = sum(counts) ** 2 / sum(count * count for count in counts)
        return 1.0 + self.lr_scale_ratio * (world - 1.0)


RANK_SETTINGS = frozenset(one.name for one in fields(DdpRunConfig))
"""Names of the settings of ranks."""


def rank_settings(settings: Mapping[str, Any]) -> DdpRunConfig:
    """Return the settings of ranks that are among those of a training.

    Raises:
        ValueError: A value is out of its range, or two settings contradict each other.
    """
    return DdpRunConfig(**{name: settings[name] for name in settings.keys() & RANK_SETTINGS})


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class DdpConfig(Settings):
    """How ranks share a training with a loop that the user wrote.

    Raises:
        ValueError: A value is out of its range.
    """

    speed_hint: tuple[int, float] | None = setting(None, _checked_hint)
    """As in :class:`DdpRunConfig`."""
    overhead_target: float = setting(0.10, _overhead)
    """As in :class:`DdpRunConfig`."""
    max_anchor: int | None = setting(None, Whole(0))
    """None: windows adapt up to 200 batches of the slowest rank; 0: no windows; n: up to n."""
    max_grad_norm: float | None = setting(None, Above())
    """Clip the gradients of each step to this total 2-norm."""
    timeline: Any = None
    """A :class:`~flodl.Timeline` in which the exchanges are recorded."""
    average_optimizer_state: bool = False
    """As in :class:`DdpRunConfig`."""


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


_KEYS = {
    *RANK_SETTINGS, *(how(one).key for one in fields(DdpRunConfig)), *OF_ANY_TRAINING,
    *("mode", "no_divergence_guard", "nodes", "rdzv"),
}  # fmt: skip
"""Keys of a ``ddp:`` section, and names of the settings of ranks."""


def settings_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a ``ddp:`` section, or the options made from one, to fields of DdpRunConfig.

    Null values are ignored. Names that belong to another part of a training (``nodes``, ``rdzv``,
    ``max_grad_norm``, ``checkpoint_every``, ``timeline``) are ignored, too.

    Raises:
        ValueError: A name is not a setting, or a value is out of its range.
    """
    given = {name.replace("-", "_"): value for name, value in section.items() if value is not None}
    for name in sorted(given.keys() - _KEYS):
        near = similar(name, sorted(_KEYS))
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{name!r} is not a setting of ranks{hint}")
    found: dict[str, Any] = {}
    if "mode" in given:
        word = str(given["mode"])
        if not word.startswith("solo-"):
            found["policy"], found["backend"] = mode_of(word)
    if given.get("no_divergence_guard"):
        found["divergence_guard"] = False
    for one in fields(DdpRunConfig):
        key = one.name if one.name in given else how(one).key
        # `auto` stands for the default, except where it is a value.
        if key in given and (given[key] != "auto" or key in ("policy", "micro_batch")):
            found[one.name] = checked(DdpRunConfig, one.name, given[key])
    return found


def of_any_training(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a ``ddp:`` section that any training has, by their names there."""
    return {
        name: section[key] for key, name in OF_ANY_TRAINING.items() if section.get(key) is not None
    }


def settings_outside(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the settings of ranks, and those of any training, that the environment makes.

    Raises:
        ValueError: A variable is malformed.
    """
    found: dict[str, Any] = {}
    if text := environ.get(SETTINGS_VARIABLE):
        try:
            section = json.loads(text)
            found = settings_of(section) | of_any_training(section)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{SETTINGS_VARIABLE}={text!r} in the environment is not a ddp section: {error}"
            ) from error
    simulated = simulated_ms(environ)
    return found if simulated is None else found | {"simulate_ms": simulated}


def simulated_ms(environ: Mapping[str, str] = os.environ) -> tuple[float, ...] | None:
    """Return the simulated milliseconds per batch of each rank, from the environment, or None.

    Raises:
        ValueError: The variable is not a list of numbers above 0.
    """
    text = environ.get(SIMULATION_VARIABLE, "")
    try:
        return Shares()(text) if text else None
    except ValueError:
        raise ValueError(
            f"{SIMULATION_VARIABLE}={text!r}: give the milliseconds of a batch, one number above 0 "
            "per rank, such as 40,100"
        ) from None
