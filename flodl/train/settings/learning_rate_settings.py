"""The settings of learning rate and clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import LRScheduler

from flodl.train.settings.setting_methods import Settings, callable_setting
from flodl.train.step.learning_rate import steps_by_itself
from flodl.train.step.torch_schedule import SchedulerSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from flodl.train.step.learning_rate import Schedule
    from flodl.train.step.torch_schedule import Interval, SchedulerFactory


class RateSettings(Settings):
    """Learning rate and clipping."""

    def scheduler(self, factory: Callable[[int], Schedule]) -> Self:
        """Set the learning rate by step: ``factory(world_size)`` makes an object with ``lr(step)``.

        For schedulers of torch use :meth:`lr_scheduler`.
        """
        if isinstance(factory, LRScheduler) or (
            isinstance(factory, type) and issubclass(factory, LRScheduler)
        ):
            raise ValueError(steps_by_itself(factory))
        return self._set("scheduler", callable_setting("scheduler", factory))

    def lr_scheduler(
        self,
        factory: SchedulerFactory,
        interval: Interval = "epoch",
        monitor: str | None = None,
    ) -> Self:
        """Let a scheduler of torch set the learning rate.

        Examples::

            .lr_scheduler(lambda optimizer: StepLR(optimizer, 30))
            .lr_scheduler(lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=900), "step")
            .lr_scheduler(lambda optimizer: ReduceLROnPlateau(optimizer), monitor="loss")

        Checkpoints hold its state, so a resumed training continues with the same rates. A step that
        the gradient scaler of float16 skips does not count. With several ranks, each rank has its
        own scheduler, and all have the same rates. ``interval="step"`` then counts the batches of
        all ranks, as ``.scheduler(…)`` does.

        Args:
            factory: ``(optimizer) -> scheduler``; called once.
            interval: Step the scheduler after each ``"epoch"`` or after each optimizer ``"step"``.
            monitor: The metric for a ``ReduceLROnPlateau``: ``"loss"`` for the mean loss of the
                epoch, else the name of a scalar, such as one that ``eval_fn`` returns.

        Raises:
            ValueError: The interval is unknown, or a metric is combined with ``interval="step"``.
        """
        given: object = factory
        if isinstance(given, LRScheduler):
            name = type(given).__name__
            raise ValueError(
                f"lr_scheduler got a {name} and needs a function that makes one: write "
                f".lr_scheduler(lambda optimizer: {name}(optimizer, …))"
            )
        made = SchedulerSettings(callable_setting("lr_scheduler", factory), interval, monitor)
        return self._set("lr_scheduler", made)

    def max_grad_norm(self, max_norm: float) -> Self:
        """Clip the gradients of each step to this total 2-norm."""
        if not max_norm > 0:
            raise ValueError(f"max_grad_norm={max_norm!r}: it must be greater than 0")
        return self._set("max_grad_norm", float(max_norm))
