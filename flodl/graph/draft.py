"""A graph under construction: nodes, tags and references, and all checks of how they fit."""

from __future__ import annotations

import keyword
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from torch import Tensor, nn

from fdl.base.suggest import nearest
from flodl.errors import BuildError
from flodl.graph.base import GraphBase
from flodl.graph.choices import GateNode, SwitchNode
from flodl.graph.codegen import Initial
from flodl.graph.modules import ModuleLike, as_module, delivered, port_style, ref_style
from flodl.graph.nodes import LoopNode
from flodl.graph.topology import (
    ENTRY,
    REF,
    Call,
    Gate,
    Loop,
    Node,
    Operation,
    Port,
    RefStyle,
    StateRead,
    Switch,
    Topology,
    Wire,
)

# A module registered under one of these names would be hidden by torch's own attribute.
_TORCH_ATTRIBUTES = frozenset(dir(nn.Module()))


class Draft:
    """The parts of a graph under construction.

    Attributes:
        here: ``file:line`` of the current step.
        tags: Node number of every tag.
        groups: Tags of every group.
        internal: Tags hidden from parents, with the place that hides them.
        inputs: Names of the graph's inputs, the entry first.
        label: Name of the graph.
        optional: Auxiliary inputs that a call may omit.
        passing: Tags whose values are not kept.
    """

    def __init__(self) -> None:
        self.here = ""
        self.tags: dict[str, int] = {}
        self.groups: dict[str, tuple[str, ...]] = {}
        self.internal: dict[str, str] = {}
        self.inputs: list[str] = ["input"]
        self.label: str | None = None
        self.optional: set[str] = set()
        self.passing: set[str] = set()
        self._nodes: list[Node] = []
        self._modules: dict[int, nn.Module] = {}
        self._names: dict[str, int] = {}
        self._places: dict[str, str] = {}
        self._built_at: dict[int, str] = {}
        self._initials: dict[int, Initial] = {}
        self._forks: list[int] = []

    # --- Nodes -----------------------------------------------------------------------------

    def add(self, kind: str, operation: Operation, wires: Iterable[Wire]) -> int:
        """Append a node without a module; returns its number."""
        self._nodes.append(Node(len(self._nodes) + 1, kind, operation, tuple(wires)))
        self._built_at[len(self._nodes)] = self.here
        return len(self._nodes)

    def call(self, module: ModuleLike, source: int, name: str | None) -> int:
        """Append a node that calls a module."""
        called = as_module(module)
        return self.block(kind_of(called), Call(), called, source, name)

    def block(
        self, kind: str, operation: Operation, module: nn.Module, source: int, name: str | None
    ) -> int:
        """Append a node with a module and any operation."""
        self._check_free_name(name)
        number = self.add(kind, operation, (Wire(source),))
        self._modules[number] = module
        if name is not None:
            self._names[name] = number
            self._places.setdefault(name, self.here)
        return number

    def loop(
        self,
        operation: Loop,
        body: nn.Module,
        cond: nn.Module | None,
        source: int,
        name: str | None,
    ) -> int:
        """Append a loop."""
        if operation.kind != "for" and not operation.batch:
            _refuse_carried("body", body, f"batch_{operation.kind}_cond")
        module = LoopNode(body, cond, operation, self._next_id("loop"))
        return self.block("loop", operation, module, source, name)

    def gate(
        self,
        router: nn.Module,
        experts: Sequence[nn.Module],
        top_k: int | None,
        source: int,
        name: str | None,
    ) -> int:
        """Append a gate."""
        operation = Gate(len(experts), top_k)
        for index, expert in enumerate(experts if top_k is not None else ()):
            _refuse_carried(f"experts.{index}", expert, "a gate without top_k")
        module = GateNode(router, experts, operation, self._next_id("gate"))
        return self.block("gate", operation, module, source, name)

    def switch(
        self,
        router: nn.Module,
        branches: Sequence[nn.Module],
        batch: bool,
        source: int,
        name: str | None,
    ) -> int:
        """Append a switch."""
        operation = Switch(len(branches), batch)
        for index, branch in enumerate(() if batch else branches):
            _refuse_carried(f"branches.{index}", branch, "batch_switch")
        module = SwitchNode(router, branches, operation, self._next_id("switch"))
        return self.block("switch", operation, module, source, name)

    def fork(self, module: ModuleLike, source: int, name: str | None) -> int:
        """Append a side branch; a branch without a tag gives a warning at the end."""
        number = self.call(module, source, name)
        self._forks.append(number)
        return number

    def port(self, name: str) -> None:
        """Append an auxiliary input; it gets a tag with its name."""
        if name in self.inputs:
            raise BuildError(f"the graph has an input {name!r} already: {', '.join(self.inputs)}")
        self.check_free_tag(name)
        self.claim_tag(name, self.add("input", Port(name), ()))
        self.inputs.append(name)

    def name_entry(self, name: str) -> None:
        """Rename the entry; its default name is ``input``."""
        check_name(name)
        if name in self.inputs[1:]:
            raise BuildError(f"the graph has an input {name!r} already: {', '.join(self.inputs)}")
        self.inputs[0] = name

    def _next_id(self, kind: str) -> str:
        return f"{kind}_{len(self._nodes) + 1}"

    # --- Tags ------------------------------------------------------------------------------

    def claim_tag(self, name: str, number: int) -> None:
        """Give a node a tag."""
        check_name(name)
        self.check_free_tag(name)
        if number == ENTRY:
            raise BuildError("there is nothing to tag yet")
        self.tags[name] = number
        self._places.setdefault(name, self.here)

    def claim_group(self, name: str, numbers: Sequence[int]) -> None:
        """Tag several nodes ``<name>_0``, ``<name>_1``, … and record them as a group."""
        check_name(name)
        self.check_free_tag(name)
        members = tuple(f"{name}_{index}" for index in range(len(numbers)))
        for member in members:
            self.check_free_tag(member)
        for member, number in zip(members, numbers, strict=True):
            self.claim_tag(member, number)
        self.groups[name] = members
        self._places[name] = self.here

    def check_free_tag(self, name: str) -> None:
        """Refuse a tag that already exists."""
        if name in self.tags or name in self.groups:
            raise BuildError(f"tag {name!r} is taken, since {self._places[name]}")

    def _check_free_name(self, name: str | None) -> None:
        if name is None:
            return
        check_name(name)
        if name in self._names:
            raise BuildError(f"name {name!r} is taken, since {self._places[name]}")

    # --- References ------------------------------------------------------------------------

    def refer(self, target: int, tags: Sequence[str], init: Mapping[str, Initial]) -> None:
        """Pass tagged values to a node by name.

        An existing tag becomes a wire of the same pass; any other tag becomes carried state.
        """
        node = self._nodes[target - 1]
        style = self._style_of(node)
        wires = list(node.wires)
        for tag in tags:
            port = f"{REF}{tag}"
            if any(wire.port == port for wire in wires):
                raise BuildError(f"{node.id} already receives {tag!r}")
            if tag in self.tags:
                if tag in init:
                    raise BuildError(
                        f"init= is for values carried from call to call, and {tag!r} is read in "
                        "the same call: its tag comes before this step"
                    )
                wires.append(Wire(self.tags[tag], port))
            else:
                check_name(tag)
                if tag in init and not (isinstance(init[tag], Tensor) or callable(init[tag])):
                    raise BuildError(
                        f"init={{{tag!r}: …}} takes a tensor or a function of the module's input, "
                        f"not {init[tag]!r}"
                    )
                reader = self.add("state_read", StateRead(tag, tag in init), ())
                if tag in init:
                    self._initials[reader] = init[tag]
                wires.append(Wire(reader, port))
        self._nodes[target - 1] = replace(
            node, wires=tuple(wires), operation=_styled(node.operation, style)
        )

    def _style_of(self, node: Node) -> RefStyle:
        receiver = _receiver(node.operation, self._modules.get(node.number))
        if receiver is None:
            raise BuildError(f"{node.id} takes no references")
        style = ref_style(receiver)
        if style is None:
            raise BuildError(
                f"{node.id} takes no references: {type(receiver).__name__} would need a method "
                "forward_named(x, refs); subclass NamedInputModule"
            )
        return style

    # --- The end ---------------------------------------------------------------------------

    def finish(self, output: int) -> tuple[Topology, dict[int, nn.Module], dict[int, Initial]]:
        """Check the whole graph and return its parts.

        Raises:
            BuildError: The parts do not fit together.
        """
        self._check_references()
        self._check_internal()
        self._check_ports()
        self._check_labels()
        self._warn_of_silent_forks()
        topology = Topology(
            nodes=self._prefixed(),
            output=output,
            inputs=tuple(self.inputs),
            tags=tuple(self.tags.items()),
            groups=tuple(self.groups.items()),
            internal=frozenset(self.internal),
            label=self.label,
            optional=frozenset(self.optional),
            passing=frozenset(self.passing),
        )
        for node in topology.nodes:
            module = self._modules.get(node.number)
            if isinstance(module, LoopNode | GateNode | SwitchNode):
                module.operation = node.operation  # type: ignore[assignment]  # of matching kind
        return topology, self._modules, self._initials

    def _check_references(self) -> None:
        unresolved: dict[str, str] = {}
        for node in self._nodes:
            if isinstance(node.operation, StateRead) and node.operation.tag not in self.tags:
                unresolved.setdefault(node.operation.tag, self._built_at[node.number])
        if unresolved:
            names = ", ".join(f"{tag!r} (used at {unresolved[tag]})" for tag in sorted(unresolved))
            near = [tag for name in sorted(unresolved) for tag in self._near(name)]
            hint = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
            raise BuildError(
                f"no tag, tag group member or input was ever given the name {names}{hint}"
            )

    def _near(self, name: str) -> Sequence[str]:
        """Tags that were perhaps meant: the members of a group, else similar names."""
        near = nearest(name, self.tags)
        return self.groups.get(name) or ([near] if near else [])

    def _check_internal(self) -> None:
        for tag, place in self.internal.items():
            if tag not in self.tags:
                raise BuildError(f"{place}: internal: there is no tag {tag!r}")

    def _check_ports(self) -> None:
        for node in list(self._nodes):
            receiver = _receiver(node.operation, self._modules.get(node.number))
            if not isinstance(receiver, GraphBase):
                continue
            given = {str(wire.reference): wire for wire in node.references}
            try:
                ports = delivered(receiver, given)
            except ValueError as error:
                raise BuildError(
                    f"{self._built_at[node.number]}: the graph in {node.id} {error}: deliver each "
                    "that it needs with using, from a tag of the same name"
                ) from None
            operation = node.operation
            if ports and isinstance(operation, Call):
                operation = Call(port_style(receiver, ports))
            ordered = (node.wires[0], *(given[port] for port in ports))
            self._nodes[node.number - 1] = replace(node, operation=operation, wires=ordered)

    def _check_labels(self) -> None:
        owners: dict[str, Node] = {}
        for node in self._nodes:
            module = self._modules.get(node.number)
            label = module.label if isinstance(module, GraphBase) else None
            if label is None:
                continue
            place = self._built_at[node.number]
            if label in owners and self._modules[owners[label].number] is not module:
                raise BuildError(
                    f"{place}: nodes {owners[label].id} and {node.id} are graphs with the same "
                    f"label {label!r}; a path could not tell them apart"
                )
            if self.tags.get(label, node.number) != node.number:
                raise BuildError(
                    f"{place}: the graph in {node.id} is labelled {label!r}, which is also a tag "
                    "on another node; rename one"
                )
            owners[label] = node

    def _warn_of_silent_forks(self) -> None:
        tagged = set(self.tags.values())
        for number in self._forks:
            if number not in tagged:
                warnings.warn(
                    f"{self._built_at[number]}: fork: nothing can read the branch "
                    f"{self._nodes[number - 1].id}: tag it right after the fork",
                    UserWarning,
                    stacklevel=4,
                )

    def _prefixed(self) -> tuple[Node, ...]:
        """The nodes with their prefixes: ``name=``, else the first tag, else the id."""
        chosen = {number: name for name, number in reversed(self.tags.items())}
        chosen.update((number, name) for name, number in self._names.items())
        owners: dict[str, Node] = {}
        for node in self._nodes:
            if node.number in self._modules:
                prefix = chosen.get(node.number, node.id)
                if prefix in owners:
                    raise BuildError(
                        f"{self._places.get(prefix, self.here)}: nodes {owners[prefix].id} and "
                        f"{node.id} would both be registered as {prefix!r}; rename one"
                    )
                owners[prefix] = node
        prefixes = {node.number: prefix for prefix, node in owners.items()}
        return tuple(replace(node, prefix=prefixes.get(node.number, "")) for node in self._nodes)


def _receiver(operation: Operation, module: nn.Module | None) -> nn.Module | None:
    """The module inside a node that receives references."""
    match operation, module:
        case Call(), nn.Module():
            return module
        case Loop(), LoopNode():
            return module.body
        case Gate() | Switch(), GateNode() | SwitchNode():
            return module.router
        case _:
            return None


def _refuse_carried(part: str, module: nn.Module, instead: str) -> None:
    """Refuse a graph with carried state where rows part: its state belongs to a whole batch."""
    for graph in module.modules():
        if isinstance(graph, GraphBase) and graph.topology.state_tags:
            raise BuildError(
                f"{part} carries {graph.topology.state_tags[0]!r} from call to call for all rows, "
                f"but runs for some of them; use {instead}, or carry it outside"
            )


def _styled(operation: Operation, style: RefStyle) -> Operation:
    return replace(cast("Call | Loop | Gate | Switch", operation), style=style)


def kind_of(module: nn.Module) -> str:
    """The kind of a module: its ``flodl_name``, or its class name in lower case."""
    kind = getattr(module, "flodl_name", type(module).__name__.lower())
    if not isinstance(kind, str) or not kind or "." in kind or "/" in kind:
        raise BuildError(f"flodl_name must be a text without dots and slashes, not {kind!r}")
    return kind


def check_name(name: str) -> None:
    """Refuse a name that cannot be a tag or a prefix."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise BuildError(f"a name is a non-empty, printable text, not {name!r}")
    if "." in name or "/" in name:
        raise BuildError(f"a name is a text without dots and slashes, not {name!r}")
    if keyword.iskeyword(name):
        raise BuildError(f"{name!r} is a keyword of Python; choose another name")
    if name in _TORCH_ATTRIBUTES:
        raise BuildError(f"{name!r} is an attribute of torch.nn.Module; choose another name")
