"""The layout of tokens while a model runs: in rows with padding, or packed without.

In a batch ``[B, S]``, rows of different lengths contain much padding. Layers that treat every token
separately, which is nearly all the work of an encoder, then run on ``[T, H]``: the ``T`` tokens
that count. Only attention works on rows. ``places [T]`` holds the positions of these tokens in the
flattened ``[B * S]``; an empty tensor means that tokens are in rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from flodl.graph.modules import NamedInputModule

Refs = Mapping[str, Any]
"""The values that :meth:`FlowBuilder.using` passes; None for an input that was left out."""

IDS = "ids"
MASK = "attention_mask"
TYPES = "token_type_ids"
POSITIONS = "position_ids"
PLACES = "places"
KEYS = "keys"
LAYOUT = "layout"
READ = "read"
RECORD = "record"

WORTH = 0.9
"""If more than this part of all positions counts, padding is cheaper than moving tokens."""


@dataclass(slots=True)
class Record:
    """Passed with a call of an encoder, which fills it; nothing of it stays in the model.

    Attributes:
        hidden_states: The input of every layer, ``[B, S, H]`` each; None if not asked for.
        attentions: The weights of every layer, ``[B, heads, S, S]`` each, from query to key, before
            dropout; None if not asked for.
        tags: The tagged values of the encoder, by name.
    """

    hidden_states: list[Tensor] | None = None
    attentions: list[Tensor] | None = None
    tags: dict[str, Tensor] = field(default_factory=dict)


class Run(NamedTuple):
    """Packed rows that follow each other and have the same number of tokens.

    Attributes:
        rows: Number of rows.
        length: Tokens in each row.
        masked: Whether their first tokens are padding, which gets no attention.
    """

    rows: int
    length: int
    masked: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the tokens of one call.

    Attributes:
        rows: B.
        length: S.
        places: Int64 ``[T]``; empty if tokens are in rows.
        keys: The mask of attention. Bool: True for positions that get attention. Floats: added to
            the scores. ``[B, 1, 1, S]`` or another shape that broadcasts to ``[B, heads, S, S]``.
            Empty: all positions get attention.
        runs: All rows of packed tokens, if attention uses them packed; see :meth:`in_runs`.
        ends_first: Whether only the first token of every row of the output is used.
        record: The values of layers that the caller asks for; None for nothing.
        window: How far a token sees to each side; None for as far as ``keys`` says.
        consecutive: Whether the tokens of every row in :attr:`runs` stand side by side from the
            first position on, as with padding on the right. Only then packing keeps distances.
    """

    rows: int
    length: int
    places: Tensor
    keys: Tensor
    runs: tuple[Run, ...] = ()
    ends_first: bool = False
    record: Record | None = None
    window: int | None = None
    consecutive: bool = False

    def note(self, tokens: Tensor) -> None:
        """Record the input of a layer, if the caller asked for it."""
        if self.record is not None and self.record.hidden_states is not None:
            self.record.hidden_states.append(tokens)

    @property
    def packed(self) -> bool:
        """Whether tokens are packed one after the other."""
        return self.places.dim() == 1 and self.places.shape[0] > 0

    def in_rows(self, tokens: Tensor) -> Tensor:
        """Tokens ``[T, …]`` or ``[B, S, …]`` as ``[B, S, …]``; positions left out are zero."""
        if not self.packed:
            return tokens
        shape = (self.rows * self.length, *tokens.shape[1:])
        rows = tokens.new_zeros(shape).index_copy(0, self.places, tokens)
        return rows.view(self.rows, self.length, *tokens.shape[1:])

    def of_rows(self, rows: Tensor) -> Tensor:
        """The inverse of :meth:`in_rows`."""
        return rows.flatten(0, 1).index_select(0, self.places) if self.packed else rows

    def firsts(self, tokens: Tensor) -> Tensor:
        """The first token of every row, ``[B, H]``; ``tokens`` may hold only these already."""
        # If there are as many packed tokens as rows, they are the first tokens, which are always
        # packed.
        return tokens if tokens.shape[:-1] == (self.rows,) else self.in_rows(tokens)[:, 0]

    @property
    def before_the_end(self) -> Layout:
        """The same layout for a layer whose tokens are all used by the next layer."""
        return replace(self, ends_first=False)

    def in_runs(self, dtype: torch.dtype) -> Layout:
        """The same layout, with :attr:`runs` if attention is faster row by row.

        That is so on the CPU, if the packed tokens are exactly those that count, in order. For
        types shorter than float32 the layout stays: there rounding depends on how rows are split.

        Args:
            dtype: Dtype of the tokens.
        """
        if (
            not self.packed
            or dtype not in (torch.float32, torch.float64)
            or self.places.device.type != "cpu"
            or torch.compiler.is_compiling()
            or self.keys.dtype != torch.bool
            or self.keys.shape != (self.rows, 1, 1, self.length)
        ):
            return self
        counts = self.keys.view(self.rows, self.length)
        if not torch.equal(_packable(counts), self.places):
            return self
        leads = counts[:, 0].logical_not()
        lengths = counts.sum(1) + leads
        rows = zip(lengths.tolist(), leads.tolist(), strict=True)
        runs = (Run(len(list(same)), *key) for key, same in groupby(rows))
        gaps = leads.any() | (counts[:, 1:] & ~counts[:, :-1]).any()
        return replace(self, runs=tuple(runs), consecutive=not bool(gaps))

    @property
    def bias(self) -> Tensor | None:
        """:attr:`keys` as ``scaled_dot_product_attention`` takes it."""
        return self.keys if self.keys.numel() else None


def may_decide_on(values: Tensor) -> bool:
    """Whether the behaviour of a call may depend on values.

    It must not if a compiler, a tracer or a CUDA graph records the call for later calls, nor on the
    meta device, where tensors have no values.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or values.is_meta:
        return False
    return not (values.is_cuda and torch.cuda.is_current_stream_capturing())


def layout_of(refs: Refs) -> Layout:
    """The layout that was passed to a module of a model."""
    rows, length = refs[IDS].shape
    read = refs.get(READ)
    ends_first = read is not None and read.numel() > 0
    return Layout(
        rows,
        length,
        refs[LAYOUT],
        refs[KEYS],
        ends_first=ends_first,
        record=refs.get(RECORD),
    )


class Keys(NamedInputModule):
    """The mask of attention: see :attr:`Layout.keys`.

    Args:
        first_of_none: Whether the first token gets attention in a row in which no token counts.
    """

    def __init__(self, *, first_of_none: bool = True) -> None:
        super().__init__()
        self.first_of_none = first_of_none

    def forward_named(self, ids: Tensor, refs: Refs) -> Tensor:
        """Read the attention mask.

        Args:
            ids: ``[B, S]``.
            refs: ``attention_mask``. ``[B, S]`` of any type: 0 for padding.
                ``[B or 1, 1 or heads, 1 or S, S]``: floats are added to the scores, any other type
                is True for positions that get attention. None: no padding.

        Raises:
            ValueError: The mask has another shape.
        """
        mask: Tensor | None = refs[MASK]
        if mask is None:
            return ids.new_empty(0)
        if mask.dim() == 4:
            if mask.is_floating_point():
                return mask
            if mask.shape != (ids.shape[0], 1, 1, ids.shape[1]):
                return mask.bool()
            mask = mask[:, 0, 0]
        if mask.shape != ids.shape:
            raise ValueError(
                f"attention_mask has shape {list(mask.shape)}, the ids have {list(ids.shape)}: "
                "give one element per id, 0 for padding, or a [B, 1, 1 or S, S]: True where "
                "attention may look, or floats that are added"
            )
        counts = mask != 0
        if may_decide_on(counts) and bool(counts.all()):
            return ids.new_empty(0)
        if not self.first_of_none:
            return counts[:, None, None, :]
        # A softmax over nothing is NaN.
        first = functional.pad(~counts.any(1, keepdim=True), (0, ids.shape[1] - 1))
        return (counts | first)[:, None, None, :]


def _packable(counts: Tensor) -> Tensor:
    """Places of the tokens that count, and of first tokens, which a head may need: ``[T]``."""
    kept = counts.index_fill(1, torch.zeros(1, dtype=torch.int64, device=counts.device), True)
    return kept.flatten().nonzero().flatten()


class ChoiceOfLayout(NamedInputModule):
    """Decides whether tokens are packed, and gives their places.

    Tokens are packed if enough positions are padding. A call that is recorded, for instance by a
    compiler, keeps rows unless places are given, because the number of tokens would depend on data.

    Args:
        all_read: Whether results depend on the model's output at padding, as in a softmax over all
            positions of a row. ``"auto"`` then keeps rows.
        first_sees_all: Whether the first token of every row is used and, if it is padding itself,
            attends to padding. A batch with such a row is never packed.

    Attributes:
        unpad: ``"auto"``, or a decision: True packs if any position is masked, False never packs.
    """

    def __init__(self, *, all_read: bool = False, first_sees_all: bool = False) -> None:
        super().__init__()
        self.unpad: bool | str = "auto"
        self.all_read = all_read
        self.first_sees_all = first_sees_all

    def forward_named(self, ids: Tensor, refs: Refs) -> Tensor:
        """Choose the layout.

        Args:
            ids: ``[B, S]``.
            refs: ``keys`` of :class:`Keys`, and ``places``: None, or the given places.

        Returns:
            Int64 ``[T]``.
        """
        given: Tensor | None = refs[PLACES]
        keys: Tensor = refs[KEYS]
        if given is not None:
            return given
        per_token = keys.dtype == torch.bool and keys.shape == (ids.shape[0], 1, 1, ids.shape[1])
        if not per_token or (self.all_read and self.unpad == "auto"):
            return ids.new_empty(0)
        return self.worthwhile(keys.view(ids.shape))

    def worthwhile(self, counts: Tensor) -> Tensor:
        """Places of the tokens if they are packed; empty if they are not.

        Args:
            counts: Which positions are not padding, ``[B, S]``.

        Returns:
            Int64 ``[T]``.
        """
        none = torch.empty(0, dtype=torch.int64, device=counts.device)
        if not self.unpad or not may_decide_on(counts):
            return none
        if self.first_sees_all and not bool(counts[:, 0].all()):
            return none
        places = _packable(counts)
        worth = self.unpad is True or len(places) <= WORTH * counts.numel()
        return places if worth else none


class ReadPositions(NamedInputModule):
    """The positions that a classifier of rows uses: the first token of every row.

    The last layer then computes only these tokens, and the keys and values they attend to.

    Attributes:
        unpad: False computes all tokens; see :class:`ChoiceOfLayout`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unpad: bool | str = "auto"

    def forward_named(self, ids: Tensor, refs: Refs) -> Tensor:
        """Return the positions.

        Args:
            ids: ``[B, S]``.
            refs: ``places``: None, or given places, which may lack those of first tokens.

        Returns:
            Int64 ``[1]``; empty for all positions.
        """
        return ids.new_zeros(0 if refs[PLACES] is not None or not self.unpad else 1)


class InRows(NamedInputModule):
    """The end of an encoder: ``last_hidden_state [B, S, H]``, zero at positions left out.

    It is ``[B, 1, H]`` if only the first token of every row is used.
    """

    def forward_named(self, tokens: Tensor, refs: Refs) -> Tensor:
        """Put tokens back into their rows."""
        layout = layout_of(refs)
        return layout.firsts(tokens)[:, None] if layout.ends_first else layout.in_rows(tokens)
