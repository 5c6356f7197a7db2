"""The settings of several ranks as methods of a training's builder; no effect on one rank."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from flodl.ranks.settings import Backend, DdpRunConfig, Policy, settings_of

if TYPE_CHECKING:
    from flodl.ranks.averaging.outer_optimizer import OuterOptimizer

SETTINGS_VARIABLE = "FLODL_DDP"
"""A ``ddp:`` section as JSON; settings that the program makes itself take precedence."""

SIMULATION_VARIABLE = "FLODL_SIM_MS"
"""Milliseconds per batch of each rank, separated by commas."""

_OF_THE_BUILDER = {
    "max_grad_norm": "max_grad_norm",
    "checkpoint_every": "checkpoint_every",
    "timeline": "record_timeline",
}
"""Keys of the section that any training has, and their names in the builder."""


class RankSettings:
    """How the ranks of a training share its work; see :class:`DdpRunConfig`."""

    def __init__(self) -> None:
        self._ranks = DdpRunConfig()
        self._said: set[str] = set()
        self._of_builder: dict[str, Any] = {}

    def ddp(self, settings: DdpRunConfig | Mapping[str, Any]) -> Self:
        """Take many settings at once.

        Args:
            settings: A configuration, or a mapping with the keys of a ``ddp:`` section. Values
                that are None are ignored.

        Raises:
            ValueError: A value is out of its range.
        """
        if isinstance(settings, DdpRunConfig):
            self._ranks = settings
            self._said = set(settings.__dataclass_fields__)
            return self
        self._of_builder |= _settings_of_training(settings)
        return self._rank_setting(**settings_of(settings))

    def policy(self, policy: Policy | str) -> Self:
        """Choose when the ranks average: sync, cadence, async or auto.

        The default is auto: sync for devices of one name, cadence for others.
        """
        return self._rank_setting(policy=policy)

    def backend(self, backend: Backend | str) -> Self:
        """Choose how values are exchanged: nccl or cpu."""
        return self._rank_setting(backend=backend)

    def anchor(self, batches: int) -> Self:
        """Set the batches of the slowest rank between two averages at the start."""
        return self._rank_setting(anchor=batches)

    def min_anchor(self, batches: int) -> Self:
        """Set the fewest batches of the slowest rank between two averages."""
        return self._rank_setting(min_anchor=batches)

    def max_anchor(self, batches: int) -> Self:
        """Set the most batches of the slowest rank between two averages."""
        return self._rank_setting(max_anchor=batches)

    def overhead_target(self, part: float) -> Self:
        """Lengthen windows above this ratio of communication to computation: 0.01 to 0.50."""
        return self._rank_setting(overhead_target=part)

    def speed_hint(self, rank: int, ratio: float) -> Self:
        """State that one rank is slower than the others, before anything is measured."""
        return self._rank_setting(speed_hint=(rank, ratio))

    def speeds(self, speeds: Sequence[float]) -> Self:
        """State the relative speed of each rank, before anything is measured."""
        return self._rank_setting(speeds=tuple(speeds))

    def max_batch_diff(self, batches: int | None) -> Self:
        """Limit how many batches a rank may be ahead of another; 0: lockstep, None: no limit."""
        return self._rank_setting(max_batch_diff=batches)

    def max_overshoot(self, batches: int | None) -> Self:
        """Limit the batches trained while an average is in progress; None: adapt the limit."""
        return self._rank_setting(max_overshoot=batches)

    def divergence_threshold(self, distance: float) -> Self:
        """Set the relative distance of a rank from the average that alerts the guard."""
        return self._rank_setting(divergence_threshold=distance)

    def no_divergence_guard(self) -> Self:
        """Let windows grow regardless of the distance between the ranks."""
        return self._rank_setting(divergence_guard=False)

    def progressive_dispatch(self, on: bool | None) -> Self:
        """Hand out batches during an epoch (True) or fix the shares at its start (False)."""
        return self._rank_setting(progressive_dispatch=on)

    def partition_ratios(self, ratios: Sequence[float]) -> Self:
        """Fix the share of each rank; this turns balancing off."""
        return self._rank_setting(partition_ratios=tuple(ratios))

    def snapshot_timeout(self, seconds: float) -> Self:
        """Set how long to wait for a late rank before an average is skipped (backend cpu)."""
        return self._rank_setting(snapshot_timeout=seconds)

    def lr_scale_ratio(self, ratio: float) -> Self:
        """Multiply the learning rate by ``1 + ratio · (W - 1)``; the default 0 changes nothing."""
        return self._rank_setting(lr_scale_ratio=ratio)

    def lr_world(self, world: Literal["count", "effective"]) -> Self:
        """Define W: ``count`` is the number of ranks, ``effective`` is ``(Σc)² / Σc²``.

        The c are the batches per window of each rank.
        """
        return self._rank_setting(lr_world=world)

    def average_optimizer_state(self, on: bool = True) -> Self:
        """Average the state of the optimizers along with the parameters."""
        return self._rank_setting(average_optimizer_state=on)

    def outer_optimizer(self, outer: OuterOptimizer | None) -> Self:
        """Step from the last average to the new one with this, such as ``Nesterov(0.7, 0.9)``."""
        return self._rank_setting(outer_optimizer=outer)

    def overlap(self, on: bool = True) -> Self:
        """Keep training while an average of policy cadence is in progress."""
        return self._rank_setting(overlap=on)

    def stream_epochs(self, on: bool | None) -> Self:
        """Let a window reach into the next epoch if nothing is due between the two."""
        return self._rank_setting(stream_epochs=on)

    def ranks(self, count: int | None) -> Self:
        """Start this many processes if no launcher did; None: one per usable GPU."""
        return self._rank_setting(ranks=count)

    def max_restarts(self, count: int) -> Self:
        """Limit the restarts after a rank fails; applies to ranks that :meth:`run` started."""
        return self._rank_setting(max_restarts=count)

    def simulate_ms(self, ms: Sequence[float]) -> Self:
        """Pad every batch of each rank to this duration."""
        return self._rank_setting(simulate_ms=tuple(ms))

    def simulate_speed(self, speeds: Sequence[float]) -> Self:
        """Stretch the time of every batch of each rank by ``1 / speed``."""
        return self._rank_setting(simulate_speed=tuple(speeds))

    def simulate_sync_ms(self, ms: float) -> Self:
        """Pad every averaging by this duration."""
        return self._rank_setting(simulate_sync_ms=ms)

    def _rank_setting(self, **changes: Any) -> Self:
        self._ranks = self._ranks.having(**changes)
        self._said |= changes.keys()
        return self

    def _rank_settings(self) -> tuple[DdpRunConfig, dict[str, Any]]:
        """Merge the settings of the program over those of its environment.

        Returns:
            The settings of the ranks, and the settings of the training itself that came with them.
        """
        text = os.environ.get(SETTINGS_VARIABLE, "")
        try:
            section = json.loads(text) if text else {}
            outside = settings_of(section)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{SETTINGS_VARIABLE}={text!r} in the environment is not a ddp section: {error}"
            ) from error
        simulated = simulated_ms()
        if simulated is not None:
            outside["simulate_ms"] = simulated
        found = self._ranks.having(
            **{name: value for name, value in outside.items() if name not in self._said}
        )
        return found, _settings_of_training(section) | self._of_builder


def _settings_of_training(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a section that any training has, by their names in the builder."""
    return {
        name: section[key] for key, name in _OF_THE_BUILDER.items() if section.get(key) is not None
    }


def simulated_ms(environ: Mapping[str, str] = os.environ) -> tuple[float, ...] | None:
    """Return the simulated milliseconds per batch of each rank, from the environment, or None.

    Raises:
        ValueError: The variable is not a list of numbers above 0.
    """
    text = environ.get(SIMULATION_VARIABLE, "")
    if not text:
        return None
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(value > 0 for value in values):
        raise ValueError(
            f"{SIMULATION_VARIABLE}={text!r}: give the milliseconds of a batch, one number above 0 "
            "per rank, such as 40,100"
        )
    return values
