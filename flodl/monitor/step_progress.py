"""How far a training is inside an epoch: the small record that a page shows between two epochs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

from flodl.monitor.records import finite
from flodl.monitor.resources import ResourceSample

Phase: TypeAlias = Literal["training", "evaluating", "paused"]


@final
@dataclass(frozen=True, slots=True)
class StepProgress:
    """The position of a training; only the newest one counts."""

    epoch: int
    """Counted from 0; all displays count from 1."""
    total: int
    """Number of epochs that the run is to train."""
    step: int
    """Batches of this epoch that are done."""
    steps: int | None
    """Batches of the whole epoch; None if unknown."""
    rate: float | None
    """Samples per second in this epoch; None if unknown."""
    eta: float | None
    """Estimated remaining seconds of the training; None if unknown."""
    elapsed: float
    """Seconds since the monitor was created."""
    phase: Phase = "training"
    """What the training does now."""
    resources: ResourceSample = field(default_factory=ResourceSample)
    """Load of the machine now."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form: epoch from 1, unknown values left out."""
        form: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "total": self.total,
            "step": self.step,
            "elapsed": finite(self.elapsed),
            "phase": self.phase,
            **self.resources.as_json(),
        }
        known = {"steps": self.steps, "rate": self.rate, "eta": self.eta}
        return form | {name: finite(value) for name, value in known.items() if value is not None}
