"""A graph as a plain value: which builder calls are made, with which modules.

A recipe prints as the program it stands for, pickles, and compares by value. Modules appear as
:class:`Leaf` (a kind, sizes, and a slot: equal slots are one shared instance) or :class:`Nested`
(a recipe of its own).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Leaf:
    """A module without inner structure.

    Attributes:
        slot: Which instance; leaves with the same slot are the same object.
        kind: Key of the table in ``parts``.
        width: Last dimension of the input.
        out: Last dimension of the output; number of choices for routers.
        hidden: Size of an inner layer, where the kind has one.
        value: Threshold, index or rate, where the kind has one.
    """

    slot: int
    kind: str
    width: int
    out: int
    hidden: int = 2
    value: float = 0.0

    def __repr__(self) -> str:
        return f"{self.kind}#{self.slot}({self.width}, {self.out}, {self.hidden}, {self.value})"


@dataclass(frozen=True)
class Nested:
    """A graph as a module."""

    slot: int
    recipe: Recipe

    def __repr__(self) -> str:
        return f"graph#{self.slot}({self.recipe!r})"


Module = Leaf | Nested


@dataclass(frozen=True)
class Init:
    """First value of a carried state: a tensor of ones times ``value``, or a function giving it."""

    value: float
    as_function: bool


@dataclass(frozen=True)
class Ref:
    """A tag delivered with ``using``; a tag that comes later makes it a state."""

    tag: str
    init: Init | None = None

    def __repr__(self) -> str:
        return repr(self.tag) if self.init is None else f"{self.tag!r}={self.init}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of the builder, and the ``using`` and ``tag`` calls that follow it."""

    refs: tuple[Ref, ...] = ()
    tags: tuple[str, ...] = ()
    name: str | None = None

    def modules(self) -> Iterator[Module]:
        """Every module the step mentions, in the order of its arguments."""
        for value in vars(self).values():
            for entry in value if isinstance(value, tuple) else (value,):
                if isinstance(entry, Leaf | Nested):
                    yield entry

    def __repr__(self) -> str:
        own = [f"{v!r}" for k, v in vars(self).items() if k not in ("refs", "tags", "name")]
        own += [f"name={self.name!r}"] if self.name else []
        using = f".using{self.refs}" if self.refs else ""
        tags = "".join(f".tag({tag!r})" for tag in self.tags)
        return f".{type(self).__name__.lower()}({', '.join(own)}){using}{tags}"


@dataclass(frozen=True, repr=False)
class Through(Step):
    """Append a module."""

    module: Module


@dataclass(frozen=True, repr=False)
class Also(Step):
    """A residual connection."""

    module: Module


@dataclass(frozen=True, repr=False)
class AlsoWith(Step):
    """A residual connection with a projection."""

    skip: Module
    main: Module


@dataclass(frozen=True, repr=False)
class Fork(Step):
    """A side branch."""

    module: Module


@dataclass(frozen=True, repr=False)
class Split(Step):
    """Parallel branches and the merge that joins them; ``tags`` name the merged stream."""

    branches: tuple[Module, ...]
    how: str
    group: str | None = None


@dataclass(frozen=True, repr=False)
class Input(Step):
    """Auxiliary inputs."""

    names: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Loop(Step):
    """A body fed with its own output; ``halt`` is None for a loop that counts.

    With ``batch``, all rows halt together.
    """

    body: Module
    kind: str
    limit: int
    halt: Module | None = None
    batch: bool = False


@dataclass(frozen=True, repr=False)
class Gate(Step):
    """Experts weighted by a router; with ``top_k``, only the largest weights count."""

    router: Module
    experts: tuple[Module, ...]
    top_k: int | None = None


@dataclass(frozen=True, repr=False)
class Switch(Step):
    """A branch chosen by a router for each row, or with ``batch`` for all."""

    router: Module
    branches: tuple[Module, ...]
    batch: bool = False


@dataclass(frozen=True, repr=False)
class Map(Step):
    """A body on slices: ``each``, ``over`` the tag ``argument``, ``slices`` in ``argument``."""

    body: Module
    kind: str
    argument: str | int = 0
    batched: bool = False


@dataclass(frozen=True)
class Recipe:
    """A whole graph.

    Attributes:
        steps: Builder calls; without ``identity`` the first is a ``Through`` given to ``from_``.
        widths: Last dimensions of the inputs: the entry, then the ports in their order.
        identity: Whether the flow starts with ``FlowBuilder()``.
        label: Name of the graph.
    """

    steps: tuple[Step, ...]
    widths: tuple[int, ...]
    identity: bool = True
    label: str | None = None

    @property
    def ports(self) -> tuple[str, ...]:
        """Names of the auxiliary inputs, in order."""
        return tuple(n for step in self.steps if isinstance(step, Input) for n in step.names)

    @property
    def defined(self) -> dict[str, int]:
        """Every tag, and the index of the step that defines it."""
        found: dict[str, int] = {}
        for index, step in enumerate(self.steps):
            names = [*step.names] if isinstance(step, Input) else []
            if isinstance(step, Split) and step.group:
                names += [f"{step.group}_{k}" for k in range(len(step.branches))]
            names += step.tags
            found.update(dict.fromkeys(names, index))
        return found

    @property
    def carried(self) -> set[str]:
        """The tags read before they are defined: their values travel from call to call."""
        defined = self.defined
        return {
            ref.tag
            for index, step in enumerate(self.steps)
            for ref in step.refs
            if defined[ref.tag] >= index
        }

    def modules(self) -> Iterator[Module]:
        """Every module, those of nested recipes included, one per mention."""
        for step in self.steps:
            for module in step.modules():
                yield module
                if isinstance(module, Nested):
                    yield from module.recipe.modules()

    def all_steps(self) -> Iterator[Step]:
        """The steps, those of nested recipes included."""
        yield from self.steps
        for step in self.steps:
            for module in step.modules():
                if isinstance(module, Nested):
                    yield from module.recipe.all_steps()

    @property
    def is_stateful(self) -> bool:
        """Whether anything, here or below, travels from call to call."""
        below = (m.recipe for step in self.steps for m in step.modules() if isinstance(m, Nested))
        return bool(self.carried) or any(recipe.is_stateful for recipe in below)

    @property
    def decides(self) -> bool:
        """Whether values decide what runs: a switch or a loop with a condition, here or below."""
        return any(
            isinstance(step, Switch) or (isinstance(step, Loop) and step.kind != "for")
            for step in self.all_steps()
        )

    def __repr__(self) -> str:
        label = f".label({self.label!r})" if self.label else ""
        start = "FlowBuilder()" if self.identity else "from_"
        return start + "".join(map(repr, self.steps)) + label + f".widths{self.widths}"
