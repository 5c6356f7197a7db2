"""Where tokens lie while a model runs: in rows with padding, or one after the other without.

A batch ``[B, S]`` whose rows differ in length is mostly padding. Layers that treat every token for
itself, which is nearly all the work of an encoder, then run on ``[T, H]``, the ``T`` tokens that
count; only attention sees rows. ``places [T]`` holds where these tokens stand in the flattened
``[B * S]``; an empty tensor says that tokens lie in their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from flodl.graph import NamedInputModule

if TYPE_CHECKING:
    from flodl.hf.models.record import Record

Refs = Mapping[str, Any]
"""What :meth:`FlowBuilder.using` delivers; None for an input that was left out."""

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
"""Part of the positions that count, above which padding is cheaper than moving tokens about."""


class Run(NamedTuple):
    """Rows that follow each other and have equally many tokens, packed.

    Attributes:
        rows: How many.
        length: Tokens of each.
        masked: Whether their first tokens are padding, which nothing may look at.
    """

    rows: int
    length: int
    masked: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """How the tokens of one call lie.

    Attributes:
        rows: B.
        length: S.
        places: Int64 ``[T]``; empty where tokens lie in their rows.
        keys: What attention may look at: bool, True where it may, or floats that are added to the
            scores; ``[B, 1, 1, S]`` or what else broadcasts to ``[B, heads, S, S]``; empty for
            everything.
        runs: All rows of packed tokens, where attention takes them as they lie; see
            :meth:`in_runs`.
        ends_first: Whether the first token of every row is all that is read of what comes out.
        record: What the caller wants to know of the layers; None for nothing.
    """

    rows: int
    length: int
    places: Tensor
    keys: Tensor
    runs: tuple[Run, ...] = ()
    ends_first: bool = False
    record: Record | None = None

    def note(self, tokens: Tensor) -> None:
        """Tell the caller what a layer is given, where that was asked for."""
        if self.record is not None and self.record.hidden_states is not None:
            self.record.hidden_states.append(tokens)

    @property
    def packed(self) -> bool:
        """Whether tokens lie one after the other."""
        return self.places.dim() == 1 and self.places.shape[0] > 0

    def in_rows(self, tokens: Tensor) -> Tensor:
        """Tokens ``[T, …]`` or ``[B, S, …]`` as ``[B, S, …]``; what was left out is zero."""
        if not self.packed:
            return tokens
        shape = (self.rows * self.length, *tokens.shape[1:])
        rows = tokens.new_zeros(shape).index_copy(0, self.places, tokens)
        return rows.view(self.rows, self.length, *tokens.shape[1:])

    def of_rows(self, rows: Tensor) -> Tensor:
        """The opposite of :meth:`in_rows`."""
        return rows.flatten(0, 1).index_select(0, self.places) if self.packed else rows

    def firsts(self, tokens: Tensor) -> Tensor:
        """The first token of every row, ``[B, H]``, of all tokens or of these alone."""
        # As many packed tokens as rows are one of each: the first ones, which are always packed.
        return tokens if tokens.shape[:-1] == (self.rows,) else self.in_rows(tokens)[:, 0]

    @property
    def before_the_end(self) -> Layout:
        """The same for a layer whose tokens are all read by the next one."""
        return replace(self, ends_first=False)

    def in_runs(self, dtype: torch.dtype) -> Layout:
        """The same, with :attr:`runs` where attention is faster row by row.

        It is on the CPU, and packed tokens have to be those that count, in their order. In types
        shorter than float32 rounding depends on how rows are taken, so they stay as they are.

        Args:
            dtype: Of the tokens.
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
        return replace(self, runs=tuple(runs))

    @property
    def bias(self) -> Tensor | None:
        """:attr:`keys` as ``scaled_dot_product_attention`` takes it."""
        return self.keys if self.keys.numel() else None


def may_decide_on(values: Tensor) -> bool:
    """Whether what a call does may depend on values.

    It may not where a compiler, a tracer or a CUDA graph records it for all calls to come, nor on
    the meta device, which has none.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or values.is_meta:
        return False
    return not (values.is_cuda and torch.cuda.is_current_stream_capturing())


def layout_of(refs: Refs) -> Layout:
    """The layout that a module of a model has been given."""
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
    """What attention may look at: see :attr:`Layout.keys`.

    Args:
        first_of_none: Whether a row in which nothing counts looks at its first token.
    """

    def __init__(self, *, first_of_none: bool = True) -> None:
        super().__init__()
        self.first_of_none = first_of_none

    def forward_named(self, ids: Tensor, refs: Refs) -> Tensor:
        """Read the attention mask.

        Args:
            ids: ``[B, S]``.
            refs: ``attention_mask``: ``[B, S]`` of any type, 0 for padding;
                ``[B or 1, 1 or heads, 1 or S, S]``, floats that are added to the scores, any other
                type True where attention may look; None for no padding.

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
        # A softmax of nothing is no number.
        first = functional.pad(~counts.any(1, keepdim=True), (0, ids.shape[1] - 1))
        return (counts | first)[:, None, None, :]


def _packable(counts: Tensor) -> Tensor:
    """Places of the tokens that count, and of first ones, which a head may ask for: ``[T]``."""
    kept = counts.index_fill(1, torch.zeros(1, dtype=torch.int64, device=counts.device), True)
    return kept.flatten().nonzero().flatten()


class ChoiceOfLayout(NamedInputModule):
    """Whether tokens are packed, and where they stand then.

    They are where enough of them are padding. What records a call, such as a compiler, for which
    their number would be data, keeps rows unless the places are given.

    Args:
        all_read: Whether results depend on what a model makes of padding, as in a softmax over all
            positions of a row. ``"auto"`` then keeps rows.
        first_sees_all: Whether the first token of every row is read, and looks at padding where it
            is padding itself. A batch that has such a row is never packed.

    Attributes:
        unpad: ``"auto"``, or a decision: True packs whatever is masked, False never packs.
    """

    def __init__(self, *, all_read: bool = False, first_sees_all: bool = False) -> None:
        super().__init__()
        self.unpad: bool | str = "auto"
        self.all_read = all_read
        self.first_sees_all = first_sees_all

    def forward_named(self, ids: Tensor, refs: Refs) -> Tensor:
        """Choose.

        Args:
            ids: ``[B, S]``.
            refs: ``keys`` of :class:`Keys`, and ``places``: None, or the places themselves.

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
        """Where tokens stand if they are packed; empty if they are not.

        Args:
            counts: What is no padding, ``[B, S]``.

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
    """What a classifier of rows reads of its encoder: the first token of every row.

    The last layer then computes no other one, but for what these look at.

    Attributes:
        unpad: False computes all of them; see :class:`ChoiceOfLayout`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unpad: bool | str = "auto"

    def forward_named(self, ids: Tensor, refs: Refs) -> Tensor:
        """Tell the positions.

        Args:
            ids: ``[B, S]``.
            refs: ``places``: None, or places that were given and may lack those of first tokens.

        Returns:
            Int64 ``[1]``; empty for all positions.
        """
        return ids.new_zeros(0 if refs[PLACES] is not None or not self.unpad else 1)


class InRows(NamedInputModule):
    """The end of an encoder: ``last_hidden_state [B, S, H]``, zero at what was left out.

    It is ``[B, 1, H]`` where the first token of every row is all that is read of it.
    """

    def forward_named(self, tokens: Tensor, refs: Refs) -> Tensor:
        """Put tokens back into their rows."""
        layout = layout_of(refs)
        return layout.firsts(tokens)[:, None] if layout.ends_first else layout.in_rows(tokens)
