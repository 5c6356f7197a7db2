"""Each library with its kinds of options; a module here is a library."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.fdl.conformance.cell import Cell


def libraries() -> dict[str, list[Cell]]:
    """Name of a library -> its cells, in the order of the modules."""
    modules = [import_module(f"{__name__}.{one.name}") for one in iter_modules(__path__)]
    return {module.LIBRARY: module.CELLS for module in modules}
