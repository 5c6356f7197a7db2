"""Histograms of the weights of a model and of their gradients, during training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from flodl.checkpoint.sharded import is_sharded
from flodl.monitor.media.histograms import histograms_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from flodl.monitor import Monitor


@final
class ParameterHistograms:
    """Records histograms of all trainable parameters, when an engine says that gradients are ready.

    Names are ``weights/NAME`` and ``gradients/NAME``, with the names of the model. A sharded
    parameter is left out: a rank has only a part of it.

    Args:
        model: The model.
        monitor: Receives the histograms.
        every: Optimizer steps between two records.
    """

    def __init__(self, model: nn.Module, monitor: Monitor, every: int) -> None:
        self._parameters = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and not is_sharded(parameter) and parameter.numel()
        ]
        self._monitor = monitor
        self._every = every

    def __call__(self, global_step: int, scale: float = 1.0, *, gradients: bool = True) -> None:
        """Record one step, if it is due.

        Args:
            global_step: Optimizer steps done before.
            scale: Factor of the loss, by which gradients are divided.
            gradients: Whether the gradients of the step can be read.
        """
        if global_step and (global_step + 1) % self._every:
            return
        found: list[tuple[str, Tensor, float]] = []
        for name, parameter in self._parameters:
            found += _dense(f"weights/{name}", parameter.detach(), 1.0)
            gradient = parameter.grad if gradients else None
            if gradient is not None:
                found += _dense(f"gradients/{name}", gradient.detach(), scale)
        counted = histograms_of([(values, divisor) for _, values, divisor in found])
        named = [(name, reader) for (name, *_), reader in zip(found, counted, strict=True)]
        self._monitor.record_histograms(named, step=global_step + 1)


def _dense(name: str, values: Tensor, scale: float) -> list[tuple[str, Tensor, float]]:
    """Return real values with a name and a divisor; nothing if there are no values."""
    dense: Any = values.coalesce().values() if values.is_sparse else values
    if dense.is_complex():
        dense = dense.abs()
    return [(name, dense, scale)] if dense.numel() else []
