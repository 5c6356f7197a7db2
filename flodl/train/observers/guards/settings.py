"""The settings of the guards, from a builder or from a manifest."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, final

VARIABLE = "FLODL_GUARDS"
"""The ``guards:`` of a manifest as JSON; settings that the program makes itself take precedence."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Guards:
    """When a training goes back, and how far it may go.

    Attributes:
        spike: A loss is a spike if it is further above the median of the last losses than this many
            times their spread. None looks for nan and infinities only. Above 1.
        window: Most losses that the median is taken of; the first 16 of a training are not judged.
            At least 16.
        snapshots: States kept in host memory, the oldest is dropped first. At least 1.
        every: Optimizer steps between two snapshots; None chooses the number so that they take at
            most 0.25 % of the time. Several ranks then use 100.
        memory: Most bytes of all snapshots of a process; None for half of the available memory.
        attempts: How often it goes back for one place in the data before it gives up. At least 1.
        lower_lr: Factor of the learning rate from the second attempt at one place on; above 0, at
            most 1. 1 keeps the rate.

    Raises:
        ValueError: A value is out of its range.
    """

    spike: float | None = 30.0
    window: int = 64
    snapshots: int = 2
    every: int | None = None
    memory: int | None = None
    attempts: int = 3
    lower_lr: float = 0.5

    def __post_init__(self) -> None:
        for name, least in (("window", 16), ("snapshots", 1), ("attempts", 1)):
            _whole(name, getattr(self, name), least)
        for name in ("every", "memory"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        if self.spike is not None and not (_is_number(self.spike) and 1 < self.spike < math.inf):
            raise ValueError(f"guards(spike={self.spike!r}): it must be a number above 1, or None")
        if not (_is_number(self.lower_lr) and 0 < self.lower_lr <= 1):
            raise ValueError(
                f"guards(lower_lr={self.lower_lr!r}): it must be above 0 and at most 1"
            )

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


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"guards({name}={value!r}): it must be a whole number of at least {least}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
