"""What an average exchanges besides trained parameters.

- The state of an optimizer, as tensors that the ranks can average.
- Parameters that no step changes. They are equal on all ranks, so they need not travel.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from flodl.ranks.averaging.buckets import Slot, as_real, summed_as

_COUNTER = "step"
"""Key of the step counter in torch's optimizers; a number or a tensor with one element."""


@final
@dataclass(frozen=True, slots=True)
class _Entry:
    """One value of the optimizer's state for one parameter, after the first step."""

    parameter: tuple[int, int]
    """Number of the parameter group, and of the parameter in it."""
    name: str
    form: Tensor
    """Shape and dtype, without memory."""
    device: torch.device | None
    """Device of the value; None for a plain number."""

    @property
    def slot(self) -> Slot:
        counts = self.name == _COUNTER
        real = as_real(self.form)
        return Slot(real.shape, torch.int64 if counts else summed_as(real))


@final
class OptimizerTensors:
    """Moments and step counters of an optimizer: the same list on every rank.

    A rank that has not taken a step yet has no state. So a copy of the optimizer takes a step to
    find out which values the state will have. All ranks then exchange the same tensors from the
    first time on.

    Args:
        optimizer: An optimizer whose ``step`` needs no closure.

    Attributes:
        slots: One per value.

    Raises:
        ValueError: A copy of the optimizer cannot take a step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._entries = _entries_after_a_step(optimizer)
        self.slots = [entry.slot for entry in self._entries]

    def tensors(self) -> list[Tensor | None]:
        """Return the current values, one per slot; None if a value does not exist yet."""
        return [_as_tensor(self._held(entry)) for entry in self._entries]

    @torch.no_grad()
    def take(self, averages: Sequence[Tensor]) -> None:
        """Replace the values with averages, one per slot; counters never decrease."""
        # A parameter that no rank has stepped gets no state: optimizers rely on its absence.
        begun = {
            entry.parameter
            for entry, average in zip(self._entries, averages, strict=True)
            if self._held(entry) is not None or bool(average.any())
        }
        for entry, average in zip(self._entries, averages, strict=True):
            if entry.parameter in begun:
                self._replace(entry, average)

    def _replace(self, entry: _Entry, average: Tensor) -> None:
        held = self._held(entry)
        if entry.name == _COUNTER and held is not None:
            average = average.clamp_min(int(held))
        if isinstance(held, Tensor):
            as_real(held).copy_(average)
            return
        value: Any = average.item() if entry.device is None else None
        if entry.device is not None:
            value = torch.empty_like(entry.form, device=entry.device)
            as_real(value).copy_(average)
        self._optimizer.state[self._parameter(entry)][entry.name] = value

    def _held(self, entry: _Entry) -> Any:
        # Not by [], which would create an entry at every read.
        return self._optimizer.state.get(self._parameter(entry), {}).get(entry.name)

    def _parameter(self, entry: _Entry) -> Tensor:
        group, index = entry.parameter
        parameter: Tensor = self._optimizer.param_groups[group]["params"][index]
        return parameter


def _as_tensor(value: Any) -> Tensor | None:
    if value is None:
        return None
    return as_real(value) if isinstance(value, Tensor) else torch.tensor(value)


def _entries_after_a_step(optimizer: torch.optim.Optimizer) -> list[_Entry]:
    probe = copy.deepcopy(optimizer)
    for group in probe.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    try:
        probe.step()
    except Exception as error:
        raise ValueError(
            f"the state of {type(optimizer).__name__} cannot be averaged: a step of a copy failed "
            f"({error}); leave average_optimizer_state off"
        ) from error
    return [
        _entry((number, index), name, value)
        for number, group in enumerate(probe.param_groups)
        for index, parameter in enumerate(group["params"])
        for name, value in probe.state.get(parameter, {}).items()
        if isinstance(value, Tensor) or name == _COUNTER
    ]


def _entry(parameter: tuple[int, int], name: str, value: Any) -> _Entry:
    if isinstance(value, Tensor):
        return _Entry(parameter, name, torch.empty_like(value, device="meta"), value.device)
    return _Entry(parameter, name, torch.empty((), device="meta"), None)


_WORD = 8
"""Bytes that are added up at once."""


@final
class FrozenParameters:
    """Knows whether frozen parameters are still the ones that all ranks have.

    A program may write to them all the same, as to a teacher that follows the model. So each rank
    compares the sums of their bits.

    Args:
        frozen: The parameters, equal on all ranks.
    """

    def __init__(self, frozen: Sequence[Tensor]) -> None:
        self.settle(frozen)

    def settle(self, frozen: Sequence[Tensor]) -> None:
        """Learn that all ranks have these values now."""
        self._told: list[tuple[torch.Size, int]] | None = _bits(frozen)
        self._norms: list[Tensor] | None = None

    def unsettle(self) -> None:
        """Learn that the ranks may have different values."""
        self._told = None

    def changed(self, frozen: Sequence[Tensor]) -> bool:
        """Whether some have other values than all ranks had, or are not finite."""
        if self._told is None or _bits(frozen) != self._told:
            return True
        return not all(norm.isfinite() for norm in self.norms(frozen))

    def norms(self, frozen: Sequence[Tensor]) -> list[Tensor]:
        """Return the norm of each parameter in float64; computed once for the same values."""
        if self._norms is None:
            self._norms = [torch._foreach_norm([one.double()], 2)[0] for one in frozen]
        return self._norms


def _bits(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, int]]:
    """Return shape and sum of the bits of each tensor."""
    sums = []
    for tensor in tensors:
        flat = tensor.contiguous().view(-1).view(torch.uint8)
        whole = len(flat) // _WORD * _WORD
        sums.append(flat[:whole].view(torch.int64).sum() + flat[whole:].sum())
    values = torch.stack(sums).tolist() if sums else []
    return [(tensor.shape, value) for tensor, value in zip(tensors, values, strict=True)]
