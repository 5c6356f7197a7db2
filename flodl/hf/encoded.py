"""A batch of texts as the models read it: int64 tensors with one row per text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, final

import torch
from torch import Tensor

from flodl.hf.device import known_device


class RowDetails(Protocol):
    """Further facts about the rows of a batch, computed only on demand."""

    def column(self, name: str, width: int) -> Tensor | None:
        """One field as int64 ``[B, width]`` (offsets ``[B, width, 2]``); None if not known."""

    def select(self, rows: Sequence[int]) -> RowDetails:
        """The details of some rows, in the given order."""


@final
class EncodedBatch:
    """Encoded texts; tensors are int64, read-only, and ``[B, S]`` unless another shape is given.

    A tokenizer makes these. A caller who has ids already can make them too; values that are not
    given take the defaults below. All but the first two tensors are made when first read.

    Args:
        input_ids: Token ids ``[B, S]``, of any integer dtype.
        attention_mask: ``[B, S]``; 0 (or False) is padding, anything else is text.
        token_type_ids: The segment of each token; zeros if not given.
        position_ids: Positions; 0 to S-1 in every row if not given.
        sequence_ids: The text of a pair that a token belongs to: 0 the first, 1 the second, -1
            neither (special tokens and padding). If not given: 0, and -1 for padding.
        offsets: First and last character of a token in its text, ``[B, S, 2]``, the end exclusive;
            zeros if not given.
        word_ids: The word of its text that a token belongs to, -1 for none; -1 if not given.
        special_mask: 1 for special tokens and padding. If not given: 1 for padding.
        sample_index: The input that each row was made from, ``[B]``; a long input cut into
            windows has several rows. 0 to B-1 if not given.

    Raises:
        ValueError: A tensor does not hold integers, or does not have the shape above.
    """

    __slots__ = ("_attention_mask", "_details", "_fields", "_input_ids", "_sample_index")

    def __init__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        offsets: Tensor | None = None,
        word_ids: Tensor | None = None,
        special_mask: Tensor | None = None,
        sample_index: Tensor | None = None,
        *,
        details: RowDetails | None = None,
    ) -> None:
        if input_ids.ndim != 2:
            raise ValueError(f"input_ids must be [B, S], got {list(input_ids.shape)}")
        shape = tuple(input_ids.shape)
        self._input_ids = _checked("input_ids", input_ids, shape)
        mask = attention_mask != 0 if attention_mask.is_floating_point() else attention_mask
        self._attention_mask = _checked("attention_mask", mask, shape)
        given = {
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "sequence_ids": sequence_ids,
            "offsets": offsets,
            "word_ids": word_ids,
            "special_mask": special_mask,
        }
        self._fields: dict[str, Tensor] = {
            name: _checked(name, tensor, (*shape, 2) if name == "offsets" else shape)
            for name, tensor in given.items()
            if tensor is not None
        }
        self._sample_index = (
            torch.arange(shape[0], device=input_ids.device)
            if sample_index is None
            else _checked("sample_index", sample_index, shape[:1])
        )
        self._details = details

    @property
    def input_ids(self) -> Tensor:
        """Token ids ``[B, S]``."""
        return self._input_ids

    @property
    def attention_mask(self) -> Tensor:
        """1 for tokens, 0 for padding ``[B, S]``."""
        return self._attention_mask

    @property
    def token_type_ids(self) -> Tensor:
        """The segment of each token ``[B, S]``, 0 for padding."""
        return self._field("token_type_ids")

    @property
    def position_ids(self) -> Tensor:
        """0 to S-1 in every row ``[B, S]``."""
        return self._field("position_ids")

    @property
    def sequence_ids(self) -> Tensor:
        """0 for the first text, 1 for the second, -1 for special tokens and padding ``[B, S]``."""
        return self._field("sequence_ids")

    @property
    def offsets(self) -> Tensor:
        """First character and the one after the last ``[B, S, 2]``; both 0 if there is none."""
        return self._field("offsets")

    @property
    def word_ids(self) -> Tensor:
        """Number of the word within its text ``[B, S]``; -1 if there is none."""
        return self._field("word_ids")

    @property
    def special_mask(self) -> Tensor:
        """1 for special tokens and padding ``[B, S]``."""
        return self._field("special_mask")

    @property
    def sample_index(self) -> Tensor:
        """The input that each row was made from ``[B]``."""
        return self._sample_index

    @property
    def lengths(self) -> Tensor:
        """Tokens per row without padding ``[B]``."""
        return self._attention_mask.sum(dim=1)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self._input_ids.device

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> EncodedBatch:
        """The same batch on another device; tensors not made yet are made there later."""
        target = known_device(device)
        if target == self.device:
            return self

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(target, non_blocking=non_blocking)

        return EncodedBatch(
            moved(self._input_ids),
            moved(self._attention_mask),
            sample_index=moved(self._sample_index),
            details=self._details,
            **{name: moved(tensor) for name, tensor in dict(self._fields).items()},
        )

    def rows(self, indices: Sequence[int] | Tensor) -> EncodedBatch:
        """Some rows, in the given order, without final columns that are padding in all of them.

        Args:
            indices: Row numbers. Negative numbers count from the end; repeats are allowed.

        Raises:
            IndexError: There is no such row.
        """
        chosen = self._row_numbers(indices)
        attended = self._attention_mask[chosen].any(dim=0).nonzero()
        width = int(attended[-1]) + 1 if len(attended) else min(1, self._input_ids.shape[1])
        return self._selected(chosen, width)

    def __len__(self) -> int:
        return self._input_ids.shape[0]

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> EncodedBatch:
        """Rows at full width: by a slice, a list of numbers, or a number (a batch of one row)."""
        if isinstance(index, slice):
            chosen = self._row_numbers(range(*index.indices(len(self))))
        else:
            chosen = self._row_numbers([index] if isinstance(index, int) else index)
        return self._selected(chosen, self._input_ids.shape[1])

    def __iter__(self) -> Iterator[EncodedBatch]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        rows, width = self._input_ids.shape
        return f"EncodedBatch({rows} rows of {width} tokens, {self.device})"

    def _row_numbers(self, indices: Sequence[int] | Tensor) -> list[int]:
        count = len(self)
        if isinstance(indices, Tensor) and indices.dtype == torch.bool:
            if indices.shape != (count,):
                raise IndexError(f"a mask of {indices.numel()} for a batch of {count}")
            indices = indices.nonzero().flatten()
        numbers = indices.tolist() if isinstance(indices, Tensor) else list(indices)
        for number in numbers:
            if not -count <= number < count:
                raise IndexError(f"row {number} of a batch of {count}")
        return [number % count for number in numbers]

    def _selected(self, rows: list[int], width: int) -> EncodedBatch:
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)

        def picked(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, index)[:, :width].contiguous()

        return EncodedBatch(
            picked(self._input_ids),
            picked(self._attention_mask),
            sample_index=self._sample_index.index_select(0, index),
            # A batch of zero rows needs no details: the default values are right for it.
            details=self._details.select(rows) if self._details is not None and rows else None,
            **{name: picked(tensor) for name, tensor in dict(self._fields).items()},
        )

    def _field(self, name: str) -> Tensor:
        tensor = self._fields.get(name)
        if tensor is None:
            # The first caller may predict, and the next one may train with the same batch.
            with torch.inference_mode(False):
                tensor = self._made(name)
            # Two threads that get here at once make equal tensors, so either may stay.
            tensor = self._fields.setdefault(name, tensor)
        return tensor

    def _made(self, name: str) -> Tensor:
        known = None
        if self._details is not None:
            known = self._details.column(name, self._input_ids.shape[1])
        return self._default(name) if known is None else known.to(self.device)

    def _default(self, name: str) -> Tensor:
        ids, mask = self._input_ids, self._attention_mask
        if name == "position_ids":
            # Each row has its own memory, because a row stride of 0 would make compiled graphs
            # recompile.
            return torch.arange(ids.shape[1], device=ids.device).repeat(ids.shape[0], 1)
        if name == "sequence_ids":
            return (mask != 0).to(torch.int64) - 1
        if name == "special_mask":
            return (mask == 0).to(torch.int64)
        if name == "word_ids":
            return torch.full_like(ids, -1)
        return ids.new_zeros((*ids.shape, 2) if name == "offsets" else ids.shape)


def _checked(name: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    if tensor.is_floating_point() or tensor.is_complex():
        raise ValueError(f"{name} must hold integers, got {tensor.dtype}")
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")
    return tensor.to(torch.int64)
