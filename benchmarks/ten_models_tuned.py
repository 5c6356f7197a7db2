"""The ten networks tuned by hand: for each the variant that came out fastest, over equal weights.

Every recipe keeps the mathematics. What each consists of was chosen by measuring fused optimizers,
memory layouts, compilation, the route of matrix products and rewritten modules, one by one and
together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what everyone calls it

from benchmarks.ten_models_networks import EncoderLayer, GatedRouting, LstmSequence, Transformer


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What tuning by hand does to a network beside giving it the fused Adam.

    Attributes:
        rewrite: Turns the module into one that computes the same faster.
        compiled: Through ``torch.compile``.
        channels_last: Convolutions with the channels innermost, data included.
        route: Matrix products through oneDNN, where the machine gains from it.
    """

    rewrite: Callable[[nn.Module], nn.Module] | None = None
    compiled: bool = False
    channels_last: bool = False
    route: bool = False


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


RECIPES: dict[str, Recipe] = {
    "mlp": Recipe(route=True),
    "convnet": Recipe(channels_last=True),
    "gru_seq": Recipe(route=True),
    "transformer": Recipe(rewrite=FusedAttention, compiled=True, route=True),
    "lstm_seq": Recipe(rewrite=LstmCells, route=True),
    "conv_autoenc": Recipe(channels_last=True, compiled=True),
    "residual_tower": Recipe(compiled=True, route=True),
    "gated_routing": Recipe(rewrite=StackedExperts, compiled=True, route=True),
    "iterative_refine": Recipe(route=True),
    "feedback_fixed": Recipe(route=True),
}
