"""The model and the optimizer as a program gives them: functions, or finished parts."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, final
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from flodl import log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from flodl.train.plan import ModelFactory, OptimizerFactory

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


def factories(
    model: ModelFactory | nn.Module, optimizer: OptimizerFactory | Optimizer
) -> tuple[GivenParts | None, ModelFactory, OptimizerFactory]:
    """Return functions that make model and optimizer, from functions or finished parts.

    Returns:
        The finished parts, if any, and the two functions.

    Raises:
        ValueError: One of them is neither a part of a training nor a function that makes it.
    """
    made = optimizer if isinstance(optimizer, Optimizer) else None
    if not isinstance(model, nn.Module):
        if made is not None:
            raise ValueError(
                f"the optimizer is a {type(made).__name__}, made before the model, which a "
                "function makes: give the model itself, or a function for the optimizer, too, "
                f"such as {example(made)}"
            )
        _check_no_class(model)
        return None, takes("model", model, "device"), takes("optimizer", optimizer, "parameters")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            "the parameters of the model have no values (device 'meta'): load its weights first, "
            f"or give a function, such as lambda device: {type(model).__name__}(…)"
        )
    given = GivenParts(model, made)
    if made is not None:
        return given, given.model_on, given.optimizer_over
    return given, given.model_on, takes("optimizer", optimizer, "parameters")


def takes(name: str, function: Any, *arguments: str) -> Any:
    """Return a function that can be called with these arguments.

    Raises:
        ValueError: It is not a function, or takes other arguments.
    """
    form = f"lambda {', '.join(arguments)}: …"
    if not callable(function):
        graph = getattr(function, "graph", None)
        remedy = (
            "give its .graph" if isinstance(graph, nn.Module) else f"it must be a {_WANTED[name]}"
        )
        raise ValueError(f"{name}={function!r:.80}: {remedy}, such as {form}")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # written in C, or without a readable signature
        return function
    try:
        signature.bind(*arguments)
    except TypeError as error:
        called = f"{name}({', '.join(arguments)})"
        raise ValueError(
            f"{name} cannot be called as {called} ({error}): write it as {form}"
        ) from None
    return function


_WANTED = {
    "model": "torch.nn.Module, or a function",
    "optimizer": "function, or with a model that is given itself an optimizer",
    "train_fn": "function",
}


def _check_no_class(model: Any) -> None:
    """Refuse a class of modules: a call would pass the device as its first argument."""
    if not (isinstance(model, type) and issubclass(model, nn.Module)):
        return
    first = next(iter(inspect.signature(model).parameters), None)
    if first != "device":
        raise ValueError(
            f"the model is the class {model.__name__}: give a model, {model.__name__}(…), or a "
            f"function, such as lambda device: {model.__name__}(…)"
        )


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
