"""A batch of texts, as ``transformers`` has it, and what it says of each token."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, final, overload

import numpy as np
import torch
from torch import Tensor

from flodl.device import select_device
from flodl.hf.families.family import IDS, MASK

if TYPE_CHECKING:
    from tokenizers import Encoding


TensorKind: TypeAlias = Literal["pt", "np"]


class CharSpan(NamedTuple):
    """Characters of a text: ``start``, and ``end`` after the last one."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """Tokens of a row: ``start``, and ``end`` after the last one."""

    start: int
    end: int


@final
class BatchEncoding(UserDict[str, Any]):
    """The inputs of a model by name: lists, tensors or arrays, one entry per row.

    Values are read as ``batch["input_ids"]`` or ``batch.input_ids``, and ``model(**batch)`` passes
    them on. ``batch[0]`` is the first row as an ``Encoding`` of the ``tokenizers`` package.

    Args:
        data: Values by name.
        encodings: The rows as the ``tokenizers`` package made them, padded and truncated like the
            values; None if the values were not made from texts here.
        tensor_type: Turn the values into tensors (``"pt"``) or arrays (``"np"``), int64.

    Raises:
        ValueError: Rows have unequal lengths and cannot become a tensor.
    """

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        encodings: Sequence[Encoding] | None = None,
        tensor_type: TensorKind | None = None,
    ) -> None:
        super().__init__(data)
        self._encodings = None if encodings is None else list(encodings)
        self.convert_to_tensors(tensor_type)

    @overload
    def __getitem__(self, item: str) -> Any: ...
    @overload
    def __getitem__(self, item: int) -> Encoding: ...
    @overload
    def __getitem__(self, item: slice) -> list[Encoding] | dict[str, Any]: ...
    def __getitem__(self, item: str | int | slice) -> Any:
        """A value by name; or the encodings of rows, by a number or a slice.

        Raises:
            KeyError: There is no value of this name, or there are no encodings.
        """
        if isinstance(item, str):
            return self.data[item]
        if self._encodings is not None:
            return self._encodings[item]
        if isinstance(item, slice):
            return {name: value[item] for name, value in self.data.items()}
        raise KeyError(f"{item!r}: this batch has values by name ({', '.join(self.data)}), no rows")

    def __getattr__(self, name: str) -> Any:
        # `data` is missing while a copy is being made.
        if name != "data" and name in self.data:
            return self.data[name]
        raise AttributeError(f"this batch has no {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "_encodings": self._encodings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def encodings(self) -> list[Encoding] | None:
        """The rows as the ``tokenizers`` package made them; None if there are none."""
        return self._encodings

    @property
    def is_fast(self) -> bool:
        """Whether the rows know their tokens, words and characters."""
        return self._encodings is not None

    @property
    def n_sequences(self) -> int | None:
        """1 for texts, 2 for pairs; None if it is not known."""
        return self._encodings[0].n_sequences if self._encodings else None

    def convert_to_tensors(self, tensor_type: TensorKind | None = None) -> Self:
        """Turn all values into tensors (``"pt"``) or arrays (``"np"``), in place.

        Raises:
            ValueError: Rows have unequal lengths, or there is no such kind.
        """
        if tensor_type is None:
            return self
        convert = _CONVERTERS.get(tensor_type)
        if convert is None:
            raise ValueError(f"return_tensors is 'pt', 'np' or None, not {tensor_type!r}")
        for name, value in self.data.items():
            try:
                self.data[name] = convert(value)
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"{name} cannot become a tensor: the rows have unequal lengths or hold other "
                    "values than numbers; pass padding=True, and truncation=True for long texts"
                ) from error
        return self

    def to(self, device: torch.device | str | int, *, non_blocking: bool = False) -> Self:
        """Move all tensors to a device, in place, and return this batch.

        Raises:
            ValueError: It is not a device, or this machine has none of that kind.
            TypeError: A dtype was given.
        """
        if isinstance(device, torch.dtype):
            raise TypeError(f"token ids stay integers; to() takes a device, not {device}")
        target = select_device(torch.device(device) if isinstance(device, int) else device)
        for name, value in self.data.items():
            if isinstance(value, torch.Tensor):
                self.data[name] = value.to(target, non_blocking=non_blocking)
        return self

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The tokens of a row."""
        return self._row(batch_index).tokens

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token of a row, the number of its word; None for special tokens."""
        return self._row(batch_index).word_ids

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token of a row: 0 the first text, 1 the second, None a special token."""
        return self._row(batch_index).sequence_ids

    def token_to_sequence(
        self, batch_or_token_index: int, token_index: int | None = None
    ) -> int | None:
        """The text that a token is from: 0 or 1."""
        row, token = self._place(batch_or_token_index, token_index)
        return row.token_to_sequence(self._from_start(row, token))

    def token_to_word(
        self, batch_or_token_index: int, token_index: int | None = None
    ) -> int | None:
        """The number of the word that a token is from."""
        row, token = self._place(batch_or_token_index, token_index)
        return row.token_to_word(self._from_start(row, token))

    def token_to_chars(
        self, batch_or_token_index: int, token_index: int | None = None
    ) -> CharSpan | None:
        """The characters that a token covers; None for special tokens."""
        row, token = self._place(batch_or_token_index, token_index)
        span = row.token_to_chars(token)
        return None if span is None else CharSpan(*span)

    def char_to_token(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The token that covers a character; None if none does."""
        row, character = self._place(batch_or_char_index, char_index)
        return row.char_to_token(character, sequence_index)

    def char_to_word(
        self, batch_or_char_index: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The word that covers a character; None if none does."""
        row, character = self._place(batch_or_char_index, char_index)
        return row.char_to_word(character, sequence_index)

    def word_to_tokens(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """The tokens of a word; None if there are none."""
        row, word = self._place(batch_or_word_index, word_index)
        span = row.word_to_tokens(word, sequence_index)
        return None if span is None else TokenSpan(*span)

    def word_to_chars(
        self, batch_or_word_index: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """The characters of a word; None if there is no such word."""
        row, word = self._place(batch_or_word_index, word_index)
        span = row.word_to_chars(word, sequence_index)
        return None if span is None else CharSpan(*span)

    def _row(self, index: int) -> Encoding:
        if not self._encodings:
            raise ValueError(
                "this batch does not know its texts, because it was not made from texts; ask the "
                "batch that the tokenizer returned"
            )
        return self._encodings[index]

    def _place(self, row_or_place: int, place: int | None) -> tuple[Encoding, int]:
        """The row and the number in it; a single number is one in the first row."""
        return (self._row(0), row_or_place) if place is None else (self._row(row_or_place), place)

    def _from_start(self, row: Encoding, token: int) -> int:
        """A token's number; a negative one counts from the end of the row."""
        return token if token >= 0 else len(row) + token


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return torch.stack(value)
    array = np.asarray(value)
    # Numbers without a dtype get torch's default one, as torch.tensor gives them.
    return torch.tensor(value) if array.dtype == np.float64 else torch.from_numpy(array)


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    return array.astype(np.int64) if array.size == 0 else array


_CONVERTERS: dict[str, Callable[[Any], Any]] = {"pt": _as_tensor, "np": _as_array}


Batch: TypeAlias = Mapping[str, Any]
"""Tensors ``[B, S]`` by name, as a call of a tokenizer returns them: a ``BatchEncoding``."""


def mask_of(batch: Batch) -> Tensor:
    """1 for tokens and 0 for padding, int64 ``[B, S]``."""
    given: Tensor | None = batch.get(MASK)
    return torch.ones_like(batch[IDS]) if given is None else (given != 0).to(torch.int64)


def samples_of(batch: Batch) -> list[int]:
    """The number of the text that each row was made from; a long text may have several rows."""
    given = batch.get("overflow_to_sample_mapping")
    return list(range(len(batch[IDS]))) if given is None else torch.as_tensor(given).tolist()
