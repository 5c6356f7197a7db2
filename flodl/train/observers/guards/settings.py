"""The settings of the guards, from a builder or from a manifest."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, final

from flodl.setting import Settings, UnfitError, Whole, setting

VARIABLE = "FLODL_GUARDS"
"""The ``guards:`` of a manifest as JSON; settings that the program makes itself take precedence."""


def _spike(spike: Any) -> float:
    if not (_is_number(spike) and 1 < spike < math.inf):
        raise UnfitError("it must be a number above 1, or None")
    return float(spike)


def _factor(lower_lr: Any) -> float:
    if not (_is_number(lower_lr) and 0 < lower_lr <= 1):
        raise UnfitError("it must be above 0 and at most 1")
    return float(lower_lr)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(least: int) -> Whole:
    return Whole(least, "a whole number")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Guards(Settings):
    """When a training goes back, and how far it may go.

    Raises:
        ValueError: A value is out of its range.
    """

    spoken = "guards({}={!r})"

    spike: float | None = setting(30.0, _spike, key="spike", form="Annotated[float, Field(gt=1)]")
    """Distance of a spike from the median of the last losses, in multiples of their spread."""
    window: int = setting(64, _whole(16), key="window")
    """Most losses that the median is taken of; the first 16 are not judged."""
    snapshots: int = setting(2, _whole(1), key="snapshots")
    """States kept in host memory."""
    every: int | None = setting(
        None, _whole(1), key="every", usual="so that they take at most 0.25 % of the time"
    )
    """Optimizer steps between two snapshots. Several ranks use 100 unless this is set."""
    memory: int | None = setting(
        None, _whole(1), key="memory", usual="half of the available memory"
    )
    """Most bytes of all snapshots of a process."""
    attempts: int = setting(3, _whole(1), key="attempts")
    """How often it goes back for one place in the data before it gives up."""
    lower_lr: float = setting(0.5, _factor, key="lower_lr", form="Factor")
    """Factor of the learning rate from the second attempt at one place on; 1 keeps the rate."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings of a mapping, such as the ``guards:`` of a manifest.

        Raises:
            ValueError: A key is unknown, or a value is out of its range.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"guards({name}=…): use one of {', '.join(known)}")
        return cls(**values)


def guards_outside(environ: Mapping[str, str] = os.environ) -> Guards | None:
    """Return the guards that a manifest asks for; None for none.

    Raises:
        ValueError: The variable that hands them down is malformed.
    """
    text = environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        value = json.loads(text)
        if isinstance(value, bool):
            return Guards() if value else None
        return Guards.of(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{VARIABLE}={text!r} in the environment does not describe guards: {error}"
        ) from error
