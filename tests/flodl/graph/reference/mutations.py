"""Recipes that differ in one place: in a wire or an operator's argument, or in nothing that counts.

The changed recipes build; they need not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .parts import shapes
from .recipe import (
    Also,
    AlsoWith,
    Fork,
    Gate,
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

NEW = -1
"""Slot of the one leaf a mutation adds."""

_UNSHAPED = ("dropout", "threshold", "rows")


def mutations(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Every recipe with another structure that this module knows to make, and what it changed."""
    for leaf in dict.fromkeys(recipe.modules()):
        if isinstance(leaf, Leaf) and leaf.kind == "block":
            yield f"{leaf} wider", _with_module(recipe, leaf.slot, replace(leaf, hidden=9))
    yield from _rewirings(recipe)


def _rewirings(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    for index, step in enumerate(recipe.steps):
        for what, changed in _step_changes(recipe, index, step):
            yield f"step {index}: {what}", _with_step(recipe, index, changed)
        if index and (moved := _tag_moved_earlier(recipe, index)) is not None:
            yield f"step {index}: tag {step.tags[0]} moved one step up", moved
        for module in step.modules():
            if isinstance(module, Nested):
                for what, inner in _rewirings(module.recipe):
                    changed = Nested(module.slot, inner)
                    if inner.ports == module.recipe.ports:
                        yield f"step {index}: {what}", _with_module(recipe, module.slot, changed)
    added = Through(module=Leaf(NEW, "function", 1, 1))
    yield "one step more", replace(recipe, steps=(*recipe.steps, added))


def _step_changes(recipe: Recipe, index: int, step: Step) -> Iterator[tuple[str, Step]]:
    """All single changes of one step."""
    yield from _argument_changes(recipe, index, step)
    yield from _ref_changes(recipe, step)
    if isinstance(step, Input):
        if len(step.names) > 1:
            yield "inputs in another order", replace(step, names=step.names[::-1])
    elif index or recipe.identity:
        if not isinstance(step, AlsoWith | Split):
            yield "another name", replace(step, name="renamed")
        if isinstance(step, Through):
            yield "through -> also", Also(**vars(step))
        if isinstance(step, Also):
            yield "also -> through", Through(**vars(step))


def _argument_changes(recipe: Recipe, index: int, step: Step) -> Iterator[tuple[str, Step]]:
    match step:
        case Loop(kind="for"):
            halt = Leaf(NEW, "threshold", 1, 1)
            yield "for -> until", replace(step, kind="until", halt=halt, batch=_carries(step))
            yield "one iteration more", replace(step, limit=step.limit + 1)
        case Loop(kind=kind):
            yield "other test", replace(step, kind="while" if kind == "until" else "until")
            yield "one iteration more", replace(step, limit=step.limit + 1)
            if not _carries(step):
                yield "other extent", replace(step, batch=not step.batch)
        case Split(branches=branches):
            yield "other merge", replace(step, how="mean" if step.how == "add" else "add")
            added = Leaf(NEW, "mix" if step.refs else "linear", 1, 1)
            yield "one branch more", replace(step, branches=(*branches, added))
            if _differ(branches[0], branches[-1]):
                yield "branches reversed", replace(step, branches=branches[::-1])
        case AlsoWith(skip=skip, main=main):
            if not step.refs and _differ(skip, main):
                yield "skip and main exchanged", replace(step, skip=main, main=skip)
        case Gate(experts=experts, top_k=top_k):
            if top_k is not None or not _carries(step):
                yield "other number of experts", replace(step, top_k=None if top_k else 1)
            yield "one expert more", replace(step, experts=(*experts, Leaf(NEW, "linear", 1, 1)))
            if _differ(experts[0], experts[-1]):
                yield "experts reversed", replace(step, experts=experts[::-1])
        case Switch(branches=branches, batch=batch):
            if not _carries(step):
                yield "other extent", replace(step, batch=not batch)
            yield "one branch more", replace(step, branches=(*branches, Leaf(NEW, "linear", 1, 1)))
            if _differ(branches[0], branches[-1]):
                yield "branches reversed", replace(step, branches=branches[::-1])
        case Map(kind="slices"):
            yield "one slice more", replace(step, argument=step.argument + 1)
            yield "slices -> each", replace(step, kind="each", argument=0)
        case Map(kind=kind, argument=argument):
            yield f"{kind} -> slices", replace(step, kind="slices", argument=1)
            # Tags of one step may name one node; then nothing would be different.
            now = recipe.defined.get(argument)
            earlier = [tag for tag, at in recipe.defined.items() if at < index and at != now]
            if earlier:
                yield (
                    f"{kind} -> over {earlier[0]}",
                    replace(step, kind="over", argument=earlier[0]),
                )


def _carries(step: Step) -> bool:
    """Whether a module of the step carries state, so that its rows must stay together."""
    return any(isinstance(m, Nested) and m.recipe.is_stateful for m in step.modules())


def _ref_changes(recipe: Recipe, step: Step) -> Iterator[tuple[str, Step]]:
    if not step.refs or any(_has_ports(module) for module in step.modules()):
        return
    yield f"without {step.refs[0]}", replace(step, refs=step.refs[1:])
    given = {ref.tag for ref in step.refs}
    other = next((tag for tag in recipe.defined if tag not in given), None)
    if other is not None:
        changed = (Ref(other), *step.refs[1:])
        yield f"{other} instead of {step.refs[0]}", replace(step, refs=changed)


def _tag_moved_earlier(recipe: Recipe, index: int) -> Recipe | None:
    step, before = recipe.steps[index], recipe.steps[index - 1]
    if not step.tags or isinstance(step, Fork) or isinstance(before, Fork | Input):
        return None
    if any(ref.tag == step.tags[0] and ref.init for other in recipe.steps for ref in other.refs):
        return None  # a first value is refused where the tag is not carried any more
    moved = replace(before, tags=(*before.tags, step.tags[0]))
    return _with_step(
        _with_step(recipe, index - 1, moved), index, replace(step, tags=step.tags[1:])
    )


def neutral_changes(recipe: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Recipes whose graphs have the same structure: another label, rate, threshold, batching."""
    yield "another label", replace(recipe, label="relabelled")
    for module in recipe.modules():
        if isinstance(module, Leaf) and module.kind in _UNSHAPED:
            changed = replace(module, value=module.value + 0.25)
            yield f"{module} -> {changed}", _with_module(recipe, module.slot, changed)
        elif isinstance(module, Nested) and module.recipe.label:
            unlabelled = Nested(module.slot, replace(module.recipe, label=None))
            yield f"{module.recipe.label} dropped", _with_module(recipe, module.slot, unlabelled)
    for index, step in enumerate(recipe.steps):
        if isinstance(step, Map):
            flipped = replace(step, batched=not step.batched)
            yield f"step {index}: batched {flipped.batched}", _with_step(recipe, index, flipped)


# --- Replacing ---------------------------------------------------------------------------------


def _with_step(recipe: Recipe, index: int, step: Step) -> Recipe:
    steps = recipe.steps
    return replace(recipe, steps=(*steps[:index], step, *steps[index + 1 :]))


def _with_module(recipe: Recipe, slot: int, new: Module) -> Recipe:
    """Put another module wherever a slot is mentioned, at any depth."""

    def exchange(module: Module) -> Module:
        if module.slot == slot:
            return new
        if isinstance(module, Nested):
            return Nested(module.slot, _with_module(module.recipe, slot, new))
        return module

    return replace(recipe, steps=tuple(_exchanged(step, exchange) for step in recipe.steps))


def _exchanged(step: Step, exchange: Callable[[Module], Module]) -> Step:
    def visit(value: object) -> object:
        if isinstance(value, Leaf | Nested):
            return exchange(value)
        return tuple(map(visit, value)) if isinstance(value, tuple) else value

    return type(step)(**{key: visit(value) for key, value in vars(step).items()})


def _differ(one: Module, other: Module) -> bool:
    leaves = isinstance(one, Leaf) and isinstance(other, Leaf)
    return leaves and shapes(one) != shapes(other)


def _has_ports(module: Module) -> bool:
    return isinstance(module, Nested) and bool(module.recipe.ports)
