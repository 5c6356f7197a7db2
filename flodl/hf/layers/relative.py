"""Attention whose scores come from content and, separately, from the distance of two tokens.

He et al., "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from flodl.hf.layers.activations import dropout
from flodl.hf.layers.attention import attend, split_heads
from flodl.hf.layers.layout import Layout
from flodl.torch_features import is_exporting

if TYPE_CHECKING:
    from flodl.hf.families.deberta import DebertaV2Config


def relative_rows(length: int, buckets: int, farthest: int, device: torch.device) -> Tensor:
    """Rows in the table of positions for all distances between tokens of a row.

    Each distance up to half the buckets has a separate row. Larger distances share rows in steps
    that grow with the logarithm. Distances beyond the farthest get the first or last row.

    Args:
        length: S.
        buckets: Buckets of the table. Below 1 there are none: every distance has a row.
        farthest: The largest distance with a separate row; below 1 for no buckets.
        device: Device of the result.

    Returns:
        Int64 ``[2 * S - 1]`` for distances ``-(S - 1) … S - 1`` from key to query, not clamped:
        0 means distance zero.
    """
    distance = torch.arange(1 - length, length, device=device)
    if buckets < 1 or farthest < 1:
        return distance
    middle = buckets // 2
    size = distance.abs().clamp(min=1).float()
    # All in float32: if a step ends at a whole number, the last bit decides which row it is.
    span = torch.log(torch.tensor((farthest - 1) / middle, dtype=torch.float32, device="cpu"))
    step = torch.log(size / middle) / span * (middle - 1)
    bucket = (torch.ceil(step) + middle) * torch.sign(distance)
    return torch.where(distance.abs() <= middle, distance, bucket.long())


@dataclass(slots=True)
class RelativeTable:
    """The vectors of relative positions of one call, the same for all layers.

    Attributes:
        vectors: ``[2 * P, H]``, normalised if the model does that.
        rows: Int64 ``[2 * S - 1]``: the result of :func:`relative_rows`.
        sources: The parameters that the vectors come from.
    """

    vectors: Tensor
    rows: Tensor
    sources: tuple[Tensor, ...]


class DisentangledAttention(nn.Module):
    """Scores of content to content, content to position and position to content.

    Args:
        config: Widths and the use of positions.
    """

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.query_proj = nn.Linear(width, width)
        self.key_proj = nn.Linear(width, width)
        self.value_proj = nn.Linear(width, width)
        self.relative = config.relative_attention
        self.to_position = "c2p" in config.pos_att_type
        self.from_position = "p2c" in config.pos_att_type
        self.shared = config.share_att_key
        if self.relative and not self.shared:
            if self.to_position:
                self.pos_key_proj = nn.Linear(width, width)
            if self.from_position:
                self.pos_query_proj = nn.Linear(width, width)
        terms = 1 + self.to_position + self.from_position
        self.scale = 1 / math.sqrt(width / self.heads * terms)
        self.dropout = config.attention_probs_dropout_prob
        self.position_dropout = config.hidden_dropout_prob
        self._known: tuple[_State, tuple[Tensor | None, Tensor | None]] | None = None

    def forward(self, tokens: Tensor, layout: Layout, table: RelativeTable | None) -> Tensor:
        """Compute attention.

        Args:
            tokens: ``[T, H]`` or ``[B, S, H]``.
            layout: Their layout.
            table: Relative positions; None if the model has none.
        """
        query, key, value = (
            split_heads(projection(tokens), self.heads, layout)
            for projection in (self.query_proj, self.key_proj, self.value_proj)
        )
        bias = None
        if table is not None and (self.to_position or self.from_position):
            bias = self._scores(query, key, table)
        if layout.bias is not None:
            query, bias = _masked(query, bias, layout)
        dropout = self.dropout if self.training else 0.0
        return attend(query, key, value, layout, bias=bias, dropout=dropout, scale=self.scale)

    def _scores(self, query: Tensor, key: Tensor, table: RelativeTable) -> Tensor:
        """The part of the scores that comes from positions: ``[B, heads, S, S]``, scaled."""
        keys, queries = self._projected(table)
        scores: Tensor | float = 0.0
        if keys is not None:
            # The distance from query to key falls as the position of the key grows.
            scores = scores + _shifted(_by_distance(query, keys, table.rows.flip(0)))
        if queries is not None:
            scores = scores + _shifted(_by_distance(key, queries, table.rows)).transpose(-1, -2)
        return scores * self.scale  # type: ignore[return-value]  # there is one of them at least

    def _projected(self, table: RelativeTable) -> tuple[Tensor | None, Tensor | None]:
        """The table as keys and as queries; kept from call to call if nothing is trained."""
        to_keys = self.key_proj if self.shared else self._modules.get("pos_key_proj")
        to_queries = self.query_proj if self.shared else self._modules.get("pos_query_proj")
        parts = [to_keys if self.to_position else None, to_queries if self.from_position else None]
        state = self._state(parts, table)
        known = self._known  # read it once, because another thread may replace it
        if state is not None and known is not None and _same(known[0], state):
            return known[1]
        vectors = dropout(table.vectors, self.position_dropout, self.training)
        keys, queries = (None if part is None else part(vectors) for part in parts)
        self._known = None if state is None else (state, (keys, queries))
        return keys, queries

    def _state(self, parts: list[Any], table: RelativeTable) -> _State | None:
        """The values the projections depend on; None if they must be computed again."""
        if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        if torch.is_autocast_enabled(table.vectors.device.type):
            return None  # under autocast, the result has another dtype
        used = [part for part in parts if part is not None]
        if any(type(part) is not nn.Linear for part in used):
            return None
        tensors = [*table.sources, *(tensor for part in used for tensor in part.parameters())]
        if any(tensor.is_inference() for tensor in tensors):
            return None
        return [(tensor, tensor.data_ptr(), tensor._version) for tensor in tensors]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}


_State = list[tuple[Tensor, int, int]]
"""Tensors, the addresses of their values, and how often these were written."""


def _same(known: _State, state: _State) -> bool:
    return len(known) == len(state) and all(
        old[0] is new[0] and old[1:] == new[1:] for old, new in zip(known, state, strict=True)
    )


def _masked(query: Tensor, bias: Tensor | None, layout: Layout) -> tuple[Tensor, Tensor]:
    """Hide padding from tokens, and let padding attend to all positions equally (reference).

    Args:
        query: ``[B, heads, S, D]``.
        bias: Added to the scores, ``[B, heads, S, S]``; None for zero.
        layout: A layout with a mask. If packed, it contains no padding whose result is used.

    Returns:
        Queries, and the tensor to add to their scores.
    """
    hidden = ~layout.keys
    bias = query.new_zeros(()) if bias is None else bias
    if layout.packed:
        # If no position of a row counts, hide none: a softmax over nothing is NaN.
        hidden = hidden & layout.keys.any(-1, keepdim=True)
    else:
        # All scores of padding are zero. The lowest number of the dtype would give the same result,
        # but its gradient is lost in rounding.
        padding = hidden.transpose(-1, -2)
        query, bias = query.masked_fill(padding, 0.0), bias.masked_fill(padding, 0.0)
        hidden = hidden & ~padding
    return query, bias.masked_fill(hidden, -math.inf)


def _by_distance(content: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
    """Products of every token with the vector of every distance.

    Args:
        content: ``[B, heads, S, D]``.
        positions: ``[2 * P, H]``, one row per entry of the table.
        rows: ``[2 * S - 1]``, the table entry of each distance, not clamped.

    Returns:
        ``[B, heads, S, 2 * S - 1]``.
    """
    batch, heads, length, width = content.shape
    entries = len(positions)
    rows = (rows + entries // 2).clamp(0, entries - 1)
    vectors = positions.view(entries, heads, width).permute(1, 2, 0)
    content = content.transpose(0, 1).reshape(heads, batch * length, width)
    # A compiler uses one branch for all lengths, and must not compare them at all.
    if not torch.compiler.is_compiling() and len(rows) <= entries:
        products = torch.bmm(content, vectors.index_select(-1, rows))
    else:
        products = torch.bmm(content, vectors).index_select(-1, rows)
    return products.view(heads, batch, length, products.shape[-1]).transpose(0, 1)


def _shifted(by_distance: Tensor) -> Tensor:
    """``y[i, j] = x[i, j - i + S - 1]``: from ``[…, S, 2 * S - 1]`` to ``[…, S, S]``.

    The first S - 1 elements are skipped, and the rest is read as rows that are one element shorter.
    So each row moves by one column (the shift of Transformer-XL, Dai et al., 2019).
    """
    length = by_distance.shape[-2]
    if is_exporting():
        # Rows of one or two tokens would need other programs; an export serves all lengths.
        place = torch.arange(length, device=by_distance.device)
        index = place - place[:, None] + length - 1
        return by_distance.gather(-1, index.expand(*by_distance.shape[:-1], length))
    if length == 1:
        return by_distance
    lead = by_distance.shape[:-2]
    flat = by_distance.flatten(-2)[..., length - 1 : length - 1 + length * (2 * length - 2)]
    return flat.reshape(*lead, length, 2 * length - 2)[..., :length]
