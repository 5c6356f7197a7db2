"""Import public names when they are first used, so that importing a package is quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flodl import collector

Names = Mapping[str, Sequence[str]]


def lazily(
    package: str, names: Names, modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Args:
        package: The ``__name__`` of the package.
        names: Public names, grouped by the submodule that defines them.
        modules: Submodules that are attributes of the package; each is imported when first used.
    """
    home = {name: module for module, group in names.items() for name in group}

    def __getattr__(name: str) -> Any:  # noqa: N807 - the name it gets in the package
        if name not in home and name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with collector.paused():
            module = importlib.import_module(f"{package}.{home.get(name, name)}")
        if name in modules:
            return module
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*vars(sys.modules[package]), *home, *modules})

    return __getattr__, __dir__
