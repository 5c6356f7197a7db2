"""What ranks exchange besides trained parameters and gradients.

- Buffers, which all policies, back ends and loops make equal by the same rule.
- The state of an optimizer, as tensors that the ranks can average.
- Parameters that no step changes. They are equal on all ranks, so they need not travel.

Floating buffers are averaged, weighted by samples, as parameters are. Complex buffers are pairs of
floating values. Integer and boolean buffers take the maximum.

Modules may resize, replace and set their buffers while they train. Every exchange tells whether a
rank has done so; then the ranks agree again on what they average. A buffer that had different sizes
or types on two ranks stays with each rank from then on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from flodl import log
from flodl.ranks.averaging.backends import wire_for
from flodl.ranks.averaging.buckets import SUMMED, Slot, as_real, summed_as

if TYPE_CHECKING:
    from flodl.ranks.group import Group
    from flodl.ranks.settings import Backend


@final
class SharedBuffers:
    """The buffers with the same size and type on all ranks, and the integer parameters.

    Args:
        model: A model with equal buffers on all ranks.
        group: The ranks.
        backend: How values are exchanged.

    Attributes:
        slots: One per buffer, for an exchange; equal values come back unchanged.
        exist: Whether the model has places for buffers, or integer parameters.
    """

    slots: list[Slot]

    def __init__(self, model: nn.Module, group: Group, backend: Backend) -> None:
        self._model, self._group = model, group
        self._wire = wire_for(group, backend)
        self._kept: set[str] = set()
        live = _live(model)
        self.exist = bool(live) or any(module._buffers for module in model.modules())
        self._settle(_forms(live))

    def look(self) -> tuple[dict[str, Tensor | None], bool]:
        """Return the live buffers by name, and whether the ranks have to agree again.

        A buffer that does not fit its slot any more is None.
        """
        live = _live(self._model)
        forms = _forms(live)
        for name in self._kept:
            forms.pop(name, None)
        if forms == self._told:
            return {name: live[name] for name in self._shared}, False
        fits = {name: forms.get(name) == form for name, form in self._shared.items()}
        return {name: live[name] if good else None for name, good in fits.items()}, True

    def tensors(self) -> tuple[list[Tensor | None], bool]:
        """Return what :meth:`look` does, as real tensors, one per slot."""
        found, changed = self.look()
        return [None if one is None else as_real(one) for one in found.values()], changed

    @torch.no_grad()
    def take(self, averages: Sequence[Tensor]) -> None:
        """Overwrite the buffers with their averages, one per slot; counters never decrease."""
        for buffer, average in zip(self.tensors()[0], averages, strict=True):
            if buffer is not None:  # it may have changed while the exchange was under way
                _overwrite(buffer, average)

    def average(self, samples: float) -> float:
        """Average all buffers, in a separate exchange; collective.

        Args:
            samples: Weight of this rank; with 0 its floating values do not count.

        Returns:
            The sum of the weights of all ranks; if it is 0, all buffers stay unchanged.
        """
        tensors, changed = self.tensors()
        exchange = self._wire.send([SUMMED, *self.slots], [None, *tensors], samples, [changed])
        sums = exchange.wait()
        if sums.weight == 0:
            return 0.0
        if sums.extra[0]:
            return self.average_again(samples)
        self.take(exchange.averages()[1:])
        return sums.weight

    def average_again(self, samples: float) -> float:
        """Agree on the buffers, then average them as :meth:`average` does; collective."""
        self._agree()
        return self.average_some(self.look()[0].values(), samples)

    @torch.no_grad()
    def average_some(self, some: Iterable[Tensor | None], samples: float) -> float:
        """Average some of the buffers of :meth:`look`, the same on all ranks; collective."""
        buffers = [as_real(buffer) for buffer in some if buffer is not None]
        slots = [SUMMED, *map(_slot, buffers)]
        exchange = self._wire.send(slots, [None, *buffers], samples)
        weight = exchange.wait().weight
        if weight > 0:
            for buffer, average in zip(buffers, exchange.averages()[1:], strict=True):
                _overwrite(buffer, average)
        return weight

    def _agree(self) -> None:
        """Find the buffers that have the same form on all ranks; collective."""
        ranks = self._group.gather_objects(_forms(_live(self._model)))
        everywhere = [name for name in ranks[0] if all(name in forms for forms in ranks)]
        differ = {
            name for name in everywhere if any(forms[name] != ranks[0][name] for forms in ranks)
        }
        if self._group.leads and (found := sorted(differ - self._kept)):
            log.warning(
                f"buffers with different sizes or types on the ranks: {', '.join(found)}; each "
                "rank keeps its own from here on, and files hold those of rank 0"
            )
        self._kept |= differ
        self._settle({name: ranks[0][name] for name in everywhere})
        self.exist = True

    def _settle(self, forms: dict[str, _Form]) -> None:
        live = _live(self._model)
        own = _forms(live)
        self._told = {name: form for name, form in own.items() if name not in self._kept}
        self._shared = {name: form for name, form in forms.items() if name not in self._kept}
        self.slots = [_slot(as_real(live[name])) for name in self._shared]


_Form = tuple[torch.Size, torch.dtype]


def _forms(tensors: dict[str, Tensor]) -> dict[str, _Form]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _live(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that have values, and the integer parameters, by name, each once."""
    found = {name: buffer for name, buffer in model.named_buffers() if buffer.numel()}
    return found | {
        name: parameter
        for name, parameter in model.named_parameters()
        if not parameter.is_floating_point() and not parameter.is_complex()
    }


def _slot(buffer: Tensor) -> Slot:
    return Slot(buffer.shape, summed_as(buffer, exact=True))


def _overwrite(buffer: Tensor, average: Tensor) -> None:
    if not buffer.is_floating_point():
        # A counter that continued after the snapshot may be ahead of the maximum.
        average = torch.maximum(buffer, average.to(buffer.dtype))
    buffer.copy_(average)


@final
class ChangingBuffers:
    """Averages the buffers that steps change; constant tables and masks need no exchange.

    Args:
        model: The model with the buffers.
        group: The ranks.
        backend: How values are exchanged.
    """

    def __init__(self, model: nn.Module, group: Group, backend: Backend) -> None:
        self._buffers, self._alone = SharedBuffers(model, group, backend), group.world_size == 1
        self._seen: dict[str, tuple[int, int]] = {}
        self._look()

    def flags(self) -> list[float]:
        """Return 1 if the ranks have to agree again, then 1 for each buffer that may have changed.

        If one buffer of a module was written to, all its buffers count as changed. Some writes,
        such as those to the statistics of a normalization, do not increase a tensor's version.
        """
        before, again = self._seen, self._look()
        written = {_owner(name) for name, seen in self._seen.items() if before.get(name) != seen}
        return [float(again), *(float(_owner(name) in written) for name in self._seen)]

    def average(self, flags: Sequence[float], samples: float) -> None:
        """Average the buffers that have changed on any rank; collective.

        Args:
            flags: Sums of :meth:`flags` over the ranks.
            samples: Weight of this rank.
        """
        again, *written = flags
        if self._alone or not any(flags):
            return
        if again:
            self._buffers.average_again(samples)
        else:
            buffers = zip(written, self._buffers.look()[0].values(), strict=True)
            self._buffers.average_some((one for flag, one in buffers if flag), samples)
        self._look()

    def average_all(self, samples: float) -> None:
        """Average all buffers, including those whose changes were not detected; collective.

        Args:
            samples: Weight of this rank.
        """
        if not self._alone and self._buffers.exist:
            self._buffers.average(samples)
            self._look()

    def _look(self) -> bool:
        found, again = self._buffers.look()
        self._seen = {
            name: (0, 0) if one is None else (id(one), one._version) for name, one in found.items()
        }
        return again


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def broadcast_state(model: nn.Module, group: Group) -> None:
    """Overwrite parameters and buffers with those of rank 0, in their size and type; collective."""
    given = _forms(dict(model.named_buffers(remove_duplicate=False)))
    _take_forms(model, group.broadcast_object(given), group.device)
    for tensor in (*model.parameters(), *model.buffers()):
        values = tensor.detach().contiguous()
        # As bytes, which every backend can send.
        group.broadcast_(values.reshape(-1).view(torch.uint8))
        if values.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(values)


def _take_forms(model: nn.Module, forms: dict[str, _Form], device: torch.device) -> None:
    """Make room for buffers of other sizes or types; set and unset those that rank 0 has so."""
    for path, module in model.named_modules():
        for key, buffer in module._buffers.items():
            form = forms.get(f"{path}.{key}" if path else key)
            if form is None:
                module._buffers[key] = None
            elif buffer is None:
                module._buffers[key] = torch.empty(form[0], dtype=form[1], device=device)
            elif (buffer.shape, buffer.dtype) != form:
                buffer.data = torch.empty(form[0], dtype=form[1], device=buffer.device)


def model_facts(model: nn.Module) -> dict[str, object]:
    """Return the shape and type of each parameter and buffer, which all ranks must share."""
    kinds = {"parameter": model.named_parameters(), "buffer": model.named_buffers()}
    return {
        f"{kind} {name}": f"{list(tensor.shape)} {tensor.dtype}"
        for kind, named in kinds.items()
        for name, tensor in named
    }


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
