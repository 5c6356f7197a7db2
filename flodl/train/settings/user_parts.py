"""A model, and perhaps its optimizer, that the program made before the training."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, final
from weakref import WeakValueDictionary

import torch
from torch.optim import Optimizer

from flodl import log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

_trained: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
"""Models of earlier trainings, by identity."""


@final
class GivenParts:
    """Passes a model and its optimizer to a training, in place of functions that make them.

    A copy that is sent to another process shares no memory with this one.

    Args:
        model: Stays the same object.
        optimizer: Over parameters of the model; None if a function makes it.

    Raises:
        ValueError: The optimizer holds tensors that are not parameters of the model.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        self._model, self._optimizer = model, optimizer
        if optimizer is not None:
            strange = _strange(optimizer, model.parameters())
            if strange:
                raise ValueError(
                    f"the {type(optimizer).__name__} holds {strange} tensors that are not "
                    "parameters of the model: make it of model.parameters(), or give a function, "
                    f"such as {example(optimizer)}"
                )

    def model_on(self, device: torch.device) -> nn.Module:  # noqa: ARG002 - moved by the caller
        """Return the model; used as a model factory."""
        return self._model

    def optimizer_over(self, parameters: Iterable[Tensor]) -> Optimizer:
        """Return the optimizer with its state on the parameters' device; an optimizer factory.

        Raises:
            ValueError: It holds other parameters, because the model got new ones when it moved.
        """
        optimizer = self._optimizer
        assert optimizer is not None  # noqa: S101 - only called with an optimizer
        if _strange(optimizer, parameters):
            raise ValueError(
                "the model got new parameters when it moved to its device, and the "
                f"{type(optimizer).__name__} holds those from before: give a function, such as "
                f"{example(optimizer)}"
            )
        if any(_left_behind(key, value) for key, value in optimizer.state.items()):
            optimizer.load_state_dict(optimizer.state_dict())  # to the parameters' device
        return optimizer

    def begin_run(self) -> None:
        """Warn if the training continues from the values of an earlier one."""
        if id(self._model) in _trained:
            log.warning(
                "the model given to Trainer.builder has been in an earlier run() and continues "
                "from its present values; for new values each time, give a function, such as "
                f"lambda device: {type(self._model).__name__}(…)"
            )
        _trained[id(self._model)] = self._model

    def __getstate__(self) -> tuple[nn.Module, Optimizer | None]:
        parts = self._model, self._optimizer
        if any(tensor.device.type != "cpu" for tensor in self._model.parameters()):
            # A process must not need the GPU of another process.
            model, optimizer = parts = copy.deepcopy(parts)
            model.to("cpu")
            if optimizer is not None:
                optimizer.load_state_dict(optimizer.state_dict())
        return parts

    def __setstate__(self, parts: tuple[nn.Module, Optimizer | None]) -> None:
        # Tensors are sent as shared memory: without a copy all ranks would train the same weights.
        self._model, self._optimizer = copy.deepcopy(parts)


def example(optimizer: Optimizer) -> str:
    """Return the text of a function that makes such an optimizer."""
    kind = type(optimizer)
    name = f"torch.optim.{kind.__name__}" if kind.__module__.startswith("torch.") else kind.__name__
    rate = optimizer.defaults.get("lr")
    rest = "" if rate is None else f", lr={float(rate):g}"
    return f"lambda parameters: {name}(parameters{rest})"


def _strange(optimizer: Optimizer, parameters: Iterable[Tensor]) -> int:
    """Return how many tensors of an optimizer are not among these parameters."""
    known = {id(parameter) for parameter in parameters}
    return sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])


def _left_behind(parameter: Any, state: Any) -> bool:
    """Whether the state of a parameter is on another device; a step counter may be anywhere."""
    return isinstance(parameter, torch.Tensor) and any(
        isinstance(value, torch.Tensor) and value.dim() > 0 and value.device != parameter.device
        for value in state.values()
    )
