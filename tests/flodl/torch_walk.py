"""What a process holds of torch, and its own settings, at one moment: to see what has changed."""

from __future__ import annotations

import builtins
import gc
import os
import signal
import sys
import threading
import warnings
from types import FunctionType, ModuleType
from typing import Any

import torch


class Walk:
    """Everything of torch by its name. It stays alive, so the same object keeps its identity."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._seen: set[int] = set()
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "torch" and issubclass(type(module), ModuleType):
                self._take_all(name, module)
        self.process = settings()

    def changes(self) -> set[str]:
        """What differs now: names of torch, and settings of the process."""
        now = Walk()
        names = {name for name, one in self.found.items() if now.found.get(name) is not one}
        # What was added to a class or to a function. A module may import more.
        names |= {
            name
            for name in now.found.keys() - self.found.keys()
            if issubclass(type(self.found.get(name.rpartition(".")[0])), type | FunctionType)
        }
        return names | {name for name, one in self.process.items() if now.process[name] != one}

    def _take_all(self, name: str, owner: Any) -> None:
        for key, value in list(vars(owner).items()):
            if not issubclass(type(value), ModuleType):
                self._take(f"{name}.{key}", value)

    def _take(self, name: str, value: Any) -> None:
        self.found[name] = value
        kind = type(value)  # isinstance would ask the value, and some of torch import more then
        if issubclass(kind, staticmethod | classmethod):
            self._take(f"{name}.__func__", value.__func__)
        elif issubclass(kind, property):
            for part in ("fget", "fset", "fdel"):
                self._take(f"{name}.{part}", getattr(value, part))
        elif issubclass(kind, FunctionType) and id(value) not in self._seen:
            self._seen.add(id(value))
            for part in ("__code__", "__defaults__", "__kwdefaults__", "__closure__"):
                self.found[f"{name}.{part}"] = getattr(value, part)
            self._take_all(name, value)
        elif issubclass(kind, type) and value.__module__.partition(".")[0] == "torch":
            name = f"{value.__module__}.{value.__qualname__}"
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self.found[name] = value
                self._take_all(name, value)


def settings() -> dict[str, Any]:
    """The settings that all code of this process shares."""
    return {
        "finders of modules": [list(sys.meta_path), list(sys.path_hooks), builtins.__import__],
        "environment": dict(os.environ),
        "hooks": [sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook],
        "signals": [signal.getsignal(one) for one in signal.valid_signals()],
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), *gc.callbacks],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "warnings": list(warnings.filters),
        "threads of torch": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "numbers of torch": [torch.get_default_dtype(), torch.get_float32_matmul_precision()],
        "gradients": torch.is_grad_enabled(),
        "algorithms": [
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.mkldnn.enabled,
            torch.backends.cudnn.benchmark,
        ],
    }
