"""Attention in which a token sees only the tokens near it (Beltagy et al., 2020)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from flodl.hf.models.layout import Layout, may_decide_on

BLOCK = 64
"""Queries of a block, which are compared with the keys in reach of any of them."""

WORTH = 2
"""A row is cut into blocks if it is at least so many times as long as the keys of a block."""


def nearby(layout: Layout, window: int, tokens: Tensor) -> Layout:
    """The layout of layers in which a token sees no farther than ``window`` tokens to each side.

    Distances are those in the rows of the batch, in which padding counts.

    Args:
        layout: The layout of layers that see whole rows.
        window: The farthest distance.
        tokens: The tokens of the call.
    """
    if may_decide_on(tokens) and layout.length <= window + 1:
        return layout
    if layout.runs and layout.consecutive:
        return replace(layout, window=window)
    layout = replace(layout, runs=())
    per_token = layout.keys.dtype == torch.bool and layout.keys.shape[1:3] == (1, 1)
    weighed = layout.record is not None and layout.record.attentions is not None
    if (
        may_decide_on(tokens)
        and not weighed
        and (per_token or not layout.keys.numel())
        and pays(layout.length, window)
    ):
        return replace(layout, window=window)
    near = within(layout.length, window, tokens.device)
    keys = layout.keys
    if not keys.numel():
        near = near[None, None]
    elif keys.dtype == torch.bool:
        near = keys & near
    else:
        # Not minus infinity, which a row of padding alone would turn into NaN.
        near = keys.masked_fill(~near, torch.finfo(keys.dtype).min)
    return replace(layout, keys=near)


def pays(length: int, window: int) -> bool:
    """Whether blocks take less time than all pairs of tokens, as measured on a CPU."""
    return length >= WORTH * (BLOCK + 2 * window)


def within(length: int, window: int, device: torch.device) -> Tensor:
    """Which tokens are at most ``window`` apart: bool ``[S, S]``."""
    place = torch.arange(length, device=device)
    return (place[:, None] - place).abs() <= window


def attend_near(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int,
    *,
    seen: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Let every token attend to the tokens near it.

    Args:
        query: ``[B, heads, S, D]``, like ``key`` and ``value``.
        key: Keys.
        value: Values.
        window: The farthest distance.
        seen: True for positions that get attention, bool ``[B, 1, 1, S]``; None for all.
        dropout: Probability of dropping a weight; 0 when not training.

    Returns:
        ``[B, heads, S, D]``.
    """
    length = query.shape[-2]
    if length <= window + 1:
        near = seen
    elif pays(length, window):
        return attend_in_blocks(query, key, value, window, seen=seen, dropout=dropout)
    else:
        near = within(length, window, query.device)
        near = near if seen is None else near & seen
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=near, dropout_p=dropout
    )


def attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int,
    *,
    block: int = BLOCK,
    seen: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The same result as :func:`attend_near`; the time grows with ``S``, not with its square.

    A block of queries is compared with the keys from ``window`` before its first to ``window``
    after its last token. These stretches of keys overlap and are not copied.
    """
    if seen is not None:
        # A mask of one row can be shared by all heads; one of all rows would have to be repeated.
        found = []
        for number in range(len(query)):
            row = slice(number, number + 1)
            parts = query[row], key[row], value[row], seen[row].flatten()
            found.append(_row_in_blocks(*parts, window, block, dropout))
        return torch.cat(found)
    return _row_in_blocks(query, key, value, None, window, block, dropout)


def _row_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor | None,
    window: int,
    block: int,
    dropout: float,
) -> Tensor:
    """Attention of rows ``[B, heads, S, D]`` that see the same positions, bool ``[S]`` or None."""
    rows, heads, length, width = query.shape
    blocks = -(-length // block)
    rest, span = blocks * block - length, block + 2 * window
    asking = functional.pad(query, (0, 0, 0, rest)).reshape(rows * heads, blocks, block, width)
    keys, values = (
        functional.pad(part, (0, 0, window, rest + window))
        .reshape(rows * heads, blocks * block + 2 * window, width)
        .unfold(1, span, block)
        .transpose(-1, -2)
        for part in (key, value)
    )
    seen = torch.ones(length, dtype=torch.bool, device=query.device) if seen is None else seen
    counted = functional.pad(seen, (window, rest + window)).unfold(0, span, block)
    # The queries that fill up the last block see some keys too: a softmax over nothing may be NaN.
    filling = torch.arange(blocks * block, device=query.device).ge(length).view(blocks, block, 1)
    ahead = torch.arange(span, device=query.device)
    ahead = ahead - torch.arange(block, device=query.device)[:, None]
    near = (ahead >= 0) & (ahead <= 2 * window) & (counted[:, None] | filling)
    found = functional.scaled_dot_product_attention(
        asking,
        keys,
        values,
        attn_mask=near[None],
        dropout_p=dropout,
    )
    return found.reshape(rows, heads, blocks * block, width)[:, :, :length]
