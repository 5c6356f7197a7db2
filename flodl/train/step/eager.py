"""The reference step for all other engines: torch, one operation after the other."""

from __future__ import annotations

from typing import ClassVar, final

from flodl.train.step.tuned import TunedEngine


@final
class EagerEngine(TunedEngine):
    """Forward, backward, then the update, exactly as in a plain loop, without tunings.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: The settings of a step.
    """

    name: ClassVar[str] = "eager"
