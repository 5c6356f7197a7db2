"""FlowBuilder: a network described from input to output, checked while it is described."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Concatenate, ParamSpec, Self, TypeVar, cast

from torch import nn

from flodl.errors import BuildError
from flodl.graph.graph import Graph
from flodl.graph.modules import ModuleLike, as_module, modules
from flodl.graph.topology import (
    ENTRY,
    Call,
    Combine,
    MergeOp,
    Node,
    Operation,
    Topology,
    Wire,
)

_P = ParamSpec("_P")
_B = TypeVar("_B", bound="FlowBuilder")

# Looking a module up under one of these would find torch's own attribute instead.
_TORCH_ATTRIBUTES = frozenset(dir(nn.Module()))


def _fluent(
    method: Callable[Concatenate[FlowBuilder, _P], None],
) -> Callable[Concatenate[_B, _P], _B]:
    """Make a building step fluent: the first misuse is recorded, later steps do nothing."""

    @functools.wraps(method)
    def step(self: _B, *args: _P.args, **kwargs: _P.kwargs) -> _B:
        self._refuse_if_spent(method.__name__)
        if self._misuse is None:
            self._here = _caller()
            try:
                method(self, *args, **kwargs)
            except (BuildError, ValueError) as error:
                self._misuse = f"{self._here}: {method.__name__}: {error}"
        return self

    return cast("Callable[Concatenate[_B, _P], _B]", step)


def _caller() -> str:
    """``file:line`` of the nearest frame outside this package."""
    package = __name__.rpartition(".")[0]
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(package):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class FlowBuilder:
    """Describes a graph as a stream of values that flows through modules.

    Methods change the builder and return it. The first misuse is remembered with the place of the
    call, later calls do nothing, and :meth:`build` raises it; after a build the builder is spent.
    Wherever a module is expected, a function of tensors serves as well.

    ``FlowBuilder.from_(module)`` feeds the graph's input to ``module``; ``FlowBuilder()`` starts
    with an identity.

    Example:
        >>> graph = FlowBuilder.from_(nn.Linear(4, 8)).through(nn.GELU()).tag("h").build()
    """

    def __init__(self) -> None:
        self._begin()
        self.through(nn.Identity())

    @classmethod
    def from_(cls, module: ModuleLike) -> Self:
        """Start a flow whose input feeds ``module``."""
        builder = cls.__new__(cls)
        builder._begin()
        builder.through(module)
        return builder

    def _begin(self) -> None:
        self._nodes: list[Node] = []
        self._modules: dict[int, nn.Module] = {}
        self._streams: list[int] = [ENTRY]
        self._split_at = ""
        self._names: dict[str, int] = {}
        self._tags: dict[str, int] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        self._places: dict[str, str] = {}
        self._label: str | None = None
        self._here = ""
        self._misuse: str | None = None
        self._spent = False

    # --- Steps -----------------------------------------------------------------------------

    @_fluent
    def through(self, module: ModuleLike, *, name: str | None = None) -> None:
        """Append a module to the stream.

        Args:
            module: Takes the stream's tensor and returns the next one.
            name: Fixes the module's prefix in the registry and in checkpoints.
        """
        self._streams = [self._call(module, self._stream(), name)]

    @_fluent
    def also(self, module: ModuleLike, *, name: str | None = None) -> None:
        """Add a module's output to the stream: ``x + module(x)``, a residual connection.

        Args:
            module: Keeps the shape of the stream, or broadcasts with it.
            name: Fixes the module's prefix; a following ``tag`` names the sum instead.
        """
        stream = self._stream()
        branch = self._call(module, stream, name)
        self._streams = [self._combine("add", MergeOp.ADD, [stream, branch])]

    @_fluent
    def also_with(self, skip: ModuleLike, main: ModuleLike) -> None:
        """Replace the stream by ``skip(x) + main(x)``: a residual connection with a projection."""
        stream = self._stream()
        branches = [self._call(skip, stream, None), self._call(main, stream, None)]
        self._streams = [self._combine("add", MergeOp.ADD, branches)]

    @_fluent
    def split(self, branches: Iterable[ModuleLike]) -> None:
        """Feed the stream to two or more modules; their outputs stay open until ``merge``."""
        stream = self._stream()
        parallel = modules(*branches)
        if len(parallel) < 2:
            raise BuildError(f"needs at least 2 branches, got {len(parallel)}; use through")
        self._streams = [self._call(module, stream, None) for module in parallel]
        self._split_at = self._here

    @_fluent
    def merge(self, how: MergeOp | str) -> None:
        """Join the open streams: ``MergeOp.ADD`` or ``"add"``, ``MergeOp.MEAN`` or ``"mean"``."""
        if len(self._streams) < 2:
            raise BuildError("there is only one stream; call split first")
        try:
            operation = MergeOp(how)
        except ValueError:
            known = " or ".join(repr(op.value) for op in MergeOp)
            raise BuildError(f"unknown operation {how!r}; use {known}") from None
        self._streams = [self._combine("merge", operation, self._streams)]

    @_fluent
    def tag(self, name: str) -> None:
        """Name the stream, so that ``Graph.tagged(name)`` returns its value.

        The first tag of a module also becomes its prefix in the registry and in checkpoints. A
        node may carry several tags.
        """
        self._claim_tag(name, self._stream())

    @_fluent
    def tag_group(self, name: str) -> None:
        """Name the open streams ``<name>_0``, ``<name>_1``, …, and the group ``<name>``."""
        if len(self._streams) < 2:
            raise BuildError("there is only one stream; use tag")
        _check_name(name)
        self._check_free(name)
        members = tuple(f"{name}_{index}" for index in range(len(self._streams)))
        for member, stream in zip(members, self._streams, strict=True):
            self._claim_tag(member, stream)
        self._groups[name] = members
        self._places[name] = self._here

    @_fluent
    def label(self, text: str) -> None:
        """Name the graph; the name enters neither checkpoint keys nor the structural hash."""
        if not isinstance(text, str) or not text or "." in text:
            raise BuildError(f"a label is a non-empty text without dots, not {text!r}")
        self._label = text

    def build(self) -> Graph:
        """Make the graph.

        Raises:
            BuildError: The first misuse recorded, with its place; open streams; two modules with
                the same prefix; or the builder has been built before.
        """
        self._refuse_if_spent("build")
        if self._misuse is not None:
            raise BuildError(self._misuse)
        if len(self._streams) > 1:
            raise BuildError(
                f"{self._split_at}: split: its {len(self._streams)} streams are still open; "
                "join them with merge"
            )
        topology = Topology(
            nodes=self._prefixed(),
            output=self._streams[0],
            tags=tuple(self._tags.items()),
            groups=tuple(self._groups.items()),
            label=self._label,
        )
        graph = Graph(topology, self._modules)
        self._spent = True
        return graph

    # --- Bookkeeping -----------------------------------------------------------------------

    def _refuse_if_spent(self, step: str) -> None:
        if self._spent:
            raise BuildError(f"{_caller()}: {step}: this builder has built its graph; start anew")

    def _stream(self) -> int:
        if len(self._streams) > 1:
            raise BuildError(
                f"{len(self._streams)} streams are open since {self._split_at}; merge them first"
            )
        return self._streams[0]

    def _call(self, module: ModuleLike, source: int, name: str | None) -> int:
        called = as_module(module)
        number = self._append(_kind_of(called), Call(), (Wire(source),))
        self._modules[number] = called
        if name is not None:
            _check_name(name)
            if name in self._names:
                raise BuildError(f"name {name!r} is taken, since {self._places[name]}")
            self._names[name] = number
            self._places.setdefault(name, self._here)
        return number

    def _combine(self, kind: str, how: MergeOp, sources: list[int]) -> int:
        wires = tuple(Wire(source, f"input_{index}") for index, source in enumerate(sources))
        return self._append(kind, Combine(how), wires)

    def _append(self, kind: str, operation: Operation, wires: tuple[Wire, ...]) -> int:
        self._nodes.append(Node(len(self._nodes) + 1, kind, operation, wires))
        return len(self._nodes)

    def _claim_tag(self, name: str, number: int) -> None:
        _check_name(name)
        self._check_free(name)
        self._tags[name] = number
        self._places.setdefault(name, self._here)

    def _check_free(self, name: str) -> None:
        if name in self._tags or name in self._groups:
            raise BuildError(f"tag {name!r} is taken, since {self._places[name]}")

    def _prefixed(self) -> tuple[Node, ...]:
        """The nodes with their prefixes: ``name=``, else the first tag, else the id."""
        chosen = {number: name for name, number in reversed(self._tags.items())}
        chosen.update((number, name) for name, number in self._names.items())
        owners: dict[str, Node] = {}
        for node in self._nodes:
            if node.number in self._modules:
                prefix = chosen.get(node.number, node.id)
                if prefix in owners:
                    raise BuildError(
                        f"{self._places.get(prefix, _caller())}: nodes {owners[prefix].id} and "
                        f"{node.id} would both be registered as {prefix!r}; rename one"
                    )
                owners[prefix] = node
        prefixes = {node.number: prefix for prefix, node in owners.items()}
        return tuple(replace(node, prefix=prefixes.get(node.number, "")) for node in self._nodes)


def _kind_of(module: nn.Module) -> str:
    kind = getattr(module, "flodl_name", type(module).__name__.lower())
    if not isinstance(kind, str) or not kind or "." in kind or "/" in kind:
        raise BuildError(f"flodl_name must be a text without dots and slashes, not {kind!r}")
    return kind


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name or "." in name or "/" in name:
        raise BuildError(f"a name is a non-empty text without dots and slashes, not {name!r}")
    if name in _TORCH_ATTRIBUTES:
        raise BuildError(f"{name!r} is an attribute of torch.nn.Module; choose another name")
