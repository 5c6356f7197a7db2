"""Parts of heads, which turn the states of an encoder into answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from flodl.graph.modules import NamedInputModule
from flodl.hf.layers.activations import activation
from flodl.hf.layers.layout import MASK, Refs
from flodl.hf.layers.transformer_layer import at, place

if TYPE_CHECKING:
    from flodl.graph import FlowBuilder

Widths = tuple[int, int]


def first_token(states: Tensor) -> Tensor:
    """``[B, S, H]`` to ``[B, H]``: the state of the first token of every row."""
    return states[:, 0]


class MeanOfTokens(NamedInputModule):
    """The mean of the states of a row's tokens, without padding."""

    def forward_named(self, states: Tensor, refs: Refs) -> Tensor:
        """``[B, S, H]`` to ``[B, H]``.

        Args:
            states: States.
            refs: ``attention_mask``, ``[B, S]`` or ``[B, 1, 1, S]``: 0 for padding; None for no
                padding.

        Raises:
            ValueError: The mask does not say which tokens count.
        """
        mask: Tensor | None = refs[MASK]
        if mask is None:
            return states.mean(1)
        if mask.dim() == 4 and mask.shape[1:3] == (1, 1) and not mask.is_floating_point():
            mask = mask[:, 0, 0]
        if mask.dim() != 2:
            raise ValueError(
                f"attention_mask has shape {list(mask.shape)}: a classifier that averages tokens "
                "takes [B, S], 0 for padding"
            )
        counts = (mask != 0).to(states.dtype)
        # A row without any token has the mean zero.
        total = counts.sum(1, keepdim=True).clamp(min=1)
        return (states * counts[..., None]).sum(1) / total


class Pooler(nn.Module):
    """``tanh(dense(first token))``, which represents the whole row.

    Args:
        width: H.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """``[B, S, H]`` to ``[B, H]``."""
        pooled: Tensor = self.dense(states[:, 0])
        return pooled.tanh()


def classifier(flow: FlowBuilder, width: int, labels: int, dropout: float) -> None:
    """Append dropout and the projection to the classes."""
    flow.through(nn.Dropout(dropout))
    flow.through(nn.Linear(width, labels), name="classifier")


class Decoder(nn.Module):
    """Turns states into a score per word, with a table of words, usually that of the encoder.

    Args:
        widths: H and the width of the table.
        vocab: V.
        norm_eps: Epsilon of the LayerNorm.
        activate: Name of the activation.
        dense: Name of the first projection.
        norm: Name of the LayerNorm.

    Attributes:
        decoder: The table and the bias in use. If they are tied, they are the same objects as the
            encoder's table and :attr:`bias`.
        bias: ``[V]``.
    """

    def __init__(
        self,
        widths: Widths,
        vocab: int,
        *,
        norm_eps: float,
        activate: str,
        dense: str = "dense",
        norm: str = "LayerNorm",
    ) -> None:
        super().__init__()
        place(self, dense, nn.Linear(*widths))
        place(self, norm, nn.LayerNorm(widths[1], eps=norm_eps))
        self.decoder = nn.Linear(widths[1], vocab)
        self.bias = nn.Parameter(self.decoder.bias.detach().clone())
        self.activation = activation(activate)
        self.dense_name, self.norm_name = dense, norm

    def forward(self, states: Tensor) -> Tensor:
        """``[…, H]`` to ``[…, V]``."""
        dense, norm = at(self, self.dense_name), at(self, self.norm_name)
        logits: Tensor = self.decoder(norm(self.activation(dense(states))))
        return logits


class Named(nn.Sequential):
    """A module under one more name, as in checkpoints."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.add_module(name, module)
