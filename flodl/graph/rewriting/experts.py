"""The experts of a gate as one product, if all have the same layers and shapes.

A gate calls its experts one after the other. Experts with layers of the same classes and shapes are
one larger product per layer. Their weights are put together at every call, so the parameters stay
those of the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its name everywhere

from flodl.graph.nodes import GateNode, weigh
from flodl.graph.rewriting.known import (
    is_elementwise,
    is_silent,
    refusal,
    settings,
    unhooked,
    unusual,
)
from flodl.graph.rewriting.node_rewrite import NodeRewrite


@final
class Limits(NamedTuple):
    """Up to which size the experts are faster as one product on a CPU.

    What is saved is the same for each call of an expert. What it costs grows: weights are put
    together, and values of all experts exist at once. Measured on two cores of an AMD EPYC with 4
    and 8 experts of width 16 to 512 and 4 to 1024 rows, forward and backward: within the limits it
    takes 0.59 to 0.98 of the time, beyond them up to 2.3 times as long. GPUs have no limits here,
    because they were not measured.

    Attributes:
        weights: Of all Linears of an expert.
        values: Rows times the widest output of an expert, for each expert of the gate.
    """

    weights: int
    values: int


LINEAR_ALONE = Limits(1 << 12, 1 << 8)
LINEAR_AND_OTHERS = Limits(1 << 16, 1 << 10)
SEVERAL_LINEARS = Limits(1 << 12, 1 << 12)

Level = tuple[nn.Module, ...]
"""One layer of every expert, at the same place in each."""


@final
class ExpertsAsOne(NodeRewrite):
    """A gate whose experts are computed together.

    Attributes:
        too_large: Shapes of inputs on a CPU for which it does not pay. They cost one look.
    """

    what: ClassVar[str] = "experts as one product"

    def __init__(self) -> None:
        super().__init__()
        self.too_large: set[torch.Size] = set()

    def refusal(self, module: nn.Module) -> str:
        """Return why the experts are called one by one; empty if they are computed together."""
        if type(module) is not GateNode or not unhooked(module):
            return "the gate has hooks"
        found = _levels(module.experts)
        return found if isinstance(found, str) else _costs(found) or self.wrong

    def __call__(self, module: Any, x: Tensor, *refs: Mapping[str, Tensor]) -> Tensor:
        """Compute a gate; ``refs`` has the references of its router, if it has any."""
        plainly = unusual() or self.wrong or (x.is_cpu and x.shape in self.too_large)
        if plainly or type(module) is not GateNode or not unhooked(module):
            return module(x, *refs)  # type: ignore[no-any-return]
        weights = module.weights(x, *refs)
        # After the router, which is code of the user and may have changed something.
        mixed = self._mixed(module, weights, x)
        return weigh(weights, module.outputs(x)) if mixed is None else mixed

    def _mixed(self, gate: GateNode, weights: Tensor, x: Tensor) -> Tensor | None:
        """The weighted sum of all experts; None if each must be called."""
        levels = _levels(gate.experts)
        if isinstance(levels, str) or x.dim() < 2 or not x.numel():
            return None
        if _costs(levels, x.numel() // x.shape[-1]):
            self.too_large.add(x.shape)
            return None
        weight = levels[0][0]._parameters["weight"]
        if weight is None or (weight.dtype, weight.device) != (x.dtype, x.device):
            return None
        try:
            mixed = _mix(levels, weights, x)
        except (RuntimeError, ValueError):
            return None  # the gate itself raises the error that names what fails
        plain = lambda: [weigh(weights, gate.outputs(x))]  # noqa: E731 - shorter than a def
        return mixed if self.agrees(plain, [mixed]) else None


def _costs(levels: list[Level], rows: int = 0) -> str:
    """Return why the experts are faster one by one; empty if they are not."""
    linears = [level[0] for level in levels if isinstance(level[0], nn.Linear)]
    if linears[0].weight.device.type != "cpu":
        return ""
    weights = sum(one.weight.numel() for one in linears)
    values = rows * max(one.out_features for one in linears)
    limits = LINEAR_AND_OTHERS if len(levels) > 1 else LINEAR_ALONE
    if len(linears) > 1:
        limits = SEVERAL_LINEARS
    if weights > limits.weights:
        return f"experts of {weights} weights are faster one by one"
    return f"{rows} rows are faster one by one" if values > limits.values * len(levels[0]) else ""


def _mix(levels: list[Level], weights: Tensor, x: Tensor) -> Tensor:
    """The weighted sum of what the experts compute from ``x [..., width]``."""
    rows, lead = x.reshape(-1, x.shape[-1]), x.shape[:-1]
    *before, last = levels
    per_row = weights.shape == (*lead, len(last)) and weights.dtype == x.dtype
    if not per_row:
        outputs = _outputs(levels, rows)
        return weigh(weights, outputs.reshape(*lead, *outputs.shape[1:]).unbind(-2))
    weights = weights.reshape(-1, len(last))
    if not before or not isinstance(last[0], nn.Linear):
        total = torch.bmm(weights.unsqueeze(1), _outputs(levels, rows))
        return total.reshape(*lead, -1)
    # A weight per row goes into the last product, which then adds the experts up, too.
    value = _outputs(before, rows)
    inner = (value * weights.unsqueeze(-1)).reshape(len(rows), -1)
    product = torch.cat([one.weight for one in last], 1).t()  # type: ignore[misc]
    bias = _stacked(last, "bias")
    total = inner @ product if bias is None else torch.addmm(weights @ bias, inner, product)
    return total.reshape(*lead, -1)


def _outputs(levels: list[Level], rows: Tensor) -> Tensor:
    """``[R, width]`` to ``[R, N, out]`` through all experts."""
    value = rows
    for level in levels:
        layer = level[0]
        if isinstance(layer, nn.LayerNorm):
            value = F.layer_norm(value, layer.normalized_shape, eps=layer.eps)
            weight, bias = _stacked(level, "weight"), _stacked(level, "bias")
            if weight is not None and bias is not None:
                value = torch.addcmul(bias, value, weight)
            elif weight is not None:
                value = value * weight
        elif not isinstance(layer, nn.Linear):
            value = layer(value)
        elif value is rows:
            weights = torch.cat([one.weight for one in level])  # type: ignore[misc]
            bias = None if layer.bias is None else torch.cat([one.bias for one in level])  # type: ignore[misc]
            value = F.linear(rows, weights, bias).reshape(len(rows), len(level), -1)
        else:
            value = _linears(level, value)
    return value


def _linears(level: Level, value: Tensor) -> Tensor:
    """Every expert's Linear on its own part of ``[R, N, in]``."""
    weights, bias = torch.stack([one.weight for one in level]), _stacked(level, "bias")  # type: ignore[misc]
    parts, transposed = value.transpose(0, 1), weights.transpose(1, 2)
    if bias is None:
        return torch.bmm(parts, transposed).transpose(0, 1)
    return torch.baddbmm(bias.unsqueeze(1), parts, transposed).transpose(0, 1)


def _stacked(level: Level, name: str) -> Tensor | None:
    parameters = [layer._parameters[name] for layer in level]
    if parameters[0] is None:
        return None
    return torch.stack(parameters)  # type: ignore[arg-type]


def _levels(experts: nn.Module) -> list[Level] | str:
    """The layers of all experts, level by level; or why they cannot be computed together."""
    if reason := refusal(experts):
        return reason
    stacks: list[list[nn.Module]] = []
    keys: list[list[tuple[object, ...]]] = []
    for expert in experts.children():
        stack = list[nn.Module]()
        if reason := _collect(expert, stack):
            return reason
        stacks.append(stack)
        keys.append([_key(layer) for layer in stack])
    if unable := next((key[1] for each in keys for key in each if key[0] is None), ""):
        return str(unable)
    if any(key != keys[0] for key in keys[1:]):
        return "the experts differ in layers or shapes"
    if not stacks[0] or not isinstance(stacks[0][0], nn.Linear):
        return "the experts do not begin with a Linear"
    parameters = (p for stack in stacks for layer in stack for p in layer._parameters.values())
    if len({(p.dtype, p.device) for p in parameters if p is not None}) > 1:
        return "the experts have different dtypes or devices"
    return list(zip(*stacks, strict=True))


def _collect(expert: nn.Module, stack: list[nn.Module]) -> str:
    """Append the layers of an expert in order, without dropouts that drop nothing."""
    if reason := refusal(expert):
        return reason
    if isinstance(expert, nn.Sequential):
        return next(filter(None, (_collect(one, stack) for one in expert)), "")
    if not is_silent(expert):
        stack.append(expert)
    return ""


def _key(layer: nn.Module) -> tuple[object, ...]:
    """Equal for layers that can be computed together; ``(None, reason)`` for others."""
    parameters = layer._parameters
    shapes = tuple(None if p is None else p.shape for p in parameters.values())
    if isinstance(layer, nn.Linear):
        return (nn.Linear, shapes)
    if isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1:
        return (nn.LayerNorm, shapes, layer.normalized_shape, layer.eps)
    if is_elementwise(layer, own_input=True):
        return settings(layer)
    if isinstance(layer, nn.Dropout):
        return None, "dropout draws random numbers"
    return None, f"{type(layer).__name__} does not work for several experts at once"
