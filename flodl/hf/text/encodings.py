"""Turn encodings of the ``tokenizers`` package into the arrays of a batch, in bulk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from flodl.hf.encoded import EncodedBatch

if TYPE_CHECKING:
    from tokenizers import Encoding
    from torch import Tensor

    from flodl.hf.text.truncation import Positions

_Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True, slots=True)
class EncodingRows:
    """Rows of a batch as their encodings; all fields can still be read from these.

    Attributes:
        encodings: The encoding of each row; windows of one text share an encoding.
        kept: The tokens of the encoding that the row has; None for all.
        typed: Whether the segments of the encodings count; otherwise they are all 0.
    """

    encodings: Sequence[Encoding]
    kept: Sequence[Positions | None]
    typed: bool

    def select(self, rows: Sequence[int]) -> EncodingRows:
        """Some of the rows, in the given order."""
        return EncodingRows(
            [self.encodings[row] for row in rows], [self.kept[row] for row in rows], self.typed
        )

    def column(self, name: str, width: int) -> Tensor | None:
        """One field as int64 ``[B, width]`` (offsets ``[B, width, 2]``); None if not known here."""
        if name == "position_ids" or (name == "token_type_ids" and not self.typed):
            return None
        read, padding = _FIELDS[name]
        return torch.from_numpy(self._padded(self._flat(read), width, padding))

    def lengths(self) -> _Array:
        """Tokens in each row ``[B]``."""
        counts = [
            len(encoding) if kept is None else len(kept)
            for encoding, kept in zip(self.encodings, self.kept, strict=True)
        ]
        return np.array(counts, dtype=np.int64)

    def batch(self, pad_id: int, width: int, sample_index: Sequence[int]) -> EncodedBatch:
        """The rows as a batch; ``width`` is at least the length of the longest row."""
        attended = np.arange(width) < self.lengths()[:, None]
        ids = self._flat(lambda encoding: np.array(encoding.ids, dtype=np.int64))
        return EncodedBatch(
            torch.from_numpy(self._padded(ids, width, pad_id)),
            torch.from_numpy(attended.astype(np.int64)),
            sample_index=torch.tensor(sample_index, dtype=torch.int64),
            details=self,
        )

    def _flat(self, read: Callable[[Encoding], _Array]) -> _Array:
        """One field of all rows, one after the other."""
        parts: list[_Array] = []
        last: Encoding | None = None
        for encoding, kept in zip(self.encodings, self.kept, strict=True):
            if encoding is not last:
                values, last = read(encoding), encoding
            parts.append(values if kept is None else values[kept])
        return np.concatenate(parts)

    def _padded(self, flat: _Array, width: int, padding: int) -> _Array:
        shape = (len(self.encodings), width, *flat.shape[1:])
        padded = np.full(shape, padding, dtype=np.int64)
        padded[np.arange(width) < self.lengths()[:, None]] = flat
        return padded


def sequence_ids(encoding: Encoding) -> Positions:
    """The text that each token is from; -1 for special tokens."""
    return _numbers(encoding.sequence_ids)


def _numbers(values: Sequence[int | None]) -> Positions:
    # As floats, None becomes NaN in one call. Token counts are exact in float64.
    floats = np.array(values, dtype=np.float64)
    return np.where(np.isnan(floats), -1.0, floats).astype(np.int64)


_FIELDS: dict[str, tuple[Callable[[Encoding], _Array], int]] = {
    "token_type_ids": (lambda encoding: np.array(encoding.type_ids, dtype=np.int64), 0),
    "sequence_ids": (sequence_ids, -1),
    "offsets": (lambda encoding: np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2), 0),
    "word_ids": (lambda encoding: _numbers(encoding.word_ids), -1),
    "special_mask": (lambda encoding: np.array(encoding.special_tokens_mask, dtype=np.int64), 1),
}
