"""A recipe built with the builder, exactly as a user would write it."""

from __future__ import annotations

import torch
from torch import Tensor

from flodl import FlowBuilder, Graph

from .parts import Parts
from .recipe import (
    Also,
    AlsoWith,
    Fork,
    Gate,
    Init,
    Input,
    Loop,
    Map,
    Module,
    Nested,
    Recipe,
    Split,
    Step,
    Switch,
    Through,
)


class Filled:
    """A first value of a state that follows the stream's shape."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, stream: Tensor) -> Tensor:
        return torch.full_like(stream, self.value)


class Assembly:
    """Builds recipes from instances.

    Args:
        parts: The instance of every leaf.

    Attributes:
        graphs: The nested graphs that were built, by slot.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.graphs: dict[int, Graph] = {}

    def build(self, recipe: Recipe) -> Graph:
        """Make the graph of a recipe."""
        steps = list(recipe.steps)
        if recipe.identity:
            builder = FlowBuilder()
        else:
            first = steps.pop(0)
            builder = FlowBuilder.from_(self._module(first.module))
            self._follow(builder, first)
        for step in steps:
            self._append(builder, step)
            if isinstance(step, Split):
                self._using(builder, step)
                if step.group:
                    builder.tag_group(step.group)
                builder.merge(step.how)
                for tag in step.tags:
                    builder.tag(tag)
            else:
                self._follow(builder, step)
        if recipe.label:
            builder.label(recipe.label)
        return builder.build()

    def _append(self, builder: FlowBuilder, step: Step) -> None:
        name = {"name": step.name} if step.name else {}
        match step:
            case Through(module=module):
                builder.through(self._module(module), **name)
            case Also(module=module):
                builder.also(self._module(module), **name)
            case AlsoWith(skip=skip, main=main):
                builder.also_with(self._module(skip), self._module(main))
            case Fork(module=module):
                builder.fork(self._module(module), **name)
            case Split(branches=branches):
                builder.split([self._module(branch) for branch in branches])
            case Input(names=names):
                builder.input(*names)
            case Gate(router=router, experts=experts, top_k=k):
                modules = [self._module(expert) for expert in experts]
                builder.gate(self._module(router), modules, top_k=k, **name)
            case Switch(router=router, branches=branches, batch=batch):
                switch = builder.batch_switch if batch else builder.switch
                switch(self._module(router), [self._module(b) for b in branches], **name)
            case Loop():
                self._loop(builder, step, name)
            case Map():
                self._map(builder, step, name)

    def _loop(self, builder: FlowBuilder, step: Loop, name: dict[str, str]) -> None:
        loop = builder.loop_body(self._module(step.body), **name)
        if step.kind == "for":
            loop.for_n(step.limit)
        else:
            finish = getattr(loop, f"{'batch_' if step.batch else ''}{step.kind}_cond")
            finish(self._module(step.halt), step.limit)

    def _map(self, builder: FlowBuilder, step: Map, name: dict[str, str]) -> None:
        mapped = builder.map(self._module(step.body), **name)
        if step.batched:
            mapped = mapped.batched()
        if step.kind == "each":
            mapped.each()
        elif step.kind == "over":
            mapped.over(step.argument)
        else:
            mapped.slices(step.argument)

    def _follow(self, builder: FlowBuilder, step: Step) -> None:
        self._using(builder, step)
        for tag in step.tags:
            builder.tag(tag)

    def _using(self, builder: FlowBuilder, step: Step) -> None:
        """Plain references in one call, each with a first value of its own in another."""
        plain = [ref.tag for ref in step.refs if ref.init is None]
        if plain and all(ref.init is None for ref in step.refs):
            builder.using(*plain)
            return
        for ref in step.refs:
            if ref.init is None:
                builder.using(ref.tag)
            else:
                builder.using(ref.tag, init={ref.tag: _init(ref.init)})

    def _module(self, module: Module):
        if not isinstance(module, Nested):
            return self.parts[module.slot]
        if module.slot not in self.graphs:
            self.graphs[module.slot] = self.build(module.recipe)
        return self.graphs[module.slot]


def _init(init: Init) -> Tensor | Filled:
    if init.as_function:
        return Filled(init.value)
    return torch.full((1, 1), init.value, dtype=torch.float64)
