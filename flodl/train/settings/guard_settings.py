"""The setting of the guards, and what it cannot be combined with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flodl.data.adapters import is_iterable
from flodl.data.iterable import remedy_for
from flodl.train.observers.guards.settings import Guards, guards_outside
from flodl.train.settings.setting_methods import Settings

if TYPE_CHECKING:
    from typing import Self


class GuardSettings(Settings):
    """Guards against losses that are not finite, and against spikes."""

    def guards(
        self,
        on: bool = True,
        *,
        spike: float | None = 30.0,
        window: int = 64,
        snapshots: int = 2,
        every: int | None = None,
        memory: int | None = None,
        attempts: int = 3,
        lower_lr: float = 0.5,
    ) -> Self:
        """Survive bad batches: go back, leave them out, continue; off by default.

        When a loss is nan, infinite or a spike, the training goes back to a snapshot in host
        memory. The same steps follow again, without the batches that showed it. Random numbers
        repeat, so the steps before these batches are the same to the bit. The second attempt at one
        place leaves out more batches before it, and lowers the learning rate. After the last
        attempt the training ends with :class:`~flodl.errors.DivergedError`, which names the first
        module that is not finite. To find it, the guard calls ``train_fn`` again.

        A training without setbacks gives the same bits as one without guards. The training tutorial
        says what callbacks see, and what the run directory records.

        Args:
            on: False switches the guards off, also those of a manifest.
            spike: A loss is a spike if it is further above the median of the last losses than this
                many times their spread. None looks for nan and infinities only.
            window: Most losses that the median is taken of; the first 16 are not judged.
            snapshots: States kept in host memory.
            every: Optimizer steps between two snapshots; None chooses the number so that they take
                at most 0.25 % of the time. Several ranks then use 100.
            memory: Most bytes of all snapshots; None for half of the available memory.
            attempts: How often it goes back for one place before it gives up.
            lower_lr: Factor of the learning rate from the second attempt at one place on.

        Raises:
            ValueError: A value is out of its range.
        """
        settings = Guards(
            spike=spike,
            window=window,
            snapshots=snapshots,
            every=every,
            memory=memory,
            attempts=attempts,
            lower_lr=lower_lr,
        )
        return self._set("guards", settings if on else None)


def settled_guards(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the guards of a manifest, if the program does not decide.

    Raises:
        ValueError: A setting cannot be combined with guards.
    """
    found = {"guards": guards_outside(), **settings}
    if found["guards"] is not None:
        _check(found)
    return found


def _check(settings: Mapping[str, Any]) -> None:
    """Refuse what guards cannot take back."""
    problem = ""
    if is_iterable(settings["dataset"]):
        problem = (
            "data that can only be iterated cannot go back inside an epoch; "
            f"{remedy_for(settings['dataset'])}"
        )
    elif settings.get("sharded"):
        problem = "a snapshot holds a whole model, and .sharded() spreads it over the ranks"
    elif settings.get("engine") == "cuda_graph":
        problem = (
            "engine='cuda_graph' repeats one captured step in fixed memory, which a snapshot "
            "cannot replace; use .engine('auto')"
        )
    elif settings.get("lr_scheduler") is not None and settings["guards"].lower_lr != 1:
        problem = (
            ".lr_scheduler(…) sets the learning rate itself, so that a guard cannot lower it; add "
            "lower_lr=1, or use .scheduler(…)"
        )
    if problem:
        raise ValueError(f"guards: {problem}; or leave the guards out")
