"""Scaled dot-product attention for tokens in either layout: to a whole row, or to near tokens.

Attention to near tokens only is that of Beltagy et al. (2020).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from flodl.hf.layers.activations import dropout as dropped_out
from flodl.hf.layers.layout import Layout, Run, may_decide_on

BLOCK = 64
"""Queries of a block, which are compared with the keys in reach of any of them."""

ROWS_WORTH_BLOCKS = 2
"""A row is cut into blocks if it is at least so many times as long as the keys of a block."""


def check_attention(name: str | None) -> None:
    """Refuse an attention of ``transformers`` that is not the one of flodl.

    Raises:
        ValueError: It is not ``"sdpa"`` or ``"eager"``.
    """
    if name not in (None, "sdpa", "eager"):
        raise ValueError(
            f"attn_implementation={name!r}: flodl has one attention, which calls torch's "
            "scaled_dot_product_attention; leave it out, or give 'sdpa' or 'eager'"
        )


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


# --- Near tokens -------------------------------------------------------------------------------


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
    return length >= ROWS_WORTH_BLOCKS * (BLOCK + 2 * window)


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


# --- Rotary positions --------------------------------------------------------------------------


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
