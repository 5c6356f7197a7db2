"""Outer optimizers: take a step from the last average to the new one, instead of copying it.

The change of the parameters since the last average acts as a gradient, ``Δ = θ - p̄``, for another
optimizer. With Nesterov's momentum, a rate of 0.7 and long windows this is DiLoCo (Douillard et
al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv:2311.08105).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, final

import torch
from torch import Tensor

from flodl.errors import CheckpointError


class OuterOptimizer(Protocol):
    """A pure update, the same on every rank; ``Nesterov(0.7, 0.9)`` gives DiLoCo."""

    def step(self, last: Tensor, average: Tensor) -> Tensor:
        """Return the new parameters, flat.

        Args:
            last: The parameters after the last update, flat.
            average: The new average, flat; ``last - average`` acts as the gradient.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` returned."""


@final
class Nesterov:
    """Nesterov's momentum, as in :class:`torch.optim.SGD`.

    ::

        m ← momentum · m + Δ
        θ ← θ - lr · (Δ + momentum · m)

    With ``lr=1, momentum=0`` the new parameters are the average.

    Args:
        lr: Rate, greater than 0.
        momentum: Weight of the past, in [0, 1).

    Raises:
        ValueError: A value is out of its range.
    """

    def __init__(self, lr: float = 0.7, momentum: float = 0.9) -> None:
        if not lr > 0:
            raise ValueError(f"lr={lr!r}: it must be greater than 0")
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum={momentum!r}: it must be at least 0 and below 1")
        self._lr, self._momentum = float(lr), float(momentum)
        self._velocity: Tensor | None = None

    def __repr__(self) -> str:
        return f"Nesterov(lr={self._lr:g}, momentum={self._momentum:g})"

    @torch.no_grad()
    def step(self, last: Tensor, average: Tensor) -> Tensor:
        """Return the new parameters, flat.

        Args:
            last: The parameters after the last update, flat.
            average: The new average, flat.

        Raises:
            CheckpointError: A loaded state has another number of parameters.
        """
        step = last - average
        if self._momentum:
            self._velocity = self._fitting(last)
            self._velocity.mul_(self._momentum).add_(step)
            step.add_(self._velocity, alpha=self._momentum)
        return step.mul_(-self._lr).add_(last)

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"velocity": tensor}``, a copy; an empty dictionary before the first step."""
        return {} if self._velocity is None else {"velocity": self._velocity.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; rate and momentum keep the values of the constructor."""
        velocity = state.get("velocity")
        self._velocity = None if velocity is None else velocity.detach().clone()

    def _fitting(self, last: Tensor) -> Tensor:
        if self._velocity is None:
            return torch.zeros_like(last)
        if self._velocity.shape != last.shape:
            raise CheckpointError(
                f"the outer optimizer's state has {self._velocity.numel()} values and the model "
                f"{last.numel()} parameters; build the model the way it was built before"
            )
        return self._velocity.to(last)
