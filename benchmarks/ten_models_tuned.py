"""The ten networks tuned by hand, in all variants that somebody who measures would try.

Every variant keeps the mathematics. Its parts are the fused Adam, a kept heap, the memory layout,
the route of matrix products, a rewritten module and compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what everyone calls it

from benchmarks.ten_models_networks import EncoderLayer, GatedRouting, LstmSequence, Transformer


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What tuning by hand does to a network.

    Attributes:
        fused: torch's fused Adam.
        heap: Freed memory stays in the process.
        route: Matrix products through oneDNN, where the machine gains from it.
        channels_last: Convolutions with the channels innermost, data included.
        rewrite: Turns the module into one that computes the same faster.
        compiled: Through ``torch.compile``.
    """

    fused: bool = True
    heap: bool = True
    route: bool = False
    channels_last: bool = False
    rewrite: Callable[[nn.Module], nn.Module] | None = None
    compiled: bool = False

    def __str__(self) -> str:
        words = {
            "fused Adam": self.fused,
            "kept heap": self.heap,
            "routed": self.route,
            "channels last": self.channels_last,
            "rewritten": self.rewrite is not None,
            "compiled": self.compiled,
        }
        return " + ".join(word for word, used in words.items() if used)


def copies(layers: list[nn.Module], name: str) -> Tensor:
    """The parameters of that name, one below the other."""
    return torch.stack([layer.get_parameter(name).detach() for layer in layers])


class StackedExperts(nn.Module):
    """The experts of :class:`GatedRouting` as one product; takes copies of its weights."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        assert isinstance(plain, GatedRouting)
        layers = [list(expert.children()) for expert in plain.experts]
        linears, norms = [each[0] for each in layers], [each[2] for each in layers]
        self.entry, self.gate, self.exit = plain.entry, plain.gate, plain.exit
        self.experts = len(linears)
        self.weight = nn.Parameter(copies(linears, "weight").flatten(0, 1))
        self.bias = nn.Parameter(copies(linears, "bias").flatten())
        self.gain = nn.Parameter(copies(norms, "weight"))
        self.shift = nn.Parameter(copies(norms, "bias"))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, width]`` to the same."""
        x = self.entry(x)
        weights = torch.softmax(self.gate(x), dim=-1)
        hidden = F.gelu(F.linear(x, self.weight, self.bias)).view(len(x), self.experts, -1)
        outputs = F.layer_norm(hidden, hidden.shape[-1:]) * self.gain + self.shift
        mixed = torch.bmm(weights.unsqueeze(1), outputs).squeeze(1)
        y: Tensor = self.exit(mixed)
        return y


class LstmCells(nn.Module):
    """The LSTM as a loop over cells, over the very parameters of the plain one."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        assert isinstance(plain, LstmSequence)
        self.lstm, self.head = plain.lstm, plain.head

    def forward(self, x: Tensor) -> Tensor:
        """Read the sequence ``[B, T, width]``; ``[B, width]``."""
        layers = self.lstm.all_weights
        zero = x.new_zeros(x.shape[0], self.lstm.hidden_size)
        states = [(zero, zero) for _ in layers]
        for value in x.unbind(1):
            below = value
            for number, (input_weight, hidden_weight, input_bias, hidden_bias) in enumerate(layers):
                states[number] = torch.lstm_cell(
                    below, states[number], input_weight, hidden_weight, input_bias, hidden_bias
                )
                below = states[number][0]
        y: Tensor = self.head(states[-1][0])
        return y


class FusedAttention(nn.Module):
    """The transformer without the attention weights nobody reads, so that a fused kernel runs."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        assert isinstance(plain, Transformer)
        self.plain = plain

    def forward(self, tokens: Tensor) -> Tensor:
        """Predict."""
        plain = self.plain
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x: Tensor = plain.tokens(tokens) + plain.positions(places)
        for layer in plain.layers:
            assert isinstance(layer, EncoderLayer)
            attended, _ = layer.attention(x, x, x, need_weights=False)
            x = layer.norm1(x + attended)
            x = layer.norm2(x + layer.feed_forward(x))
        y: Tensor = plain.head(x)
        return y


FUSED = Recipe(heap=False)
USUAL = (FUSED, Recipe())
"""Variants of every network."""

RECIPES: dict[str, tuple[Recipe, ...]] = {
    "mlp": (Recipe(route=True), Recipe(route=True, compiled=True)),
    "convnet": (Recipe(channels_last=True), Recipe(channels_last=True, compiled=True)),
    "gru_seq": (Recipe(route=True), Recipe(route=True, compiled=True)),
    "transformer": (
        Recipe(rewrite=FusedAttention),
        Recipe(rewrite=FusedAttention, route=True),
        Recipe(rewrite=FusedAttention, route=True, compiled=True),
    ),
    "lstm_seq": (
        Recipe(rewrite=LstmCells),
        Recipe(rewrite=LstmCells, route=True),
        Recipe(compiled=True),
    ),
    "conv_autoenc": (Recipe(channels_last=True), Recipe(channels_last=True, compiled=True)),
    "residual_tower": (Recipe(route=True), Recipe(route=True, compiled=True)),
    "gated_routing": (
        Recipe(route=True),
        Recipe(rewrite=StackedExperts, route=True),
        Recipe(rewrite=StackedExperts, route=True, compiled=True),
    ),
    "iterative_refine": (Recipe(route=True), Recipe(route=True, compiled=True)),
    "feedback_fixed": (Recipe(route=True), Recipe(route=True, compiled=True)),
}
"""The variants of a network beside :data:`USUAL`."""


def variants(name: str, *, routing: bool, compiling: bool) -> list[Recipe]:
    """Return the variants of a network by hand, each once.

    Args:
        name: The network.
        routing: Whether matrix products may be routed.
        compiling: Whether the step may be compiled.
    """
    found = [
        recipe if routing else replace(recipe, route=False) for recipe in (*USUAL, *RECIPES[name])
    ]
    return list(dict.fromkeys(recipe for recipe in found if compiling or not recipe.compiled))
