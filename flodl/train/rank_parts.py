"""Parts of a rank besides its model: learning rate, timer, seed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, final

from flodl.ranks.batch_timer import BatchTimer
from flodl.train.step.learning_rate import SteeredRate, set_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flodl.ranks.group import Group
    from flodl.train.parts import Assembly
    from flodl.train.plan import TrainingPlan


@final
class CountedRate:
    """The learning rate of a rank, scaled by the number of ranks or by their batch counts.

    Args:
        plan: Defines how the rate is scaled.
        parts: Provide the schedule; without one, the optimizer's rate is scaled once.
        counts: Batches per window of each rank, at the beginning.

    Attributes:
        steered: The source of rates for the engine.
    """

    def __init__(self, plan: TrainingPlan, parts: Assembly, counts: Sequence[int]) -> None:
        self._settings, self._optimizer = plan.distributed, parts.optimizer
        self._scale = plan.distributed.lr_scale(counts)
        self.steered = SteeredRate(parts.schedule, self._scale, alone=parts.torch_schedule is None)
        if parts.torch_schedule is not None and self._scale != 1.0:
            raise ValueError(
                f"lr_scale_ratio={plan.distributed.lr_scale_ratio:g} with .lr_scheduler(…): the "
                "scheduler of torch sets the rates itself; write .lr_scale_ratio(0), and the rate "
                "for all ranks into the optimizer"
            )
        if parts.schedule is None and self._scale != 1.0:
            self._multiply(self._scale)

    def follow(self, counts: Sequence[int]) -> None:
        """Scale by the current batch counts, if ``lr_world`` is ``effective``.

        Args:
            counts: Batches per window of each rank.
        """
        scale = self._settings.lr_scale(counts)
        if self._settings.lr_world != "effective" or scale == self._scale:
            return
        change, self._scale = scale / self._scale, scale
        self.steered.scale *= change
        if self.steered.schedule is None:
            self._multiply(change)

    def state(self) -> dict[str, float]:
        """Return the factors of the rate, for a checkpoint."""
        return {"scale": self.steered.scale, "counted": self._scale}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue with the result of :meth:`state`; the optimizer has its rates already."""
        if state:
            self.steered.scale, self._scale = state["scale"], state["counted"]

    def _multiply(self, factor: float) -> None:
        for group in self._optimizer.param_groups:
            set_rate(group, float(group["lr"]) * factor)


def rank_seed(seed: int, rank: int) -> int:
    """Return a seed for values that must differ between ranks: dropout, augmentation."""
    text = f"{seed}/{rank}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def timer_of_rank(plan: TrainingPlan, group: Group) -> BatchTimer:
    """Make the timer of this rank, with its simulated slowness."""
    settings, rank = plan.distributed, group.rank
    return BatchTimer(
        group.device,
        batch_ms=settings.simulate_ms[rank] if settings.simulate_ms is not None else None,
        speed=settings.simulate_speed[rank] if settings.simulate_speed is not None else None,
    )
