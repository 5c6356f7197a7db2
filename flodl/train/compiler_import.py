"""Torch's optimizers without torch's compiler, whose import takes as long as that of torch.

A new optimizer loads ``torch._dynamo``, and so does its first step. They do so only to tell the
compiler to skip some functions. Here this is postponed until other code loads the compiler. So a
compiled program is compiled as always.

It begins when a program imports the ``Trainer`` or ``Ddp``, because such a program trains with
flodl. Its own optimizers are included, also those made before the builder is used. A program that
uses only other parts of flodl keeps torch as it comes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from types import CodeType, FunctionType
from typing import Any, final

import torch
from torch.optim import Optimizer

COMPILER = "torch._dynamo"

KNOWN_VERSIONS = ((2, 8), (2, 14))
"""The oldest and the newest version of torch whose optimizers are known here."""

_GUARDED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""Methods of optimizers that torch excludes from compiling, with ``torch._disable_dynamo``."""

_CACHE = "__dynamo_disable"
"""Where ``torch._disable_dynamo`` stores the function that it calls once the compiler is loaded."""

_STEP_NAMES = frozenset(
    f"torch {COMPILER} _dynamo cast Optimizer is_grad_enabled set_grad_enabled defaults "
    "graph_break".split()
)
"""The names in torch's wrapper of ``step``, in the versions of the wrapper that are known here."""

_lock = threading.Lock()
_restorer: _Restorer | None = None
"""Of this process; it stays here when it has restored everything, so that none follows it."""


def postpone_compiler() -> None:
    """Let optimizers load the compiler only when other code needs it.

    Call it again when a program may have defined another class of optimizers. Does nothing if the
    compiler is already loaded, or if this version of torch is unknown or excludes the methods of
    its optimizers in another way.
    """
    global _restorer
    with _lock:
        if COMPILER in sys.modules or not _is_known_version():
            return
        if _restorer is None:
            guarded = [getattr(getattr(Optimizer, name), "__wrapped__", None) for name in _GUARDED]
            if not all(
                isinstance(one, FunctionType) and not hasattr(one, _CACHE) for one in guarded
            ):
                return
            if not any(_wrapped_steps()):
                return
            _restorer = _Restorer(guarded)
            sys.meta_path.insert(0, _restorer)
        _restorer.take(_wrapped_steps())


def _is_known_version() -> bool:
    """Whether this version of torch is between the known ones."""
    oldest, newest = KNOWN_VERSIONS
    try:
        first, second = (int(part) for part in torch.__version__.split(".")[:2])
    except ValueError:
        return False
    return oldest <= (first, second) <= newest


@final
class _Restorer(MetaPathFinder):
    """Restores everything at the moment when the compiler is imported.

    Args:
        guarded: Functions whose cache it fills.
    """

    def __init__(self, guarded: Sequence[Any]) -> None:
        self._guarded = guarded
        self._steps: list[tuple[FunctionType, CodeType]] = []
        for one in guarded:
            setattr(one, _CACHE, one)

    def take(self, steps: Iterable[FunctionType]) -> None:
        """Replace the code of wrappers of ``step``, unless everything is restored already."""
        if self not in sys.meta_path:
            return
        for one in steps:
            self._steps.append((one, one.__code__))
            one.__code__ = _LEAN

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
    """Yield the wrappers that torch puts around ``step`` of optimizers, if they are known.

    Wrappers that are replaced already are not among them. The optimizers of the program are.
    """
    kinds: list[Any] = [Optimizer]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
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
