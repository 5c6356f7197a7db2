"""Turn ids back into texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | torch.Tensor

# English only, as BERT's word pieces were made.
_CLEANED = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)


def plain_ids(ids: Any) -> Any:
    """Ids as an int, a list, or a list of lists.

    Args:
        ids: These, tensors or arrays of them, or a mapping with ``input_ids``.
    """
    if isinstance(ids, Mapping):
        ids = ids["input_ids"]
    if isinstance(ids, (torch.Tensor, np.ndarray, np.generic)):
        return ids.tolist()
    if isinstance(ids, (list, tuple)):
        plain = all(type(entry) is int for entry in ids)
        return list(ids) if plain else [plain_ids(entry) for entry in ids]
    return ids


def decoded(inner: Tokenizer, ids: list[int], *, skip_special: bool, clean_up: bool) -> str:
    """The text of one row.

    Args:
        inner: The tokenizer.
        ids: The row.
        skip_special: Leave special tokens out.
        clean_up: Remove the spaces before punctuation. Byte pairs (BPE) keep them, because they
            know the spaces of the text.
    """
    text = inner.decode(ids, skip_special_tokens=skip_special)
    if clean_up and type(inner.model).__name__ != "BPE":
        for found, instead in _CLEANED:
            text = text.replace(found, instead)
    return text
