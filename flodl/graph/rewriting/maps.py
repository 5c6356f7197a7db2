"""Maps whose parts are computed together, as far as their body treats rows one by one."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from flodl.graph.nodes import first_tensor, map_each
from flodl.graph.rewriting.hoisting import Body, body_core, fresh
from flodl.graph.rewriting.known import mixes_rows, unusual
from flodl.graph.rewriting.node_rewrite import NodeRewrite
from flodl.graph.topology import ENTRY, Call, Combine, Node

_COMPUTING = (nn.Linear, nn.LayerNorm, nn.RMSNorm)
"""Layers with a result of its own memory; a map of others alone is not rewritten."""


@final
class PartsTogether(NodeRewrite):
    """A map over the first dimension."""

    what: ClassVar[str] = "layers of a map for all parts at once"

    def __init__(self) -> None:
        super().__init__()
        self._body: Body | None = None

    def refusal(self, module: nn.Module) -> str:
        """Return why every part is computed alone; empty if a layer computes all of them."""
        return self._reason(module, 2)

    def _reason(self, module: nn.Module, dims: int) -> str:
        if body_core(module) is None:
            if reason := mixes_rows(module, dims):
                return reason
            able = any(isinstance(one, _COMPUTING) for one in module.modules())
            return self.wrong if able else "the body has no layer that pays"
        return self.wrong if self._divided(module, dims) else "no node reads the parts alone"

    def __call__(self, module: Any, x: Tensor, node_id: str) -> Tensor:
        """Map a body over the first dimension of ``x``."""
        plainly = unusual() or torch.is_inference_mode_enabled() or x.dim() < 2 or len(x) < 2
        if plainly or self._reason(module, x.dim()):
            return map_each(module, x, node_id)
        try:
            return self._together(module, x, node_id)
        except _OtherWayError:
            return map_each(module, x, node_id)

    def _together(self, module: Any, x: Tensor, node_id: str) -> Tensor:
        if body_core(module) is not None:
            return self._prepared(module, x, node_id)
        try:
            value: Tensor = module(x)
        except RuntimeError as error:
            raise _OtherWayError from error
        if not self.agrees(lambda: [map_each(module, x, node_id)], [value]):
            raise _OtherWayError
        return value

    def _prepared(self, graph: Any, x: Tensor, node_id: str) -> Tensor:
        """Compute the first nodes of a graph for all parts, and the rest part by part."""
        divided = self._divided(graph, x.dim())
        if not divided.is_safe(graph):
            raise _OtherWayError
        others = graph._ordered((x,), {})[1:]
        parts = torch.split(x, 1)
        try:
            values = divided.values(graph, (x, *others))
        except Exception as error:
            raise _OtherWayError from error

        def by_part() -> list[Tensor]:
            found = [divided.values(graph, (part, *others)) for part in parts]
            return [torch.cat(column) for column in zip(*found, strict=True)]

        if not self.agrees(by_part, values):
            raise _OtherWayError
        lent, rest = divided.lent(graph), divided.rest
        results = [
            first_tensor(graph._run(rest, (part, *others, *fresh(tuple(own), lent))), node_id)
            for part, *own in zip(parts, *(value.split(1) for value in values), strict=True)
        ]
        return torch.cat(results)

    def _divided(self, graph: Any, dims: int) -> Any:
        core = graph._core
        if self._body is None or self._body.core is not core:
            self._body = Body(core, [ENTRY], _is_plain_call)
        modules = graph._modules
        return self._body.divided(
            lambda node: not node.prefix or not mixes_rows(modules[node.prefix], dims)
        )


class _OtherWayError(Exception):
    """The parts must be computed one by one."""


def _is_plain_call(node: Node) -> bool:
    operation = node.operation
    return isinstance(operation, Call) or (
        isinstance(operation, Combine) and not operation.broadcast
    )
