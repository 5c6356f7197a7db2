"""ModernBERT: rotary positions, local and global attention in turn, gated feed-forward networks.

Warner et al., "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast, Memory
Efficient, and Long Context Finetuning and Inference" (2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flodl.graph import NamedInputModule
from flodl.hf.activations import activation
from flodl.hf.configs.modernbert import SLIDING, ModernBertConfig
from flodl.hf.models.attention import attend_tokens
from flodl.hf.models.dropout import dropout
from flodl.hf.models.initial import Cut, drawn_from
from flodl.hf.models.layout import IDS, MASK, POSITIONS, Layout, Refs, layout_of
from flodl.hf.models.local_attention import nearby
from flodl.hf.models.recomputing import RecomputedLayer

_USUAL_CUTOFF = 3.0


def _cut(config: ModernBertConfig, std: float) -> Cut:
    cutoff = config.initializer_cutoff_factor
    return Cut(std, std * (_USUAL_CUTOFF if cutoff is None else cutoff))


def cut_at_input(config: ModernBertConfig) -> Cut:
    """The distribution of word vectors, and of projections that follow a norm."""
    return _cut(config, config.initializer_range)


def cut_at_output(config: ModernBertConfig) -> Cut:
    """The distribution of projections whose results are added up over the layers."""
    return _cut(config, config.initializer_range / math.sqrt(2.0 * config.num_hidden_layers))


def cut_of_classifier(config: ModernBertConfig) -> Cut:
    """The distribution of the last layer of a classifier."""
    return _cut(config, config.hidden_size**-0.5)


def norm_of(config: ModernBertConfig) -> nn.LayerNorm:
    """A LayerNorm of this model."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)


class ModernBertEmbeddings(NamedInputModule):
    """Word vectors, normalised, with dropout; positions come in with attention.

    Args:
        config: Sizes, dropout and the id of padding.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        words = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.tok_embeddings = drawn_from(words, cut_at_input(config))
        self.norm = norm_of(config)
        self.dropout = config.embedding_dropout

    def forward_named(self, ids: Tensor, refs: Refs) -> Tensor:
        """Look up all vectors.

        Args:
            ids: ``[B, S]``.
            refs: The layout.

        Returns:
            ``[T, H]`` or ``[B, S, H]``.
        """
        vectors = self.norm(self.tok_embeddings(layout_of(refs).of_rows(ids)))
        return dropout(vectors, self.dropout, self.training)


class Rotation:
    """The angles by which queries and keys are turned (Su et al., 2021).

    Args:
        positions: The position of every token, ``[T]``, ``[B, S]`` or ``[1, S]``.
        theta: Base of the wavelengths.
        width: Width of a head, D.
        dtype: Dtype of the tokens, to which sines and cosines are rounded.
    """

    __slots__ = ("cos", "sin")

    def __init__(self, positions: Tensor, theta: float, width: int, dtype: torch.dtype) -> None:
        steps = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device)
        angles = positions[..., None].float() * (1.0 / theta ** (steps / width))
        # One axis each for query or key, and for the heads.
        self.cos = angles.cos().to(dtype)[..., None, None, :]
        self.sin = angles.sin().to(dtype)[..., None, None, :]

    def __call__(self, vectors: Tensor) -> Tensor:
        """Turn ``[…, 2, heads, D]``: every number of the first half of D with its partner."""
        wide = vectors if vectors.element_size() >= 4 else vectors.float()
        left, right = wide.chunk(2, -1)
        cos, sin = self.cos, self.sin
        turned = torch.cat((left * cos - right * sin, right * cos + left * sin), -1)
        return turned.to(vectors.dtype)


class ModernBertAttention(nn.Module):
    """Attention whose scores depend on the distance of two tokens.

    Args:
        config: Widths, heads and dropout.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        width, bias = config.hidden_size, config.attention_bias
        self.heads = config.num_attention_heads
        self.Wqkv = drawn_from(nn.Linear(width, 3 * width, bias=bias), cut_at_input(config))
        self.Wo = drawn_from(nn.Linear(width, width, bias=bias), cut_at_output(config))
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, tokens: Tensor, layout: Layout, rotation: Rotation) -> Tensor:
        """Compute attention.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            layout: Their layout.
            rotation: The angles of their positions.

        Returns:
            Like ``tokens``; ``[B, H]``, the first token of every row, if only that is used.
        """
        mixed = self.Wqkv(tokens)
        mixed = mixed.view(*mixed.shape[:-1], 3, self.heads, tokens.shape[-1] // self.heads)
        query, key = rotation(mixed[..., :2, :, :]).flatten(-2).unbind(-2)
        value = mixed[..., 2, :, :].flatten(-2)
        if layout.ends_first:
            query = layout.firsts(query)
        p = self.dropout if self.training else 0.0
        attended = attend_tokens(query, key, value, self.heads, layout, p)
        return dropout(self.Wo(attended), self.dropout, self.training)


class GatedMLP(nn.Module):
    """A feed-forward network in which one half of the values scales the other (Shazeer, 2020).

    Args:
        config: Widths, activation and dropout.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.Wi = drawn_from(nn.Linear(width, 2 * inner, bias=bias), cut_at_input(config))
        self.Wo = drawn_from(nn.Linear(inner, width, bias=bias), cut_at_output(config))
        self.activation = activation(config.hidden_act)
        self.dropout = config.hidden_dropout_prob

    def forward(self, tokens: Tensor) -> Tensor:
        """``[…, H]`` to ``[…, H]``."""
        values, gate = self.Wi(tokens).chunk(2, dim=-1)
        values = dropout(self.activation(values) * gate, self.dropout, self.training)
        changed: Tensor = self.Wo(values)
        return changed


class ModernBertLayer(RecomputedLayer):
    """Attention and a gated feed-forward network; both normalise their input (pre-norm).

    Args:
        config: Widths, heads, activation and dropout.
        number: Number of the layer. The first one has no norm before its attention, because the
            embeddings end with one.
    """

    def __init__(self, config: ModernBertConfig, number: int) -> None:
        super().__init__()
        self.attn_norm = norm_of(config) if number else nn.Identity()
        self.attn = ModernBertAttention(config)
        self.mlp_norm = norm_of(config)
        self.mlp = GatedMLP(config)

    def forward(self, tokens: Tensor, layout: Layout, rotation: Rotation) -> Tensor:
        """Run the layer.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            layout: Their layout, for this type of layer.
            rotation: The angles of their positions, for this type of layer.

        Returns:
            Like ``tokens``; ``[B, H]``, the first token of every row, if only that is used.
        """
        attended = self.attn(self.attn_norm(tokens), layout, rotation)
        if layout.ends_first:
            tokens, attended = layout.firsts(tokens), layout.firsts(attended)
        tokens = tokens + attended
        changed: Tensor = self.mlp(self.mlp_norm(tokens))
        return tokens + changed


class ModernBertLayers(NamedInputModule):
    """All layers, each under its number.

    Args:
        config: Widths, types and number of layers.

    Attributes:
        types: The type of attention of every layer, as in the configuration.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.window = config.window
        self.head_width = config.hidden_size // config.num_attention_heads
        self.thetas = (config.global_rope_theta, config.local_rope_theta)
        self.types = config.layer_types
        for number in range(config.num_hidden_layers):
            self.add_module(str(number), ModernBertLayer(config, number))

    def keep(self, numbers: Sequence[int]) -> None:
        """Remove all layers but these, which are numbered from 0 afterwards."""
        kept = [self._modules[str(number)] for number in numbers]
        self.types = tuple(self.types[number] for number in numbers)
        self._modules.clear()
        for number, layer in enumerate(kept):
            self.add_module(str(number), layer)

    def forward_named(self, tokens: Tensor, refs: Refs) -> Tensor:
        """Run all layers.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            refs: The layout, and ``position_ids [B or 1, S]`` or None.
        """
        whole = layout_of(refs).in_runs(tokens.dtype)
        layouts = (whole, nearby(whole, self.window, tokens))
        positions = _positions(refs, whole)
        rotations = tuple(
            Rotation(positions, theta, self.head_width, tokens.dtype) for theta in self.thetas
        )
        inner = tuple(layout.before_the_end for layout in layouts)
        layers: list[Any] = list(self._modules.values())
        for number, layer in enumerate(layers):
            whole.note(tokens)
            local = self.types[number] == SLIDING
            chosen = layouts if number == len(layers) - 1 else inner
            tokens = layer(tokens, chosen[local], rotations[local])
        return tokens


def _positions(refs: Refs, layout: Layout) -> Tensor:
    """The position of every token: ``[T]``, ``[B, S]``, or ``[1, S]`` for all rows."""
    given: Tensor | None = refs.get(POSITIONS)
    if given is None:
        given = torch.arange(layout.length, device=refs[IDS].device)[None]
    return layout.of_rows(given.expand(layout.rows, -1)) if layout.packed else given


class PredictionHead(nn.Module):
    """The part that all heads share: a projection, an activation and a norm.

    Args:
        config: Widths and the activation.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        dense = nn.Linear(width, width, bias=config.classifier_bias)
        self.dense = drawn_from(dense, cut_at_output(config))
        self.norm = norm_of(config)
        self.activation = activation(config.classifier_activation)

    def forward(self, states: Tensor) -> Tensor:
        """``[…, H]`` to ``[…, H]``."""
        normed: Tensor = self.norm(self.activation(self.dense(states)))
        return normed


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
