"""Random recipes: every construct, nested, with references backward and forward.

:func:`random_recipe` draws from any source with the interface of ``random.Random``, so that
hypothesis can shrink what it finds, and a seed names the same recipe in every process.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

from .recipe import (
    Also,
    AlsoWith,
    Fork,
    Gate,
    Init,
    Input,
    Leaf,
    Loop,
    Map,
    Module,
    Nested,
    Recipe,
    Ref,
    Split,
    Step,
    Switch,
    Through,
)

WIDTHS = (2, 4)
"""Last dimensions of streams; even, so that two slices always fit."""


def random_recipe(
    rng: Random, *, capturable: bool = False, size: int = 7, depth: int = 2
) -> Recipe:
    """Draw a recipe.

    Args:
        rng: Source of choices.
        capturable: Leave out whatever lets values decide what runs, recurrent layers (compilers
            refuse them), and bodies that keep tensors of their own.
        size: Most steps per graph.
        depth: How deep graphs nest.
    """
    author = _Author(rng, capturable, size)
    ports = {f"a{k}": rng.choice(WIDTHS) for k in range(rng.randrange(3))}
    return author.write(rng.choice(WIDTHS), None, ports, depth)


@dataclass(frozen=True)
class Call:
    """One call of the graph in a training or validation loop, and what comes after it.

    Attributes:
        grad: Whether gradients are recorded.
        backward: Whether everything since the last backward is differentiated now.
        whole: Whether the loss of this call uses tags and traces, too, or the output only.
        after: ``end_step``, ``detach_state``, ``reset_state``, ``validate`` or nothing.
    """

    grad: bool
    backward: bool
    whole: bool
    after: str


def random_calls(rng: Random, length: int = 3) -> tuple[Call, ...]:
    """Draw a schedule; its last call always ends with a backward."""
    calls = []
    for index in range(length):
        last = index == length - 1
        grad = last or rng.randrange(5) > 0
        backward = last or (grad and rng.randrange(2) == 0)
        whole = rng.randrange(3) > 0
        after = rng.choice(["", "", "end_step", "detach_state", "reset_state", "validate"])
        calls.append(Call(grad, backward, whole, after))
    return tuple(calls)


@dataclass
class _Author:
    """Numbers slots and tags over a whole tree of recipes, and remembers leaves to share."""

    rng: Random
    capturable: bool
    size: int
    slots: count = field(default_factory=lambda: count(1))
    names: count = field(default_factory=lambda: count(1))
    shelf: list[Leaf] = field(default_factory=list)

    def write(self, width: int, out: int | None, ports: dict[str, int], depth: int) -> Recipe:
        return _Scribe(self, width, ports, depth).write(out)

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) >= 100 - percent

    def leaf(self, kind: str, width: int, out: int, value: float = 0.0, hidden: int = 0) -> Leaf:
        hidden = hidden or self.rng.randrange(1, 4)
        return Leaf(next(self.slots), kind, width, out, hidden, value)

    def plain(self, width: int, out: int) -> Leaf:
        """A leaf that takes no references, maybe one that is in use elsewhere."""
        known = [leaf for leaf in self.shelf if (leaf.width, leaf.out) == (width, out)]
        if known and self.chance(15):
            return self.rng.choice(known)
        kinds = ["block", "linear", "listed"]
        kinds += [] if self.capturable else ["lstm", "gru"]
        kinds += ["scale", "centred", "function", "dropout"] if width == out else []
        leaf = self.leaf(self.rng.choice(kinds), width, out)
        self.shelf.append(leaf)
        return leaf


class _Scribe:
    """Writes one recipe.

    Attributes:
        width: Last dimension of the stream.
        known: Width of every tag defined so far.
        owed: Tags read but not yet defined, with the width they must have, if any.
        ports: Auxiliary inputs not yet declared.
        graphs: Nested graphs that another step may use again.
    """

    def __init__(self, author: _Author, width: int, ports: dict[str, int], depth: int) -> None:
        self.author, self.rng, self.width, self.depth = author, author.rng, width, depth
        self.entry, self.ports = width, dict(ports)
        self.declared: list[int] = []
        self.known: dict[str, int] = {}
        self.owed: dict[str, int | None] = {}
        self.graphs: list[tuple[int, int, Nested]] = []
        self.steps: list[Step] = []

    def write(self, out: int | None) -> Recipe:
        identity = self.author.chance(40)
        if not identity:
            self._through(name=False)
        moves = [self._through, self._also, self._also_with, self._fork, self._split, self._loop]
        moves += [self._gate, self._map] + ([] if self.author.capturable else [self._switch])
        for _ in range(self.rng.randrange(1, self.author.size + 1)):
            if self.ports and self.author.chance(30):
                self._input()
            self.rng.choice(moves)()
        while self.ports:
            self._input()
        self._settle()
        if out is not None and (out != self.width or not self.steps):
            self.steps.append(Through(module=self.author.leaf("linear", self.width, out)))
            self.width = out
        return Recipe(tuple(self.steps), (self.entry, *self.declared), identity)

    # --- Steps -----------------------------------------------------------------------------

    def _through(self, name: bool = True) -> None:
        out = self.rng.choice(WIDTHS)
        module, refs = self._module(self.width, out, repeat=True)
        self.width = out
        self._add(Through, refs, module=module, name=self._name() if name else None)

    def _also(self) -> None:
        module, refs = self._module(self.width, self.width, repeat=True)
        self._add(Also, refs, module=module, name=self._name())

    def _also_with(self) -> None:
        out = self.rng.choice(WIDTHS)
        skip = self.author.plain(self.width, out)
        main, refs = self._module(self.width, out)
        self.width = out
        self._add(AlsoWith, refs, skip=skip, main=main)

    def _fork(self) -> None:
        out = self.rng.choice(WIDTHS)
        module, refs = self._module(self.width, out)
        tag = self._new_tag(out)
        self.steps.append(Fork(module=module, refs=refs, tags=(tag,), name=self._name()))

    def _split(self) -> None:
        out, branches = self.rng.choice(WIDTHS), self.rng.randrange(2, 4)
        refs = self._refs() if self.author.chance(30) else ()
        if refs:
            modules = [self._referring(self.width, out, refs) for _ in range(branches)]
        else:
            modules = [self._module(self.width, out, refs=False)[0] for _ in range(branches)]
        group = None
        if self.author.chance(40):
            group = f"group{next(self.author.names)}"
            self.known.update({f"{group}_{k}": out for k in range(branches)})
        self.width = out
        how = self.rng.choice(["add", "mean"])
        self._add(Split, refs, branches=tuple(modules), how=how, group=group)

    def _input(self) -> None:
        names = tuple(self.ports)[: self.rng.randrange(1, len(self.ports) + 1)]
        for name in names:
            self.known[name] = self.ports.pop(name)
            self.declared.append(self.known[name])
            self.owed.pop(name, None)
        self.steps.append(Input(names=names))

    def _loop(self) -> None:
        author, width = self.author, self.width
        kind = "for" if author.capturable else self.rng.choice(["for", "while", "until"])
        refs: tuple[Ref, ...] = ()
        match self.rng.randrange(4):
            case 0:
                sparse = not author.capturable and author.chance(50)
                refs = self._refs() if author.chance(40) else ()
                body: Module = author.leaf("emitter", width, width, value=float(sparse))
            case 1 if not author.capturable:
                body = author.leaf("tracer", width, width, value=float(author.chance(50)))
            case _:
                body, refs = self._module(width, width)
        halt = None if kind == "for" else self._halt()
        limit = self.rng.randrange(1, 5)
        batch = kind != "for" and (_carries(body) or author.chance(25))
        # What trace() returns is filed under the tag: with two there would be two files.
        alone = isinstance(body, Leaf) and body.kind == "tracer"
        step = Loop(
            body=body, kind=kind, limit=limit, halt=halt, batch=batch, refs=refs, name=self._name()
        )
        self.steps.append(replace(step, tags=self._tags(most=1 if alone else 2)))

    def _halt(self) -> Leaf:
        kind = self.rng.choice(["threshold", "learned", "rows"])
        return self.author.leaf(kind, self.width, 1, value=self.rng.choice([0.25, 0.5, 1.0]))

    def _gate(self) -> None:
        out, experts = self.rng.choice(WIDTHS), self.rng.randrange(2, 4)
        refs = self._refs() if self.author.chance(40) else ()
        kinds = ["softmax", "sigmoid", "pooled", "global", "element"]
        kind = self.rng.choice(["mixed", *(["softmax", "sigmoid"] if self._fit(refs) else [])])
        kind = kind if refs else self.rng.choice(kinds)
        router = self.author.leaf(kind, self.width, experts, hidden=out)
        modules = tuple(self._module(self.width, out, refs=False)[0] for _ in range(experts))
        self.width = out
        whole = self.author.capturable or kind in ("global", "element")
        top_k = None
        if not whole and not any(map(_carries, modules)) and self.author.chance(50):
            top_k = self.rng.randrange(1, experts + 1)
        self._add(Gate, refs, router=router, experts=modules, top_k=top_k, name=self._name())

    def _switch(self) -> None:
        out, branches = self.rng.choice(WIDTHS), self.rng.randrange(2, 4)
        refs = self._refs() if self.author.chance(40) else ()
        modules = tuple(self._module(self.width, out, refs=False)[0] for _ in range(branches))
        batch = any(map(_carries, modules)) or self.author.chance(25)
        argmax = "batch_argmax" if batch else "argmax"
        kinds = ["sign", *([argmax] if self._fit(refs) else [])]
        kind = self.rng.choice([*kinds, *([] if refs or batch else ["fixed"])])
        value = float(self.rng.randrange(branches)) if kind == "fixed" else float(batch)
        router = self.author.leaf(kind, self.width, branches, value=value)
        self.width = out
        self._add(Switch, refs, router=router, branches=modules, batch=batch, name=self._name())

    def _map(self) -> None:
        kind = self.rng.choice(["each", "slices", *(["over"] if self.known else [])])
        batched = self.author.chance(50)
        out = self.rng.choice(WIDTHS)
        argument: str | int = 0
        if kind == "each":
            body = self._module(self.width, out, refs=False)[0]
        elif kind == "over":
            # Its input may be ready before earlier steps are: a graph that stands on both sides
            # could then run in another order than it was written in.
            self.graphs.clear()
            argument = self.rng.choice(list(self.known))
            body = self.author.plain(self.known[argument], out)
        else:
            argument = self.rng.randrange(1, 3)
            body = self._module(self.width // argument, out // argument, refs=False)[0]
        self.width = out
        name = self._name()
        self._add(Map, (), body=body, kind=kind, argument=argument, batched=batched, name=name)

    # --- Modules ---------------------------------------------------------------------------

    def _module(
        self, width: int, out: int, *, refs: bool = True, repeat: bool = False
    ) -> tuple[Module, tuple[Ref, ...]]:
        """A module and the references it is given.

        Args:
            width: Width of its input.
            out: Width of its output.
            refs: Whether it may take references.
            repeat: Whether it may be a graph that stands elsewhere in this recipe, too.
        """
        again = [graph for w, o, graph in self.graphs if (w, o) == (width, out)]
        if repeat and again and self.author.chance(40):
            return self.rng.choice(again), ()
        if self.depth and self.author.chance(15):
            return self._graph(width, out, refs, repeat)
        if refs and self.author.chance(45) and (chosen := self._refs()):
            return self._referring(width, out, chosen), chosen
        return self.author.plain(width, out), ()

    def _graph(
        self, width: int, out: int, refs: bool, repeat: bool
    ) -> tuple[Nested, tuple[Ref, ...]]:
        names = sorted(self.known) if refs and self.author.chance(50) else []
        ports = {tag: self.known[tag] for tag in names[: self.rng.randrange(3)]}
        recipe = self.author.write(width, out, ports, self.depth - 1)
        slot = next(self.author.slots)
        if self.author.chance(40):
            recipe = replace(recipe, label=f"child{slot}")
        graph = Nested(slot, recipe)
        if repeat and not ports and recipe.label is None:
            self.graphs.append((width, out, graph))
        order = list(ports)
        self.rng.shuffle(order)
        return graph, tuple(map(Ref, order))

    def _referring(self, width: int, out: int, refs: tuple[Ref, ...]) -> Leaf:
        kinds = ["mix", "offered"] + (["state_add"] if width == out and self._fit(refs) else [])
        return self.author.leaf(self.rng.choice(kinds), width, out)

    # --- Tags and references ---------------------------------------------------------------

    def _refs(self) -> tuple[Ref, ...]:
        """One or two references to what is known or owed."""
        chosen: dict[str, Ref] = {}
        for _ in range(self.rng.randrange(1, 3)):
            if self.known and self.author.chance(60):
                tag = self.rng.choice(list(self.known))
                chosen[tag] = Ref(tag)
                continue
            later = [*self.owed, *self.ports]
            tag = self.rng.choice(later) if later and self.author.chance(40) else None
            if tag is None:
                tag = f"t{next(self.author.names)}"
            self.owed.setdefault(tag, self.ports.get(tag))
            init = Init(0.5, self.author.chance(50)) if self.author.chance(30) else None
            chosen[tag] = Ref(tag, init)
        return tuple(chosen.values())

    def _fit(self, refs: tuple[Ref, ...]) -> bool:
        """Whether references can be added to the stream; what is owed is then owed in its width."""
        widths = [self.known.get(ref.tag, self.owed.get(ref.tag)) for ref in refs]
        if any(width not in (None, self.width) for width in widths):
            return False
        self.owed.update({ref.tag: self.width for ref in refs if ref.tag in self.owed})
        return True

    def _name(self) -> str | None:
        return f"n{next(self.author.names)}" if self.author.chance(15) else None

    def _new_tag(self, width: int) -> str:
        """A tag for a value of this width: one that is owed, or a fresh one."""
        due = [t for t, w in self.owed.items() if w in (None, width) and t not in self.ports]
        tag = self.rng.choice(due) if due else f"t{next(self.author.names)}"
        self.owed.pop(tag, None)
        self.known[tag] = width
        return tag

    def _tags(self, most: int = 2) -> tuple[str, ...]:
        if not self.author.chance(50):
            return ()
        return tuple(self._new_tag(self.width) for _ in range(self.rng.randrange(1, most + 1)))

    def _add(self, step: type[Step], refs: tuple[Ref, ...], **fields: object) -> None:
        self.steps.append(step(**fields, refs=refs, tags=self._tags()))

    def _settle(self) -> None:
        """Define what is still owed, on linear layers of the widths it takes."""
        while self.owed:
            width = next((w for w in self.owed.values() if w is not None), self.width)
            due = tuple(tag for tag, w in self.owed.items() if w in (None, width))
            step = Through(module=self.author.leaf("linear", self.width, width), tags=due)
            self.steps.append(step)
            self.width = width
            self.owed = {tag: w for tag, w in self.owed.items() if tag not in due}


def _carries(module: Module) -> bool:
    """Whether a module carries state for all rows, which must stay together then."""
    return isinstance(module, Nested) and module.recipe.is_stateful
