"""From which modules a name can be imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping


class Exports:
    """What the packages offer that is defined elsewhere.

    Only packages offer: what a module imports is for its own use. The stub of a package lists the
    names that it imports at their first use.

    Args:
        trees: File, relative to the folder that holds the package -> its syntax tree.
        package: Name of the package they belong to.
    """

    def __init__(self, trees: Mapping[str, ast.Module], package: str) -> None:
        self._offers: dict[tuple[str, str], tuple[str, str]] = {}
        for file, tree in trees.items():
            module = self.module_of(file)
            for statement in _imports(tree.body) if "/__init__.py" in file else ():
                source = _source(module, statement)
                if source.partition(".")[0] == package:
                    self._take(module, source, statement.names)
        self._places: dict[tuple[str, str], list[str]] = {}
        for module, name in self._offers:
            if not name.startswith("_"):
                self._places.setdefault(self._origin(module, name), []).append(module)

    @staticmethod
    def module_of(file: str) -> str:
        """The module that a file makes: ``flodl.graph`` for ``flodl/graph/__init__.py``."""
        return (
            file.removesuffix("i").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        )

    def shortest(self, module: str, name: str) -> str:
        """The shortest module to import a name from that ``module`` defines."""
        known = self._places.get((module, name), [])
        return min([module, *known], key=lambda place: (place.count("."), place))

    def _take(self, module: str, source: str, names: list[ast.alias]) -> None:
        for one in names:
            # Another name would be another thing to the reader.
            if one.asname in (None, one.name):
                self._offers[module, one.name] = source, one.name

    def _origin(self, module: str, name: str) -> tuple[str, str]:
        """Where a name comes from in the end; circles end where they begin."""
        seen = set()
        place = module, name
        while place in self._offers and place not in seen:
            seen.add(place)
            place = self._offers[place]
        return place


def _imports(body: list[ast.stmt]) -> Iterator[ast.ImportFrom]:
    """Imports, and those under ``if TYPE_CHECKING:`` of names that are loaded when asked for."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            yield from _imports(statement.body)


def _source(package: str, statement: ast.ImportFrom) -> str:
    """The module that an import in the ``__init__`` of a package reads from."""
    if not statement.level:
        return statement.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - statement.level + 1]
    return ".".join([*base, *([statement.module] if statement.module else [])])
