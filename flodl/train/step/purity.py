"""Steps that look as if they could be declared pure, and what that would bring, measured on a copy.

Nothing of the training takes part: a copy of model and optimizer computes some steps. That calls
the code of the user, so it is done only where this code looks as if it changed nothing else.
"""

from __future__ import annotations

import copy
import dis
import math
from collections.abc import Iterator
from dataclasses import replace
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from flodl.checkpoint.generators import generator_states, generators_kept, same
from flodl.train.metrics import RecordedValues, recording_into
from flodl.train.step.capturing import captures_on, refusal_beside_plain_steps
from flodl.train.step.live_steps import Measured, Steps, Taken, measure, step_clock
from flodl.train.step.step_values import loss_log
from flodl.train.step.tuned import TunedEngine
from flodl.train.step.tuning import has_hooks

if TYPE_CHECKING:
    from flodl.train.step.tuning import Tuning

_READS = {"item", "tolist", "numpy", "cpu", "open", "print", "input", "write", "put"}
"""Names that read from the device, or change something outside of a step."""

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))

_VALUES = (
    *(int, float, str, bytes, NoneType, torch.dtype, torch.device),
    *(type, ModuleType, BuiltinFunctionType),
)
"""Kinds of values that a step may use and cannot change."""

_LIBRARIES = ("torch", "flodl", "math", "builtins", "typing", "functools")
_STORES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR")


class Gain(NamedTuple):
    """What a declaration would bring.

    Attributes:
        tuning: The way that is then possible.
        ratio: Time of a step that way by the time of a step now.
    """

    tuning: Tuning
    ratio: float


def doubt(model: nn.Module, train_fn: object) -> str:
    """Return why a step may change something beside the model and its optimizer; empty if not."""
    if has_hooks(model):
        return "the model has hooks"
    has_state = getattr(model, "has_state", None)
    if callable(has_state) and has_state():
        return "the model keeps state between calls"
    for module in model.modules():
        kind = type(module)
        if not _is_of_a_library(kind):
            for name in vars(module).keys() - _OF_EVERY_MODULE:
                if not _is_fixed(value := getattr(module, name)):
                    return f"{kind.__name__}.{name} is a {type(value).__name__}"
    seen: set[object] = set()
    left = [train_fn, *(type(module).forward for module in model.modules())]
    while left:
        function = left.pop()
        if function in seen or _is_of_a_library(function):
            continue
        seen.add(function)
        if not isinstance(function, FunctionType):
            return f"{type(function).__name__} {function!r} is not a plain function"
        name = function.__qualname__
        if reason := _doubt_of_code(function.__code__):
            return f"{name} {reason}"
        for word, value in _values(function):
            if isinstance(value, FunctionType):
                left.append(value)
            elif not _is_fixed(value):
                return f"{name} uses {word}, a {type(value).__name__}"
    return ""


def gain(
    engine: TunedEngine,
    batch: Any,
    *,
    compiles: bool,
    bar: float,
    block: int,
) -> Gain | str:
    """Measure on a copy what a pure step would bring.

    Args:
        engine: Of the training; its model and its optimizer are copied.
        batch: A batch of the training.
        compiles: Whether the training is long enough to compile.
        bar: The ratio that decides.
        block: Steps that are measured together.

    Returns:
        The best way; or why there is none.
    """
    settings = replace(engine.settings, ledger=None, after_step=None, values=None, reduce=None)
    with generators_kept(), recording_into(RecordedValues()):
        own, its = copy.deepcopy((engine.model, engine.optimizer))
        shadow = TunedEngine(own, its, settings)
        before = generator_states()
        _taken(shadow, _one_step(), batch)
        if not same(before, generator_states()):
            return "a step draws random numbers"
        gains = []
        for way in _ways(shadow, engine.tuning, batch, compiles=compiles):
            trial = measure(
                shadow, engine.tuning, way, bar=bar, block=block, rounds=3, budget=math.inf
            )
            found = _taken(shadow, trial, batch)
            if found.ratio + found.noise <= bar:
                gains.append(Gain(way, found.ratio))
        shadow.close()
    return min(gains, key=lambda one: one.ratio, default="nothing that it allows is faster")


def _ways(shadow: TunedEngine, usual: Tuning, batch: Any, *, compiles: bool) -> Iterator[Tuning]:
    """Yield the ways that only a pure step allows, and for which this one is fit."""
    model, optimizer = shadow.model, shadow.optimizer
    device = next(model.parameters()).device
    if captures_on(device) and not refusal_beside_plain_steps(
        model, optimizer, shadow.settings, device
    ):
        yield replace(usual, captured=True)
    if compiles and not shadow.compile(batch):
        yield replace(usual, compiled=True, channels_last=False)


def _one_step() -> Steps[Measured]:
    yield
    return Measured(1.0, 0.0, 0.0)


def _taken(engine: TunedEngine, trial: Steps[Measured], batch: Any) -> Measured:
    """Take the steps of a trial."""
    device = next(engine.model.parameters()).device
    clock, losses = step_clock(device), loss_log(device, 0)
    next(trial)
    while True:
        clock.begin()
        engine.step(batch, losses)
        clock.end()
        try:
            trial.send(Taken(clock.take(), batch))
        except StopIteration as end:
            found: Measured = end.value
            return found


def _is_of_a_library(function: object) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] in _LIBRARIES


def _doubt_of_code(code: CodeType) -> str:
    for one in _nested(code):
        if read := _READS & set(one.co_names):
            return f"calls {min(read)}"
        for step in dis.get_instructions(one):
            if step.opname in _STORES:
                return f"sets {step.argval or 'an item'}"
            if step.opname == "STORE_DEREF" and step.argval in one.co_freevars:
                return f"sets {step.argval}"
    return ""


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _values(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the values from outside of a function that its code names."""
    for code in _nested(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents
    yield from ((name, value) for name, value in (function.__kwdefaults__ or {}).items())


def _is_fixed(value: object) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_fixed, value))
    return isinstance(value, _VALUES)
