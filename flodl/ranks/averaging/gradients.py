"""Average gradients over the ranks inside a step, weighted by the samples of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from flodl.ranks.averaging.buckets import Slot, as_real, summed_as
from flodl.ranks.averaging.rounded import wire_in
from flodl.ranks.averaging.state_tensors import ChangingBuffers
from flodl.ranks.settings import ExchangeFormat

if TYPE_CHECKING:
    from flodl.ranks.group import Group
    from flodl.ranks.settings import Backend


@final
class StepAverager:
    """Averages gradients and buffers in a step; every loop that shares steps uses it.

    ``g = Σ n[r] · ∇[r] / Σn`` with the mean gradient ``∇[r]`` of each rank.

    Args:
        model: A model on the device of the group. The parameters that require a gradient are the
            same on all ranks.
        group: The ranks.
        backend: How values are exchanged.
        format: How gradients are written.

    Attributes:
        wire: Exchanges the gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        backend: Backend,
        format: ExchangeFormat = ExchangeFormat.FLOAT32,
    ) -> None:
        self._model, self._group = model, group
        self.wire = wire_in(format, group, backend)
        self._buffers = ChangingBuffers(model, group, backend)

    def average(
        self, samples: float, extra: Sequence[float] = (), *, rows: int | None = None
    ) -> list[float]:
        """Average the gradients, then the buffers that changed on any rank; collective.

        Args:
            samples: Weight of this rank's gradients.
            extra: Numbers to sum in the same exchange.
            rows: Weight of this rank's buffers; None: ``samples``.

        Returns:
            The sums of ``extra`` over the ranks.
        """
        *sums, _ = self.reduce(samples, [*extra, *self._buffers.flags()])
        self._buffers.average(sums[len(extra) :], samples if rows is None else rows)
        return sums[: len(extra)]

    def average_all_buffers(self, samples: float) -> None:
        """Average all buffers, including those whose changes were not detected; collective."""
        self._buffers.average_all(samples)

    @torch.no_grad()
    def reduce(self, samples: float, extra: Sequence[float] = ()) -> list[float]:
        """Replace every gradient with the average over the ranks, in one exchange; collective.

        If a parameter has no gradient on some ranks, it counts as zeros there. If it has none on
        any rank, it keeps None. If no rank has samples, gradients stay unchanged.

        Args:
            samples: Weight of this rank's gradients, in proportion to the samples in their mean; 0
                takes part with zeros.
            extra: Numbers to sum in the same exchange, in float32 if the gradients are.

        Returns:
            The sums of ``extra`` over the ranks, then the sum of ``samples``.

        Raises:
            ValueError: A gradient is sparse.
        """
        if self._group.world_size == 1:
            return [*map(float, extra), float(samples)]
        parameters = {
            name: parameter
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }
        gradients = [_dense(name, parameter) for name, parameter in parameters.items()]
        real = [as_real(parameter) for parameter in parameters.values()]
        slots = [Slot(one.shape, summed_as(one), rounds=True) for one in real]
        present = [float(gradient is not None and samples > 0) for gradient in gradients]
        exchange = self.wire.send(slots, gradients, samples, [*extra, *present], waits=True)
        sums = exchange.wait()
        if sums.weight > 0:
            anywhere = sums.extra[len(extra) :]
            self._hand_out(list(parameters.values()), exchange.averages(), anywhere)
        return [*sums.extra[: len(extra)], sums.weight]

    def _hand_out(
        self, parameters: list[nn.Parameter], averages: list[Tensor], anywhere: list[float]
    ) -> None:
        targets, sources = [], []
        for parameter, average, ranks in zip(parameters, averages, anywhere, strict=True):
            if not ranks:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            targets.append(as_real(parameter.grad))
            sources.append(average)
        torch._foreach_copy_(targets, sources)


def _dense(name: str, parameter: nn.Parameter) -> Tensor | None:
    gradient = parameter.grad
    if gradient is None:
        return None
    if gradient.is_sparse:
        raise ValueError(
            f"the gradient of {name} is sparse, and ranks exchange dense ones: build the embedding "
            "with sparse=False"
        )
    return as_real(gradient)
