"""Nodes of a loop's body that have the same value in every iteration, computed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from flodl.graph.nodes import LoopNode, LoopTraces
from flodl.graph.rewriting.hoisting import Body, auxiliary, body_core, fresh
from flodl.graph.rewriting.known import impurity, unhooked, unusual
from flodl.graph.rewriting.node_rewrite import NodeRewrite


@final
class InvariantsOnce(NodeRewrite):
    """A loop over a graph whose auxiliary inputs stay the same."""

    what: ClassVar[str] = "nodes that do not depend on the loop's state, once"

    def __init__(self) -> None:
        super().__init__()
        self._body: Body | None = None

    def refusal(self, module: nn.Module) -> str:
        """Return why the whole body runs in every iteration; empty if a part of it runs once."""
        if type(module) is not LoopNode or not unhooked(module):
            return "the loop has hooks"
        if body_core(module.body) is None:
            return "the body is not a graph, or it has hooks"
        return "" if self._divided(module) else "all of the body depends on the state"

    def __call__(
        self, module: Any, x: Tensor, *refs: Mapping[str, Tensor]
    ) -> tuple[Tensor, LoopTraces]:
        """Run a loop; ``refs`` has the references of its body, if it has any."""
        usual = not (unusual() or torch.is_inference_mode_enabled())
        done = None
        if refs and usual and not self.refusal(module):
            done = self._run(module, x, refs[0])
        return done or module(x, *refs)

    def _run(
        self, loop: LoopNode, x: Tensor, refs: Mapping[str, Tensor]
    ) -> tuple[Tensor, LoopTraces] | None:
        graph: Any = loop.body
        divided = self._divided(loop)
        if not divided.is_safe(graph):
            return None
        try:
            inputs = graph._ordered((x,), refs)
            values, versions = divided.values(graph, inputs), _versions(inputs[1:])
        except Exception:
            return None  # the plain loop raises the error that names the iteration
        lent, others, rest = divided.lent(graph), inputs[1:], divided.rest

        def step(state: Tensor) -> Tensor:
            nonlocal values, versions
            if versions != (now := _versions(others)):  # the body writes into its inputs
                values, versions = divided.values(graph, (state, *others)), now
            return graph._run(rest, (state, *others, *fresh(values, lent)))  # type: ignore[no-any-return]

        return loop.run(step, x, LoopTraces({}, [], []))

    def _divided(self, loop: LoopNode) -> Any:
        graph: Any = loop.body
        core = graph._core
        if self._body is None or self._body.core is not core:
            self._body = Body(core, auxiliary(core.topology))
        modules = graph._modules
        return self._body.divided(
            lambda node: not node.prefix or not impurity(modules[node.prefix])
        )


def _versions(values: tuple[Tensor | None, ...]) -> list[int]:
    """How often each value was written to; fails for values made in inference mode."""
    return [0 if value is None else value._version for value in values]
