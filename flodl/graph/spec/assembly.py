"""Make modules from their descriptions, one entry after the other.

An entry refers only to earlier entries, so a description cannot contain a cycle. Number and size of
the modules are known before memory is allocated: a first pass makes everything on torch's meta
device, where tensors have a shape but no memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from flodl.graph.base import GraphBase
from flodl.graph.spec.place import Place
from flodl.graph.spec.values import Vocabulary, decode
from flodl.graph.spec.wiring import read_wiring

CONTAINERS: tuple[type[nn.Module], ...] = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Classes described by their children, not by arguments."""

PRECISIONS = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}

DEEPEST = 100
"""Greatest depth of modules inside modules."""

# Limits: a description of a few kilobytes must not exhaust memory; real networks are far smaller.
_MOST_MODULES = 200_000
_MOST_TENSORS = 500_000
_MOST_LAYERS = 1_000


class Assembler:
    """Makes the modules of a description.

    Args:
        words: Names that the description may use.
        graph_class: Class of the graphs to make.
        max_elements: Largest total number of elements of all parameters and buffers; None for no
            limit.

    Attributes:
        modules: The modules made so far, by index of their entry.
    """

    def __init__(
        self, words: Vocabulary, graph_class: type[GraphBase], max_elements: int | None
    ) -> None:
        self.modules: list[nn.Module] = []
        self._words = words
        self._graph_class = graph_class
        self._max_elements = max_elements
        # Modules and levels below each entry, and below the current one. An entry may be used twice
        # by the next, that one twice by its next, and so on. Thirty tiny entries could then make a
        # thousand million modules for every walk over them.
        self._sizes: list[int] = []
        self._depths: list[int] = []
        self._size = self._depth = 1
        self._copies = 0
        self._seen: set[int] = set()
        self._elements = 0

    def add(self, entry: Place) -> nn.Module:
        """Make the module of the next entry.

        Raises:
            BuildError: The entry is malformed, too large, or its constructor fails.
        """
        self._size = self._depth = 1
        fields = entry.mapping()
        if "graph" in fields:
            module: nn.Module = self.graph(entry.fields("graph")["graph"])
        elif "children" in fields:
            module = self._container(entry.fields("class", "children"))
        else:
            module = self._layer(entry)
        self.modules.append(module)
        self._sizes.append(self._size)
        self._depths.append(self._depth)
        self._count(module, entry)
        return module

    def graph(self, place: Place) -> GraphBase:
        """Make a graph from the modules made so far.

        Raises:
            BuildError: Its wiring is malformed.
        """
        topology, node_modules = read_wiring(place, self._part)
        make: Any = self._graph_class
        graph: GraphBase = make(topology, node_modules)
        return graph

    def _container(self, fields: Mapping[str, Place]) -> nn.Module:
        cls = self._words.module_class(fields["class"])
        if cls not in CONTAINERS:
            raise fields["class"].wrong(f"{cls.__name__} is not described by its children")
        container = cls()
        for index, item in enumerate(fields["children"].items()):
            name, child = item.pair()
            key = name.name()
            if key in container._modules or (cls is nn.ModuleList and key != str(index)):
                raise name.wrong(f"{key!r} cannot be the name of child {index}")
            try:
                container.add_module(key, self._part(child))
            except KeyError as problem:
                raise name.wrong(str(problem)) from None
        return container

    def _layer(self, entry: Place) -> nn.Module:
        fields = entry.fields("class", optional=("arguments", "positional", "dtype"))
        cls = self._words.module_class(fields["class"])
        if cls in CONTAINERS:
            raise entry.wrong(f"{cls.__name__} is described by its children")
        if "positional" in fields and cls.__module__.startswith("torch."):
            raise fields["positional"].wrong(f"{cls.__name__} takes its arguments by name")
        positional = [
            decode(item, self._part, self._words)
            for item in (fields["positional"].items() if "positional" in fields else ())
        ]
        arguments = fields["arguments"].mapping() if "arguments" in fields else {}
        if "device" in arguments:
            raise arguments["device"].wrong("a description names no device; torch.device does")
        named = {name: decode(place, self._part, self._words) for name, place in arguments.items()}
        self._count_layers(arguments)
        module = _construct(cls, positional, named, entry)
        if "dtype" in fields:
            module.to(PRECISIONS[fields["dtype"].choice(tuple(PRECISIONS))])
        return module

    def _part(self, place: Place) -> nn.Module:
        """The module of an earlier entry, counted as part of the current one."""
        if not self.modules:
            raise place.wrong("refers to a module, and none is described before this one")
        index = place.integer(0, len(self.modules) - 1)
        self._size += self._sizes[index]
        self._depth = max(self._depth, self._depths[index] + 1)
        if self._size > _MOST_MODULES:
            raise place.wrong(f"makes it more than {_MOST_MODULES:,} modules")
        if self._depth > DEEPEST:
            raise place.wrong(f"makes it more than {DEEPEST} levels of modules")
        return self.modules[index]

    def _count_layers(self, arguments: Mapping[str, Place]) -> None:
        """Count the copies that constructors with an argument such as ``num_layers`` make."""
        for name, place in arguments.items():
            if name.startswith("num_") and name.endswith("layers") and type(place.value) is int:
                self._copies += self._size * place.integer(0, _MOST_LAYERS)
                if self._copies > _MOST_MODULES:
                    raise place.wrong(f"makes it more than {_MOST_MODULES:,} modules")

    def _count(self, module: nn.Module, entry: Place) -> None:
        for tensor in (*module.parameters(), *module.buffers()):
            if is_lazy(tensor):
                raise entry.wrong("is a lazy layer, whose size is not known beforehand")
            if id(tensor) not in self._seen:
                self._seen.add(id(tensor))
                self._elements += tensor.numel()
        if self._max_elements is not None and self._elements > self._max_elements:
            raise entry.wrong(
                f"parameters and buffers up to here have {self._elements:,} elements, and no more "
                f"than {self._max_elements:,} are allowed; pass a larger max_elements= if you "
                "trust the description"
            )
        if len(self._seen) > _MOST_TENSORS:
            raise entry.wrong(f"there are more than {_MOST_TENSORS:,} tensors up to here")


def _construct(
    cls: type[nn.Module], positional: list[Any], named: Mapping[str, Any], entry: Place
) -> nn.Module:
    try:
        return cls(*positional, **named)
    except Exception as problem:
        if torch.get_default_device().type == "meta" and not cls.__module__.startswith(
            ("torch.", "flodl.")
        ):
            # A custom class may read numbers in its constructor; meta tensors have none.
            with torch.device("cpu"):
                return _construct(cls, positional, named, entry)
        raise entry.wrong(
            f"{cls.__name__} cannot be made of these arguments: {type(problem).__name__}: {problem}"
        ) from problem


@contextmanager
def without_memory() -> Iterator[None]:
    """Make modules on the meta device and keep the state of the random generators."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def described_precision() -> Iterator[None]:
    """Make modules in float32, whatever the default is; other dtypes are part of a description."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def tie(graph: nn.Module, groups: Place) -> None:
    """Make parameters with several names the same tensor.

    Args:
        graph: Made from the description.
        groups: Lists of dotted names; the first of each list gives its parameter to the others.

    Raises:
        BuildError: A name does not exist, or shapes or dtypes differ.
    """
    for group in groups.items():
        names = group.items()
        if len(names) < 2:
            raise group.wrong("must name two parameters or more")
        _, _, shared = _slot(graph, names[0])
        for place in names[1:]:
            owner, name, own = _slot(graph, place)
            if (own.shape, own.dtype) != (shared.shape, shared.dtype):
                raise place.wrong(
                    f"is {list(own.shape)} of {own.dtype} and cannot be the same parameter as "
                    f"{names[0].value!r:.80}, {list(shared.shape)} of {shared.dtype}"
                )
            owner._parameters[name] = shared


def _slot(graph: nn.Module, place: Place) -> tuple[nn.Module, str, nn.Parameter]:
    """The module that holds a parameter, the parameter's name there, and the parameter."""
    *path, name = place.text().split(".")
    owner: nn.Module | None = graph
    for step in path:
        # Not getattr: a prefix may have the name of a method of the graph.
        owner = owner._modules.get(step) if owner is not None else None
    parameter = owner._parameters.get(name) if owner is not None else None
    if owner is None or parameter is None or is_lazy(parameter):
        raise place.wrong(f"there is no parameter {place.value!r:.80}")
    return owner, name, parameter


def ties_of(graph: nn.Module) -> list[list[str]]:
    """The names of parameters shared by several modules, grouped; a module counts once."""
    names: dict[int, list[str]] = {}
    for path, module in graph.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), []).append(f"{path}.{name}" if path else name)
    return [group for group in names.values() if len(group) > 1]


def shared_modules(graph: nn.Module) -> list[list[str]]:
    """The paths of modules that occur in several places, grouped."""
    paths: dict[int, list[str]] = {}
    for path, module in graph.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(path)
    return [group for group in paths.values() if len(group) > 1]
