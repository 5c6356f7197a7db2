"""Torch's optimizers without torch's compiler, whose import takes as long as that of torch.

A new optimizer loads ``torch._dynamo``, and so does its first step. They do so only to tell the
compiler to skip some functions. Here this is postponed until other code loads the compiler. So a
compiled program is compiled as always.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from types import CodeType, FunctionType
from typing import Any, final

import torch
from torch.optim import Optimizer

COMPILER = "torch._dynamo"

_GUARDED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""Methods of optimizers that torch excludes from compiling, with ``torch._disable_dynamo``."""

_CACHE = "__dynamo_disable"
"""Where ``torch._disable_dynamo`` stores the function that it calls once the compiler is loaded."""

_STEP_NAMES = frozenset(
    f"torch {COMPILER} _dynamo cast Optimizer is_grad_enabled set_grad_enabled defaults "
    "graph_break".split()
)
"""The names in torch's wrapper of ``step``, in the version of the wrapper that is known here."""

_lock = threading.Lock()


def postpone_compiler() -> None:
    """Let optimizers load the compiler only when other code needs it.

    Does nothing if the compiler is already loaded, or if this version of torch excludes the methods
    of its optimizers in another way.
    """
    with _lock:
        if COMPILER in sys.modules or any(isinstance(one, _Restorer) for one in sys.meta_path):
            return
        guarded = [getattr(getattr(Optimizer, name), "__wrapped__", None) for name in _GUARDED]
        steps = list(_wrapped_steps())
        if not steps or not all(
            isinstance(one, FunctionType) and not hasattr(one, _CACHE) for one in guarded
        ):
            return
        sys.meta_path.insert(0, _Restorer(guarded, [(one, one.__code__) for one in steps]))
        for one in guarded:
            setattr(one, _CACHE, one)
        for one in steps:
            one.__code__ = _LEAN


@final
class _Restorer(MetaPathFinder):
    """Restores everything at the moment when the compiler is imported.

    Args:
        guarded: Functions whose cache was filled.
        steps: Wrappers of ``step``, each with its own code.
    """

    def __init__(
        self, guarded: Sequence[Any], steps: Sequence[tuple[FunctionType, CodeType]]
    ) -> None:
        self._guarded, self._steps = guarded, steps

    def find_spec(self, fullname: str, *_: object, **__: object) -> None:
        """Find nothing; other finders do. See :class:`importlib.abc.MetaPathFinder`."""
        if fullname != COMPILER:
            return
        with _lock:
            if self not in sys.meta_path:
                return
            sys.meta_path.remove(self)
            for one in self._guarded:
                delattr(one, _CACHE)
            for one, code in self._steps:
                one.__code__ = code


def _wrapped_steps() -> Iterator[FunctionType]:
    """Yield the wrappers that torch puts around ``step`` of its optimizers, if they are known."""
    kinds: list[Any] = list(vars(torch.optim).values())
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Optimizer):
            step: Any = vars(kind).get("step")
            while step is not None and not _is_wrapper(step):
                step = getattr(step, "__wrapped__", None)
            if step is not None:
                yield step


def _is_wrapper(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return (
        code is not None
        and code.co_name == _LEAN.co_name
        and code.co_freevars == _LEAN.co_freevars
        and code.co_filename == sys.modules[Optimizer.__module__].__file__
        and frozenset(code.co_names) <= _STEP_NAMES
    )


def _lean_code() -> CodeType:
    """The code of torch's wrapper of ``step`` without the compiler.

    Its global name ``torch`` exists in ``torch.optim.optimizer``, too. A function takes the code of
    another one only if both close over the same variables.
    """
    func: Any = None

    def _use_grad(*args: Any, **kwargs: Any) -> Any:
        previous = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(previous)

    return _use_grad.__code__


_LEAN = _lean_code()
