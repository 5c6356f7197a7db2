"""Model and optimizer as a program gives them, functions or finished parts, and their checks."""

from __future__ import annotations

import copy
import functools
import inspect
from itertools import chain
from operator import itemgetter
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, final
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from flodl import log
from flodl.checkpoint.forms import CASTABLE
from flodl.graph import Graph
from flodl.train.step.trials import nested
from flodl.train.step.tuned import needs_closure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from flodl.train.settings import ModelFactory, OptimizerFactory, TrainingPlan
    from flodl.train.step.learning_rate import Schedule


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
        if isinstance(model, type) and issubclass(model, nn.Module):
            _check_class(model)
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


def build_model(factory: ModelFactory, device: torch.device) -> nn.Module:
    """Call a model factory and move the model to the device.

    Raises:
        TypeError: The factory returned something that is not a module.
        ValueError: Some parameters have no shape yet.
    """
    model = factory(device)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"the model factory returned a {type(model).__name__}, not a torch.nn.Module"
        )
    named = chain(model.named_parameters(), model.named_buffers())
    lazy = [name for name, tensor in named if is_lazy(tensor)]
    if lazy:
        raise ValueError(
            f"the parameters of the model have no shape yet ({', '.join(lazy[:3])}"
            f"{' and more' if lazy[3:] else ''}): call it once on an example, such as "
            "model(torch.zeros(2, features)), before the model factory returns it"
        )
    named = chain(model.named_parameters(), model.named_buffers())
    meta = [name for name, tensor in named if tensor.is_meta]
    if meta:
        raise ValueError(
            f"{', '.join(meta[:3])}{' and more' if meta[3:] else ''} of the model: device 'meta', "
            "without values. Call to_empty(device=…) and load or initialise the model in the "
            "model factory"
        )
    return model.to(device)


def build_optimizer(factory: OptimizerFactory, model: nn.Module) -> torch.optim.Optimizer:
    """Call an optimizer factory with the parameters of a model that is on its device.

    Raises:
        TypeError: The factory returned something that is not an optimizer.
        ValueError: The optimizer holds no parameter of the model.
    """
    parameters = list(model.parameters())
    optimizer = factory(parameters)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"the optimizer factory returned a {type(optimizer).__name__}, not a "
            "torch.optim.Optimizer"
        )
    held = chain.from_iterable(map(itemgetter("params"), optimizer.param_groups))
    if parameters and set(map(id, parameters)).isdisjoint(map(id, held)):
        raise ValueError(
            f"the {type(optimizer).__name__} holds no parameter of the model that is trained: make "
            f"it of the parameters that the function gets, such as {example(optimizer)}"
        )
    return optimizer


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
    "optimizer": "function, or an optimizer if the model itself is given",
    "train_fn": "function",
}


def _check_class(model: type) -> None:
    """Refuse a class of modules unless it takes the device, which a call would pass."""
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


def check_closure(optimizer: torch.optim.Optimizer, plan: TrainingPlan, world_size: int) -> None:
    """Check that the settings fit an optimizer that needs a closure.

    Raises:
        ValueError: A setting does not fit.
    """
    if not needs_closure(optimizer):
        return
    obstacles = {
        f"engine={plan.engine!r} (use .engine('eager'))": plan.engine not in ("auto", "eager"),
        f".accumulate({plan.accumulate})": plan.accumulate != 1,
        "a gradient scaler (use .autocast(torch.bfloat16))": plan.scaler is not None,
        f"micro_batch={plan.distributed.micro_batch!r}": plan.distributed.micro_batch is not None,
        f"{world_size} ranks": world_size > 1,
    }
    found = [name for name, there in obstacles.items() if there]
    if found:
        raise ValueError(
            f"{type(optimizer).__name__} evaluates the loss several times per step, on one batch, "
            f"in full precision and on one device: it does not go with {' nor '.join(found)}"
        )


def check_exchanged(model: nn.Module) -> None:
    """Check that ranks can exchange the parameters and buffers of a model.

    Raises:
        ValueError: A tensor is not dense, or torch cannot convert its type.
    """
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if tensor.layout is not torch.strided or tensor.dtype not in CASTABLE:
            raise ValueError(
                f"{name} is {tensor.dtype} ({tensor.layout}), which ranks cannot exchange: keep it "
                "as a plain attribute if it never changes, or train on one device"
            )


def check_carried(plan: TrainingPlan, model: nn.Module, size: int, samples: int) -> None:
    """Check a graph that carries state if the epoch has batches of two sizes.

    The check passes if the training function, the model or a callback calls ``reset_state()``, or
    if the program sets ``drop_last`` itself.

    Args:
        plan: The plan of the training.
        model: The model.
        size: Samples of a full batch.
        samples: Number of samples in the data set.

    Raises:
        ValueError: The smaller batch would meet the state of a larger one.
    """
    options = plan.loader_options
    left = samples % size
    joins = left == 1 and options.get("join_remainder", True)
    if not left or "drop_last" in options or samples <= size + joins:
        return
    graphs = [m for m in model.modules() if isinstance(m, Graph) and m.topology.state_tags]
    if not graphs or _resets(plan, model):
        return
    tags = ", ".join(map(repr, graphs[0].topology.state_tags))
    raise ValueError(
        f"the graph carries {tags} from one batch to the next, and the last batch of an epoch has "
        f"{size + 1 if joins else left} samples where the others have {size}: leave it out with "
        ".loader_options(drop_last=True), call reset_state() of the graph in the training "
        "function, or keep it with .loader_options(drop_last=False) if what is carried has no "
        "row per sample"
    )


_RESETS = {"reset_state", "set_carried_state"}


def _resets(plan: TrainingPlan, model: nn.Module) -> bool:
    functions = [plan.train_fn, *(getattr(one, "on_step_end", None) for one in plan.callbacks)]
    functions += [
        type(module).forward
        for module in model.modules()
        if not type(module).__module__.startswith(("torch.", "flodl."))
    ]
    return any(_RESETS & set(_names(function, set())) for function in functions)


def _names(function: Any, seen: set[int]) -> Iterator[str]:
    """Yield the names that a function uses, and those in functions it calls by name."""
    while isinstance(function, functools.partial | MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if not isinstance(function, FunctionType | type):
        function = getattr(type(function), "__call__", None)  # noqa: B004 - not whether, which
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    if function.__module__.startswith(("torch.", "flodl.")):
        return
    seen.add(id(function))
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name in chain.from_iterable(code.co_names for code in nested(function.__code__)):
        yield name
        yield from _names(function.__globals__.get(name), seen)
    for cell in cells.values():
        try:
            yield from _names(cell.cell_contents, seen)
        except ValueError:  # not filled yet
            continue


def warn_of_unfinished_schedule(schedule: Schedule, steps: int) -> None:
    """Warn if a schedule that knows its length is longer than the ``steps`` of the run."""
    total = getattr(schedule, "total_steps", None)
    if isinstance(total, int) and total > steps:
        log.warning(
            f"the learning-rate schedule is made for {total} optimizer steps and the run makes "
            f"{steps}: it never gets to its end; count its steps from the run (a warm-up adds to "
            "those of the schedule inside it)"
        )


def warn_of_single_sample(model: nn.Module, samples: int, batch_size: int, *, kept: bool) -> None:
    """Warn if the last batch of an epoch is one sample and the model uses batch statistics.

    Args:
        model: The model that is trained.
        samples: Number of samples in the data set.
        batch_size: Samples per batch.
        kept: Whether an incomplete last batch is trained on.
    """
    if not kept or samples % batch_size != 1 or batch_size == 1:
        return
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.training
    ]
    if names:
        log.warning(
            f"the last batch of an epoch is a single sample ({samples} samples, batch_size="
            f"{batch_size}) and {names[0] or 'the model'} normalises over the batch: its variance "
            "is 0; let it join the batch before (join_remainder=True, as it is by default), leave "
            "it out (drop_last=True) or choose another batch size"
        )
