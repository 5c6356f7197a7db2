"""The step that every other engine is measured against: torch, one operation after the other."""

from __future__ import annotations

from typing import ClassVar, final

from flodl.train.engines.tuned import TunedEngine


@final
class EagerEngine(TunedEngine):
    """Forward, backward, then the update, exactly as a plain loop would: nothing is tuned.

    Args:
        model: In training mode, on its device.
        optimizer: Over the parameters of the model.
        settings: How a step goes.
    """

    name: ClassVar[str] = "eager"
