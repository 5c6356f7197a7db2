"""What a training function changes beside the model it is given.

A teacher that follows the model, a second optimizer, a counter, the next item of an iterator: a
step that is tried on copies would move them, too, and the training would not be the same any more.
"""

from __future__ import annotations

import functools
import logging
import random
import sysconfig
import types
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from flodl.train.metrics import record_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

_MOST = 20_000
"""Objects that are looked at; a function that can reach more is taken for one that changes some."""

_SAMPLES = 1024
"""Elements of a tensor that are compared."""

_INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})
_UNCHANGING = (types.ModuleType, type, types.BuiltinFunctionType, logging.Logger, torch.device)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@final
class Surroundings:
    """All that a training function can reach but must not change, as it is now.

    Looks through closures, defaults, global names, bound objects and hooks of the model, down to
    tensors, generators and plain values.

    Args:
        train_fn: What is looked through.
        model: Left out, as is all inside it: it may change.
        optimizer: Left out as well.
    """

    def __init__(
        self, train_fn: Callable[..., Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self._roots: list[tuple[str, Any]] = [("train_fn", train_fn)]
        for name, module in model.named_modules():
            self._roots += [
                (f"a hook of {name or 'the model'}", getattr(module, h)) for h in _HOOKS
            ]
        inside: Iterable[object] = chain(model.modules(), model.parameters(), model.buffers())
        self._left_out = [optimizer, *inside]
        self._before = self._look()

    def changed(self) -> str:
        """Return where something has changed since; empty if nothing has."""
        now = self._look()
        for path, value in now.items():
            if path not in self._before or self._before[path] != value:
                return path
        return next((path for path in self._before if path not in now), "")

    def _look(self) -> dict[str, object]:
        known = {id(item) for item in self._left_out}
        kept: list[object] = []  # so that no address is used twice
        values: dict[str, object] = {}
        waiting = list(self._roots)
        while waiting:
            path, item = waiting.pop()
            if item is None or isinstance(item, bool | int | float | complex | str | bytes):
                values[path] = repr(item)  # nan equals itself in this form
                continue
            if id(item) in known or isinstance(item, _UNCHANGING):
                continue
            known.add(id(item))
            kept.append(item)
            if len(kept) > _MOST:
                values[path] = object()
                break
            value = _value(item)
            if value is not None:
                values[path] = value
            waiting += [(f"{path}{step}", part) for step, part in _parts(item)]
        return values


def _value(item: Any) -> object:
    """What there is to compare about an object itself, beside its parts; None for nothing."""
    match item:
        case Tensor():
            return (
                item.data_ptr() if item.layout == torch.strided else 0,
                item._version,
                _some(item),
            )
        case np.ndarray():
            return item.shape, item.flat[:: max(1, item.size // _SAMPLES)].tobytes()
        case torch.Generator():
            return item.get_state().numpy().tobytes()
        case random.Random():
            return item.getstate()
        case np.random.Generator():
            return repr(item.bit_generator.state)
        case np.random.RandomState():
            return repr(item.get_state(legacy=False))
        case set() | frozenset():
            return tuple(sorted(map(repr, item)))
        case Iterator():
            return object()  # nobody can tell, so never the same
        case _:
            return None


def _some(tensor: Tensor) -> bytes:
    """A sample of the elements: writes that bypass the version counter show there."""
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return b""
    count = min(tensor.numel(), _SAMPLES)
    flat = torch.linspace(0, tensor.numel() - 1, count, dtype=torch.float64, device=tensor.device)
    at = torch.unravel_index(flat.long(), tensor.shape) if tensor.dim() else ()
    sample = tensor.detach()[at].reshape(-1).contiguous()
    return sample.view(torch.uint8).cpu().numpy().tobytes()


def _parts(item: Any) -> Iterable[tuple[str, Any]]:
    """The objects that an object holds, with what leads to each."""
    match item:
        case Tensor():
            return [(".grad", item.grad)] if item.is_leaf and item.grad is not None else []
        case types.FunctionType():
            return _parts_of_function(item)
        case types.MethodType():
            return [("", item.__func__), (" of its object", item.__self__)]
        case functools.partial():
            return [("", item.func), (".args", item.args), (".keywords", item.keywords)]
        case np.ndarray() | set() | frozenset() | Iterator():
            return []
    found: list[tuple[str, Any]] = []
    if isinstance(item, dict):
        for number, (key, value) in enumerate(item.items()):
            found.append((f"[{key!r}]" if isinstance(key, str | int) else f"[{number}]", value))
    elif isinstance(item, list | tuple | deque):
        found += [(f"[{number}]", value) for number, value in enumerate(item)]
    found += [(f".{name}", value) for name, value in getattr(item, "__dict__", {}).items()]
    for kind in type(item).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if hasattr(item, name):
                found.append((f".{name}", getattr(item, name)))
    return found


def _parts_of_function(function: types.FunctionType) -> list[tuple[str, Any]]:
    code = function.__code__
    # Installed ones are trusted, as is record_scalar, which a trial diverts.
    if code.co_filename.startswith(_INSTALLED) or function is record_scalar:
        return []
    found = [(f".{name}", value) for name, value in vars(function).items()]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found.append((f" -> {name}", cell.cell_contents))
        except ValueError:
            continue  # not bound yet
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    found += [(f"'s default {number}", value) for number, value in enumerate(defaults)]
    names = _global_names(code)
    found += [(f" -> {n}", function.__globals__[n]) for n in names if n in function.__globals__]
    return found


def _global_names(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_global_names, inner))
