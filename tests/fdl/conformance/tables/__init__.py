"""Each library with its kinds of options; a module here is a library."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from tests.fdl.conformance.cell import Cell


def _modules() -> list[ModuleType]:
    return [import_module(f"{__name__}.{one.name}") for one in iter_modules(__path__)]


def libraries() -> dict[str, list[Cell]]:
    """Name of a library -> its cells, in the order of the modules."""
    return {module.LIBRARY: module.CELLS for module in _modules()}


def files() -> dict[str, dict[str, str]]:
    """Name of a library -> the files that stand beside each of its programs."""
    return {module.LIBRARY: getattr(module, "FILES", {}) for module in _modules()}
