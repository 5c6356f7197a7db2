"""Make the buffers of a model equal on all ranks; all policies, backends and loops use this.

Floating buffers are averaged, weighted by samples, as parameters are. Complex buffers are pairs of
floating values. Integer and boolean buffers take the maximum.

Modules may resize, replace and set their buffers while they train. Every exchange tells whether a
rank has done so; then the ranks agree again on what they average. A buffer that had different sizes
or types on two ranks stays with each rank from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, final

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
