"""Scaled dot-product attention for tokens in either layout."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from flodl.hf.models.dropout import dropout as dropped_out
from flodl.hf.models.layout import Layout, Run
from flodl.hf.models.local_attention import attend_near


def split_heads(tokens: Tensor, heads: int, layout: Layout) -> Tensor:
    """``[T, H]`` or ``[B, S, H]`` to ``[B, heads, S, H / heads]``."""
    rows = layout.in_rows(tokens)
    return rows.view(*rows.shape[:2], heads, rows.shape[-1] // heads).transpose(1, 2)


def join_heads(context: Tensor, layout: Layout) -> Tensor:
    """The inverse of :func:`split_heads`."""
    return layout.of_rows(context.transpose(1, 2).flatten(2))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    bias: Tensor | None,
    dropout: float,
    scale: float | None = None,
) -> Tensor:
    """Let every token attend to the tokens of its row (Vaswani et al., 2017).

    Args:
        query: ``[B, heads, S, D]``, like ``key`` and ``value``.
        key: Keys.
        value: Values.
        layout: The layout of the tokens.
        bias: Bool, True for positions that get attention, or floats added to the scores;
            broadcasts to ``[B, heads, S, S]``.
        dropout: Probability of dropping a weight; 0 when not training.
        scale: Factor of the scores; None for ``1 / sqrt(D)``.

    Returns:
        ``[T, heads * D]`` or ``[B, S, heads * D]``.
    """
    if layout.record is not None and layout.record.attentions is not None:
        weights = _weights(query, key, bias, scale)
        layout.record.attentions.append(weights)
        context = dropped_out(weights, dropout, training=dropout > 0) @ value
    else:
        context = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, dropout_p=dropout, scale=scale
        )
    return join_heads(context, layout)


def _weights(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """The weights of the values in attention: ``[B, heads, S, S]``; see :func:`attend`."""
    scores = query @ key.transpose(-1, -2)
    scores = scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale
    if bias is not None:
        # The lowest number, not minus infinity: a row that sees nothing gets equal weights, as in
        # transformers, instead of NaN.
        lowest = torch.finfo(scores.dtype).min
        hidden = bias.dtype == torch.bool
        scores = scores.masked_fill(~bias, lowest) if hidden else scores + bias
    return scores.softmax(-1)


def attend_tokens(
    query: Tensor, key: Tensor, value: Tensor, heads: int, layout: Layout, dropout: float
) -> Tensor:
    """Let every token attend to the tokens of its row; tokens in runs need no padding for it.

    Args:
        query: ``[T, H]`` or ``[B, S, H]``; ``[B, H]`` if only the first token of every row
            attends, see :attr:`Layout.ends_first`.
        key: Keys, ``[T, H]`` or ``[B, S, H]``.
        value: Values, like ``key``.
        heads: Number of heads.
        layout: The layout of the tokens.
        dropout: Probability of dropping a weight; 0 when not training.

    Returns:
        Like ``query``.
    """
    if not layout.runs:
        keys, values = split_heads(key, heads, layout), split_heads(value, heads, layout)
        if layout.ends_first:
            return _attend_firsts(query, keys, values, layout, dropout)
        queries = split_heads(query, heads, layout)
        if layout.window is not None:
            seen, window = layout.bias, layout.window
            near = attend_near(queries, keys, values, window, seen=seen, dropout=dropout)
            return join_heads(near, layout)
        return attend(queries, keys, values, layout, bias=layout.bias, dropout=dropout)
    sizes = [run.rows * run.length for run in layout.runs]
    asking = [run.rows for run in layout.runs] if layout.ends_first else sizes
    split = torch.split(query, asking), torch.split(key, sizes), torch.split(value, sizes)
    found = []
    for run, *parts in zip(layout.runs, *split, strict=True):
        query, key, value = (
            part.view(run.rows, len(part) // run.rows, heads, -1).transpose(1, 2) for part in parts
        )
        found.append(_attend_run(run, query, key, value, dropout, layout.window))
    return torch.cat(found)


def _attend_firsts(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout: float
) -> Tensor:
    """Queries ``[B, H]``, keys and values ``[B, heads, S, D]``, to ``[B, H]``."""
    asking = query.view(-1, key.shape[1], 1, key.shape[-1])
    seen = None if layout.bias is None else layout.bias[..., :1, :]
    if layout.window is not None:
        key, value = _in_reach(key, layout.window), _in_reach(value, layout.window)
        seen = None if seen is None else seen[..., : layout.window + 1]
    context = functional.scaled_dot_product_attention(
        asking, key, value, attn_mask=seen, dropout_p=dropout
    )
    return context.flatten(1)


def _in_reach(tokens: Tensor, window: int) -> Tensor:
    """The tokens ``[B, heads, S, D]`` that the first token of a row sees."""
    return tokens[:, :, : window + 1]


def _attend_run(
    run: Run, query: Tensor, key: Tensor, value: Tensor, dropout: float, window: int | None
) -> Tensor:
    """Rows of one length: queries ``[R, heads, Q, D]`` to ``[R * Q, heads * D]``."""
    seen = None
    if window is not None and query.shape[-2] == run.length:
        context = attend_near(query, key, value, window, dropout=dropout)
        return context.transpose(1, 2).flatten(2).flatten(0, 1)
    if window is not None:
        key, value = _in_reach(key, window), _in_reach(value, window)
    if run.masked:
        seen = torch.arange(run.length, device=query.device).ne(0).view(1, 1, 1, -1)
    if dropout:
        # The same as torch computes here, except for the random numbers.
        scores = query / math.sqrt(query.shape[-1]) @ key.transpose(-1, -2)
        if seen is not None:
            scores = scores.masked_fill(~seen, -math.inf)
        context = dropped_out(scores.softmax(-1), dropout, training=True) @ value
    else:
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return context.transpose(1, 2).flatten(2).flatten(0, 1)
