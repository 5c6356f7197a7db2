"""Controls: modes with averaging that is broken on purpose, to test that the analysis detects it.

They train as ``cpu-cadence`` does, exchanges included. Only the parameters after an average are
wrong:

- ``control-unaveraged``: every rank keeps its own parameters.
- ``control-reversed``: all ranks step from the last average away from the new one, by the same
  distance.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from flodl.ranks.averaging.average import Averaged, ParameterAverager

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

UNAVERAGED = "control-unaveraged"
REVERSED = "control-reversed"
CONTROLS = (UNAVERAGED, REVERSED)
STANDS_FOR = "cpu-cadence"
"""The mode with correct averaging that a control imitates."""


@contextmanager
def broken_averaging(mode: str) -> Iterator[None]:
    """Break the averages of this process inside the context.

    Args:
        mode: One of :data:`CONTROLS`; any other mode is left unchanged.
    """
    if mode not in CONTROLS:
        yield
        return
    genuine: Any = ParameterAverager.average
    broken = _keeping_its_own(genuine) if mode == UNAVERAGED else _moving_away(genuine)
    ParameterAverager.average = broken  # type: ignore[method-assign]
    try:
        yield
    finally:
        ParameterAverager.average = genuine  # type: ignore[method-assign]


def _keeping_its_own(genuine: Any) -> Any:
    @torch.no_grad()
    def average(averager: ParameterAverager, samples: int) -> Averaged:
        parameters = _parameters(averager)
        own = [parameter.clone() for parameter in parameters]
        averaged: Averaged = genuine(averager, samples)
        torch._foreach_copy_(parameters, own)
        return averaged

    return average


def _moving_away(genuine: Any) -> Any:
    last: list[Tensor] = []

    @torch.no_grad()
    def average(averager: ParameterAverager, samples: int) -> Averaged:
        parameters = _parameters(averager)
        averaged: Averaged = genuine(averager, samples)
        if last:
            wrong = [2 * before - now for before, now in zip(last, parameters, strict=True)]
            torch._foreach_copy_(parameters, wrong)
        last[:] = [parameter.clone() for parameter in parameters]
        return averaged

    return average


def _parameters(averager: ParameterAverager) -> list[Tensor]:
    return list(averager._model.parameters())
