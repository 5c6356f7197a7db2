"""What a recipe means, step by step: no topology, no generated code, dictionaries for everything.

One object plays one graph. It calls the same leaf modules as the graph does, in the order of the
builder's calls, and keeps tags, traces and carried state in plain dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flodl import NamedInputModule

from .parts import Parts
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


class Recorder:
    """What a loop body publishes to."""

    def __init__(self, traces: dict[str, list[Tensor]]) -> None:
        self.traces = traces

    def publish(self, name: str, value: Tensor) -> None:
        self.traces.setdefault(name, []).append(value)


class Rows:
    """Which rows of a loop are done, and what its body was given of each last."""

    def __init__(self, count: int) -> None:
        self.done = [False] * count
        self.last: list[Tensor] = []

    def given(self, x: Tensor) -> Tensor:
        """What the body is given: of a row that is done what it was given before."""
        if not any(self.done):
            self.last = list(x)
            return x
        last = self.last or [x[self.done.index(False)]] * len(x)
        self.last = [
            old if done else row for old, done, row in zip(last, self.done, x, strict=True)
        ]
        return torch.stack(self.last)

    def kept(self, x: Tensor, after: Tensor) -> Tensor:
        """The next states: of a row that is done the one it has."""
        if not any(self.done):
            return after
        return torch.stack(
            [old if d else new for old, d, new in zip(x, self.done, after, strict=True)]
        )


class Reference:
    """Runs a recipe.

    Args:
        recipe: What to run.
        parts: The instance of every leaf, those of nested recipes included.
        players: The objects that play the nested graphs, by slot; shared by the whole tree.

    Attributes:
        tags: Value of every tag in the last run.
        traces: What loop bodies published in the last run, what conditions returned under
            ``<node id>/halt``, and what ``trace()`` returned under the loop's tag.
        traces_by_node: What ``trace()`` returned, by node id.
        previous: Tags of the last run, for those who read before they are written.
        ids: Ids of the nodes in the order in which they were built.
        registered: Prefix of every node that has modules, and these by their path below it.
        calls: How often it ran.
    """

    def __init__(
        self, recipe: Recipe, parts: Parts, players: dict[int, Reference] | None = None
    ) -> None:
        self.recipe, self.parts = recipe, parts
        self.players: dict[int, Reference] = {} if players is None else players
        self.tags: dict[str, Tensor] = {}
        self.traces: dict[str, list[Tensor]] = {}
        self.traces_by_node: dict[str, list[Tensor]] = {}
        self.previous: dict[str, Tensor] = {}
        self.ids: list[str] = []
        self.registered: dict[str, dict[str, Module]] = {}
        self.calls = 0
        self.stale = False
        for step in recipe.steps:
            for module in step.modules():
                if isinstance(module, Nested) and module.slot not in self.players:
                    player = Reference(module.recipe, parts, self.players)
                    self.players[module.slot] = player

    # --- Between runs ----------------------------------------------------------------------

    def children(self) -> list[Reference]:
        """Those who play the graphs directly below."""
        modules = (module for step in self.recipe.steps for module in step.modules())
        return [self.players[module.slot] for module in modules if isinstance(module, Nested)]

    def detach_carried(self) -> None:
        """Cut what the next run would read from its gradients, here and below."""
        self.previous = {name: value.detach() for name, value in self.previous.items()}
        for child in self.children():
            child.detach_carried()

    def detach(self) -> None:
        """Keep all values, cut all gradients, here and below."""
        self.detach_carried()
        self.tags = {name: value.detach() for name, value in self.tags.items()}
        for lists in (self.traces, self.traces_by_node):
            lists.update({name: [v.detach() for v in values] for name, values in lists.items()})
        for child in self.children():
            child.detach()

    def reset(self) -> None:
        """Forget what the next run would read, here and below."""
        self.previous = {}
        for child in self.children():
            child.reset()

    def after_backward(self) -> None:
        """A backward went through this graph: the next run starts from detached values."""
        self.stale = True

    # --- A run -----------------------------------------------------------------------------

    def __call__(self, x: Tensor, *aux: Tensor) -> Tensor:
        """Run all steps on the graph's inputs."""
        if self.stale:
            self.detach_carried()
            self.stale = False
        self.calls += 1
        self.tags, self.traces, self.traces_by_node = {}, {}, {}
        self.ids, self.registered = [], {}
        self.inputs = dict(zip(self.recipe.ports, aux, strict=True))
        if self.recipe.identity:
            self.ids.append("identity_1")
            self.registered["identity_1"] = {}
        for step in self.recipe.steps:
            x = getattr(self, f"_{type(step).__name__.lower()}")(step, x)
        self.previous = {name: self.tags[name] for name in self.recipe.carried}
        return x

    def _through(self, step: Through, x: Tensor) -> Tensor:
        node = self._node(step.module)
        self._register(step, node, {"": step.module})
        y = self.run(step.module, x, self._refs(step.refs, x))
        return self._tag(step, y)

    def _also(self, step: Also, x: Tensor) -> Tensor:
        node = self._node(step.module)
        self.registered[step.name or node] = {"": step.module}
        self._node("add")
        y = x + self.run(step.module, x, self._refs(step.refs, x))
        return self._tag(step, y)

    def _alsowith(self, step: AlsoWith, x: Tensor) -> Tensor:
        self.registered[self._node(step.skip)] = {"": step.skip}
        self.registered[self._node(step.main)] = {"": step.main}
        self._node("add")
        y = self.run(step.skip, x) + self.run(step.main, x, self._refs(step.refs, x))
        return self._tag(step, y)

    def _fork(self, step: Fork, x: Tensor) -> Tensor:
        node = self._node(step.module)
        self._register(step, node, {"": step.module})
        self._tag(step, self.run(step.module, x, self._refs(step.refs, x)))
        return x

    def _split(self, step: Split, x: Tensor) -> Tensor:
        nodes = [self._node(branch) for branch in step.branches]
        outputs = [self.run(b, x, self._refs(step.refs, x)) for b in step.branches]
        for k, (branch, node) in enumerate(zip(step.branches, nodes, strict=True)):
            prefix = f"{step.group}_{k}" if step.group else node
            self.registered[prefix] = {"": branch}
            if step.group:
                self.tags[prefix] = outputs[k]
        self._node("merge")
        total = outputs[0]
        for output in outputs[1:]:
            total = total + output
        return self._tag(step, total if step.how == "add" else total / len(outputs))

    def _input(self, step: Input, x: Tensor) -> Tensor:
        for name in step.names:
            self._node("input")
            self.tags[name] = self.inputs[name]
        return x

    def _loop(self, step: Loop, x: Tensor) -> Tensor:
        node = self._node("loop")
        halting = {} if step.halt is None else {"cond": step.halt}
        self._register(step, node, {"body": step.body, **halting})
        refs = self._refs(step.refs, x)
        body = self.parts.get(step.body.slot)
        if hasattr(body, "reset"):
            body.reset()
        rows = Rows(len(x))
        if step.kind == "while" and self._halts(step, node, x, rows):
            return self._tag(step, x)
        for index in range(step.limit):
            given = rows.given(x)
            x = rows.kept(x, self.run(step.body, given, refs, emit=Recorder(self.traces)))
            if hasattr(body, "trace") and (seen := body.trace()) is not None:
                self.traces_by_node.setdefault(node, []).append(seen)
            last = index + 1 == step.limit
            if step.kind != "for" and not last and self._halts(step, node, x, rows):
                break
        if step.tags and node in self.traces_by_node:
            self.traces[step.tags[0]] = self.traces_by_node[node]
        return self._tag(step, x)

    def _halts(self, step: Loop, node: str, x: Tensor, rows: Rows) -> bool:
        verdict = self.run(step.halt, x)
        self.traces.setdefault(f"{node}/halt", []).append(verdict)
        halted = [all(value > 0 for value in row.flatten().tolist()) for row in verdict]
        if not step.batch:
            rows.done = [done or now for done, now in zip(rows.done, halted, strict=True)]
        return all(halted if step.batch else rows.done)

    def _gate(self, step: Gate, x: Tensor) -> Tensor:
        node = self._node("gate")
        experts = {f"experts.{k}": expert for k, expert in enumerate(step.experts)}
        self._register(step, node, {"router": step.router, **experts})
        weights = self.run(step.router, x, self._refs(step.refs, x))
        if step.top_k is not None:
            return self._tag(step, self._strongest(step, weights, x))
        total: Any = 0
        for k, expert in enumerate(step.experts):
            output = self.run(expert, x)
            weight = weights[..., k]
            lead = weight.shape
            total = total + weight.reshape(*lead, *(1,) * (output.dim() - len(lead))) * output
        return self._tag(step, total)

    def _switch(self, step: Switch, x: Tensor) -> Tensor:
        node = self._node("switch")
        branches = {f"branches.{k}": branch for k, branch in enumerate(step.branches)}
        self._register(step, node, {"router": step.router, **branches})
        choice = self.run(step.router, x, self._refs(step.refs, x)).tolist()
        if step.batch:
            return self._tag(step, self.run(step.branches[choice], x))
        rows: dict[int, Tensor] = {}
        for k, branch in enumerate(step.branches):
            own = [row for row, chosen in enumerate(choice) if chosen == k]
            rows.update(zip(own, self.run(branch, x[own]) if own else (), strict=True))
        return self._tag(step, torch.stack([rows[row] for row in range(len(x))]))

    def _strongest(self, step: Gate, weights: Tensor, x: Tensor) -> Tensor:
        """Row by row: the weights in their order, the first ``top_k`` of them."""
        lead = weights.shape[:-1]
        x, weights = x.flatten(0, len(lead) - 1), weights.flatten(0, -2)
        totals: list[Any] = [0] * len(x)
        ranked = [sorted(range(len(row)), key=lambda k: -row[k]) for row in weights.tolist()]
        for k, expert in enumerate(step.experts):
            own = [row for row, order in enumerate(ranked) if k in order[: step.top_k]]
            outputs = self.run(expert, x[own]) if own else ()
            for row, output in zip(own, outputs, strict=True):
                totals[row] = totals[row] + weights[row, k] * output
        return torch.stack(totals).unflatten(0, lead)

    def _map(self, step: Map, x: Tensor) -> Tensor:
        node = self._node("map")
        self._register(step, node, {"": step.body})
        lead = x.shape[:-1]
        if step.kind == "over":
            x = self.tags[step.argument]
        if step.kind == "slices":
            x = x.reshape(-1, x.shape[-1] // step.argument)
        if step.batched or step.kind == "slices":
            y = self.run(step.body, x)
        else:
            y = torch.cat([self.run(step.body, x[k : k + 1]) for k in range(len(x))])
        if step.kind == "slices":
            y = y.reshape(*lead, y.shape[-1] * step.argument)
        return self._tag(step, y)

    # --- What steps have in common ---------------------------------------------------------

    def run(
        self,
        module: Module,
        x: Tensor,
        refs: Mapping[str, Tensor] | None = None,
        emit: Recorder | None = None,
    ) -> Tensor:
        """Run one module; of a tuple or list the first element counts."""
        if isinstance(module, Nested):
            player = self.players[module.slot]
            return player(x, *((refs or {})[name] for name in module.recipe.ports))
        part = self.parts[module.slot]
        if module.kind == "emitter":
            return part.step(x, refs or {}, emit)
        if not refs:
            y = part(x)
        elif isinstance(part, NamedInputModule):
            y = part(x, refs)
        else:
            y = part.forward_named(x, refs)
        return y[0] if isinstance(y, tuple | list) else y

    def _refs(self, refs: tuple[Ref, ...], x: Tensor) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        for ref in refs:
            if ref.tag in self.tags:
                values[ref.tag] = self.tags[ref.tag]
                continue
            self._node("state_read")
            if ref.tag in self.previous:
                values[ref.tag] = self.previous[ref.tag]
            elif ref.init is not None:
                values[ref.tag] = first_value(ref, x)
            else:
                values[ref.tag] = torch.zeros_like(x)
        return values

    def _node(self, what: str | Module) -> str:
        if isinstance(what, Nested):
            kind = "graph"
        elif isinstance(what, Leaf):
            part = self.parts[what.slot]
            kind = type(part).__name__.lower() if isinstance(part, nn.Module) else "lambda"
        else:
            kind = what
        self.ids.append(f"{kind}_{len(self.ids) + 1}")
        return self.ids[-1]

    def _register(self, step: Step, node: str, modules: dict[str, Module]) -> None:
        self.registered[step.name or (step.tags[0] if step.tags else node)] = modules

    def _tag(self, step: Step, value: Tensor) -> Tensor:
        self.tags.update(dict.fromkeys(step.tags, value))
        return value

    def state_keys(self) -> list[str]:
        """The keys a state dict of the graph has; shared modules under every name."""
        keys = []
        for prefix, modules in self.registered.items():
            for path, module in modules.items():
                if isinstance(module, Nested):
                    below = self.players[module.slot].state_keys()
                else:
                    part = self.parts[module.slot]
                    below = list(part.state_dict()) if isinstance(part, nn.Module) else []
                keys += [".".join(filter(None, (prefix, path, key))) for key in below]
        return keys


def first_value(ref: Ref, x: Tensor) -> Tensor:
    """What a carried tag is worth before it was ever written."""
    if ref.init.as_function:
        return torch.full_like(x, ref.init.value)
    return torch.full((1, 1), ref.init.value, dtype=x.dtype)
