"""Encodings of the ``tokenizers`` package as a batch of tensors, and what it says of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from flodl.hf.batch_encoding import BatchEncoding
from flodl.hf.families.family import IDS, MASK, TYPES
from flodl.hf.text.calling import NO_PAD_TOKEN, values_of

if TYPE_CHECKING:
    from tokenizers import Encoding

Batch: TypeAlias = Mapping[str, Any]
"""Tensors ``[B, S]`` by name, as a call of a tokenizer returns them: a ``BatchEncoding``."""

TokenFact: TypeAlias = Literal["special_tokens_mask", "sequence_ids", "word_ids", "offsets"]


def batch_of(rows: Sequence[Encoding], pad_id: int | None, *, typed: bool) -> BatchEncoding:
    """Encodings as a batch of tensors, filled on the right to the longest of them, in place.

    Args:
        rows: At least one encoding.
        pad_id: The id of padding; None if there is none.
        typed: Whether the batch has segments.

    Raises:
        ValueError: Rows have unequal lengths, and there is no padding.
    """
    width = max(1, *map(len, rows))
    for row in rows:
        if len(row) < width:
            if pad_id is None:
                raise ValueError(NO_PAD_TOKEN)
            row.pad(width, pad_id=pad_id)
    values, _ = values_of(list(rows), (IDS, MASK, TYPES) if typed else (IDS, MASK), {})
    return BatchEncoding(values, rows, "pt")


def mask_of(batch: Batch) -> Tensor:
    """1 for tokens and 0 for padding, int64 ``[B, S]``."""
    given = batch.get(MASK)
    return torch.ones_like(batch[IDS]) if given is None else (given != 0).to(torch.int64)


def samples_of(batch: Batch) -> list[int]:
    """The number of the text that each row was made from; a long text may have several rows."""
    given = batch.get("overflow_to_sample_mapping")
    return list(range(len(batch[IDS]))) if given is None else torch.as_tensor(given).tolist()


def token_fact(batch: Batch, name: TokenFact) -> Tensor:
    """One fact about every token, int64 ``[B, S]``; for offsets ``[B, S, 2]``.

    A batch that was not made from texts here does not know its texts: its tokens then are of one
    text, of no word, and only padding is special.

    Args:
        batch: The batch.
        name: ``special_tokens_mask``, 1 for special tokens and padding; ``sequence_ids``, the text
            of a pair that a token is from, -1 for special tokens and padding; ``word_ids``, the
            word of its text, -1 for none; ``offsets``, its first character and the one after its
            last, both 0 if there is none.
    """
    ids: Tensor = batch[IDS]
    given = batch.get("offset_mapping" if name == "offsets" else name)
    if given is not None:
        return torch.as_tensor(given, device=ids.device)
    rows = getattr(batch, "encodings", None)
    if rows:
        # As floats, None becomes NaN in one call. Such small numbers are exact in float64.
        facts = np.array([getattr(row, name) for row in rows], dtype=np.float64)
        whole = np.where(np.isnan(facts), -1.0, facts).astype(np.int64)
        return torch.from_numpy(whole).to(ids.device)
    match name:
        case "special_tokens_mask":
            return 1 - mask_of(batch)
        case "sequence_ids":
            return mask_of(batch) - 1
        case "word_ids":
            return torch.full_like(ids, -1)
    return ids.new_zeros((*ids.shape, 2))
