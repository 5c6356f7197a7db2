"""Write descriptions of graphs; every entry is tested at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from flodl.errors import BuildError
from flodl.graph.base import GraphBase
from flodl.graph.spec.arguments import (
    constructor_arguments,
    difference,
    dtypes,
    one_precision,
)
from flodl.graph.spec.assembly import CONTAINERS, DEEPEST, PRECISIONS, Assembler
from flodl.graph.spec.place import Place
from flodl.graph.spec.values import UndescribableError, Vocabulary, encode
from flodl.graph.spec.wiring import write_wiring
from flodl.graph.topology import Node

_PRECISION_NAMES = {dtype: name for name, dtype in PRECISIONS.items()}


class Describer:
    """Writes the entries of a description; a module used several times is described once.

    Every entry is read back at once and its module made (without memory if the caller says so). If
    the result differs, it is refused here, where its node is known.

    Args:
        graph_class: The class of the graph and of the graphs nested in it.

    Attributes:
        entries: The description of every module; its parts come before it.
    """

    def __init__(self, graph_class: type[GraphBase]) -> None:
        self.entries: list[dict[str, Any]] = []
        self._graph_class = graph_class
        # Holds the modules too: the id of a deleted module may be reused.
        self._indices: dict[int, tuple[int, nn.Module]] = {}
        self._open: set[int] = set()
        # Testing an entry imports nothing: every class named in it is already loaded.
        self._words = Vocabulary()
        self.assembler = Assembler(self._words, graph_class, None)

    def graph(self, graph: GraphBase) -> dict[str, Any]:
        """Describe the wiring of a graph and all modules that it uses.

        Raises:
            UndescribableError: A node cannot be described; the message names it and the reason.
        """
        if type(graph) is not self._graph_class:
            raise UndescribableError(
                f"{type(graph).__name__} is a graph of another class than "
                f"{self._graph_class.__name__}"
            )
        return write_wiring(graph.topology, graph._modules, self._of_node)

    def _of_node(self, node: Node, module: nn.Module) -> int:
        try:
            return self.module(module)
        except UndescribableError as reason:
            raise UndescribableError(f"{node.id}: {reason}") from None

    def module(self, module: nn.Module) -> int:
        """Describe a module if it is not described yet.

        Returns:
            Index of its entry.

        Raises:
            UndescribableError: The module or a part of it cannot be described.
        """
        if id(module) in self._indices:
            return self._indices[id(module)][0]
        if id(module) in self._open:
            raise UndescribableError(f"{type(module).__name__} contains itself")
        if len(self._open) >= DEEPEST:
            raise UndescribableError(f"there are more than {DEEPEST} levels of modules")
        self._open.add(id(module))
        entry = self._entry(module)
        made = self._try_out(module, entry)
        self._match_precision(module, made, entry)
        self._open.remove(id(module))
        self.entries.append(entry)
        self._indices[id(module)] = len(self.entries) - 1, module
        return len(self.entries) - 1

    def _entry(self, module: nn.Module) -> dict[str, Any]:
        if isinstance(module, GraphBase):
            return {"graph": self.graph(module)}
        name = self._words.add(type(module))
        if type(module) in CONTAINERS:
            return {"class": name, "children": self._children(module)}
        arguments = self._within(module, lambda: constructor_arguments(module))
        entry: dict[str, Any] = {"class": name}
        if arguments.positional:
            entry["positional"] = [
                self._argument(module, "*", value) for value in arguments.positional
            ]
        entry["arguments"] = {
            key: self._argument(module, key, value) for key, value in arguments.named.items()
        }
        return entry

    def _children(self, module: nn.Module) -> list[list[Any]]:
        children: list[list[Any]] = []
        for name, child in module._modules.items():
            if child is None:
                raise UndescribableError(f"{type(module).__name__} has no module at {name!r}")
            describe = functools.partial(self.module, child)
            children.append([name, self._within(module, describe, name)])
        return children

    def _argument(self, module: nn.Module, name: str, value: object) -> Any:
        return self._within(module, lambda: encode(value, self.module, self._words.add), name)

    def _within(self, module: nn.Module, describe: Callable[[], Any], part: str = "") -> Any:
        """Call ``describe``; add the class and the argument or child to its error."""
        try:
            return describe()
        except UndescribableError as reason:
            where = f"{type(module).__name__}.{part}" if part else type(module).__name__
            raise UndescribableError(f"{where}: {reason}") from None

    def _try_out(self, module: nn.Module, entry: dict[str, Any]) -> nn.Module:
        try:
            made = self.assembler.add(Place(entry, type(module).__name__))
        except BuildError as problem:
            raise UndescribableError(str(problem)) from problem
        found = difference(module, made)
        if found is not None:
            raise UndescribableError(
                f"{type(module).__name__} made again of {entry.get('arguments', {})} is not the "
                f"same: {found}; give the class a method flodl_spec() that returns its "
                "constructor's arguments, and keep nothing else on it"
            )
        return made

    def _match_precision(self, module: nn.Module, made: nn.Module, entry: dict[str, Any]) -> None:
        if dtypes(made) == dtypes(module):
            return
        precision = one_precision(module)
        if precision in _PRECISION_NAMES and "class" in entry and "children" not in entry:
            made.to(precision)
            entry["dtype"] = _PRECISION_NAMES[precision]
        if dtypes(made) != dtypes(module):
            raise UndescribableError(
                f"{type(module).__name__} holds tensors of several dtypes that its constructor "
                "does not give it; cast the whole module, or make nodes of its parts"
            )
