"""Encode texts into batches for one model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from flodl.hf.batch_encoding import BatchEncoding
from flodl.hf.errors import TokenizerMissingError, need
from flodl.hf.families import family_of
from flodl.hf.task_heads import Head
from flodl.hf.text.call_options import NO_LIMIT, CallOptions, TruncationChoice, row_shape
from flodl.hf.text.calling import encode_rows, with_windows
from flodl.hf.text.encodings import batch_of
from flodl.hf.text.inputs import checked_pair
from flodl.hf.tokenizer import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from tokenizers import Encoding

Input = TypeVar("Input")

_NUMBERED = re.compile(r"(text|pair) (\d+)")


class TextEncoding:
    """Encodes texts, or pairs of texts, for one model.

    Args:
        tokenizer: Its tokenizer.
        truncation: False refuses rows that are too long. True and ``longest_first`` cut them; of
            pairs, ``only_first`` and ``only_second`` cut one text.
        max_length: Tokens a row may have; None for the limit of the model. With truncation, that is
            the smaller of the limit of the model and the one in the tokenizer's files.
        stride: Split a text that is too long into windows that overlap by this many tokens; None
            cuts it off.

    Raises:
        ValueError: The arguments contradict each other, or ``max_length`` is above the limit.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        truncation: TruncationChoice = False,
        max_length: int | None = None,
        stride: int | None = None,
    ) -> None:
        limit, lengths = tokenizer.limit, [max_length]
        if truncation is False:
            if stride is not None:
                raise ValueError("stride makes windows of what is cut off: it needs truncation")
            lengths.append(limit)
        elif max_length is None:
            lengths += [limit, tokenizer.source.length]
        elif limit is not None and max_length > limit:
            raise ValueError(f"max_length {max_length} is more than the model's {limit} positions")
        options: CallOptions = {
            "truncation": truncation,
            "max_length": min((one for one in lengths if one is not None), default=None),
            "stride": stride or 0,
        }
        self.tokenizer = tokenizer
        self._shape = row_shape(options, NO_LIMIT, "right")
        self._windowed = stride is not None

    def __call__(
        self, texts: Sequence[str | tuple[str, str]], first: int = 0
    ) -> tuple[list[Encoding], list[int]]:
        """Encode texts, or pairs.

        Args:
            texts: All texts, or all pairs.
            first: Number of inputs before the first of these.

        Returns:
            The rows, and the number among these texts that each row was made from.

        Raises:
            ValueError: A text is too long, or no text has any tokens; the message gives its number
                among all inputs.
            TypeError: Texts and pairs are mixed, or something is neither.
        """
        try:
            return self._rows(texts)
        except (ValueError, TypeError) as error:
            # What is called here only numbers its own inputs, which are a part of all inputs.
            if named := _NUMBERED.match(str(error)):
                row, rest = first + int(named[2]), str(error)[named.end() :]
                error.args = (f"{named[1]} {row}{rest}",)
            raise

    def _rows(self, texts: Sequence[str | tuple[str, str]]) -> tuple[list[Encoding], list[int]]:
        what = "text" if isinstance(texts[0], str) else "pair"
        inputs: list[str | tuple[str, str]] = []
        for number, text in enumerate(texts):
            if isinstance(text, str) != (what == "text"):
                raise TypeError(
                    "the inputs are texts and pairs of texts mixed: give one kind at a time"
                )
            inputs.append(text if isinstance(text, str) else checked_pair(number, text))
        shape = self._shape
        if shape.truncation is not None:
            self._check_room(what)
        rows = encode_rows(self.tokenizer.source, inputs, shape, {})
        if not any(map(len, rows)):
            raise ValueError(
                f"{what} 0 has no tokens, for it is empty and this tokenizer adds none of its own"
            )
        longest = shape.max_length
        for number, row in enumerate(rows):
            if longest is not None and len(row) > longest:
                raise ValueError(
                    f"{what} {number} has {len(row)} tokens and the limit is {longest}: shorten "
                    "it, or pass truncation=True"
                )
        return with_windows(rows) if self._windowed else (rows, list(range(len(rows))))

    def _check_room(self, what: str) -> None:
        """Check that rows have space for text, and that windows can be made."""
        framing = self.tokenizer.inner.num_special_tokens_to_add(what == "pair")
        if (self._shape.max_length or 0) <= framing:
            raise ValueError(
                f"max_length {self._shape.max_length} leaves no space for a {what} beside the "
                f"{framing} special tokens of a row; raise it"
            )
        if what == "pair" and self._windowed and self._shape.truncation == "longest_first":
            raise ValueError("windows of pairs need truncation='only_first' or 'only_second'")

    def batch(self, rows: Sequence[Encoding]) -> BatchEncoding:
        """Rows as a batch of tensors for the model, with segments if it reads some."""
        config = self.tokenizer.config
        typed = config is None or family_of(config).reads_segments
        return batch_of(rows, self.tokenizer.pad_id, typed=typed)


def need_tokenizer(head: Head, method: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a model, with the limits of that model.

    Args:
        head: The model.
        method: The method that needs it, for the message.

    Raises:
        MissingDependencyError: It has no tokenizer, and the package for one is not installed.
        TokenizerMissingError: It has no tokenizer.
    """
    if head.tokenizer is None:
        need("tokenizers")
        raise TokenizerMissingError(
            f"{method}() needs a tokenizer, and this model was loaded without one: open it with "
            "from_pretrained(..., tokenizer=PreTrainedTokenizerFast.from_pretrained(...))"
        )
    return head.tokenizer.for_config(head.config)


def listed(inputs: Iterable[Input], method: str) -> list[Input]:
    """The inputs as a list, which can be iterated more than once.

    Args:
        inputs: Any iterable of texts or pairs.
        method: The method that takes them, for the message.

    Raises:
        TypeError: It is a single string, whose letters would become texts, a mapping, or not
            iterable.
    """
    if isinstance(inputs, str | bytes):
        raise TypeError(f"{method}() takes a list of texts, got one string: write [text]")
    if not isinstance(inputs, Iterable) or isinstance(inputs, Mapping):
        raise TypeError(f"{method}() takes a list of texts, got a {type(inputs).__name__}")
    return list(inputs)


def listed_texts(texts: Iterable[str], method: str) -> list[str]:
    """Like :func:`listed`, for methods that do not take pairs.

    Raises:
        TypeError: As for :func:`listed`, or an entry is not a text.
    """
    found = listed(texts, method)
    for row, text in enumerate(found):
        if not isinstance(text, str):
            raise TypeError(f"{method}() takes texts, and input {row} is a {type(text).__name__}")
    return found


def listed_pairs(pairs: Iterable[tuple[str, str]], method: str) -> list[tuple[str, str]]:
    """Like :func:`listed`, for methods that only take pairs.

    Raises:
        TypeError: As for :func:`listed`, or an entry is not two texts.
    """
    return [checked_pair(row, pair) for row, pair in enumerate(listed(pairs, method))]
