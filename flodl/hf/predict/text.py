"""Encode texts into batches for one model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from flodl.hf.encoded import EncodedBatch
from flodl.hf.errors import TokenizerMissingError, need
from flodl.hf.task_heads import Head
from flodl.hf.text.inputs import checked_pairs
from flodl.hf.tokenizer import EncodeOptions, PreTrainedTokenizerFast, TruncationChoice

Input = TypeVar("Input")

_NUMBERED = re.compile(r"(text|pair) (\d+)")


class TextEncoding:
    """Encodes texts, or pairs of texts, for one model.

    Args:
        tokenizer: Its tokenizer.
        truncation: Whether rows that are too long are cut; see
            :meth:`PreTrainedTokenizerFast.encode`.
        max_length: Tokens a row may have; None for the limit of the model.
        stride: Split a text that is too long into windows that overlap by this many tokens; None
            cuts it off.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        truncation: TruncationChoice = False,
        max_length: int | None = None,
        stride: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._truncation: TruncationChoice = truncation
        self._max_length = max_length
        self._stride = stride

    def __call__(self, texts: Sequence[str | tuple[str, str]], first: int = 0) -> EncodedBatch:
        """Encode texts, or pairs.

        Args:
            texts: All texts, or all pairs.
            first: Number of inputs before the first of these.

        Raises:
            ValueError: A text is too long, or no text has any tokens; the message gives its number
                among all inputs.
        """
        try:
            return self._encoded(texts)
        except (ValueError, TypeError) as error:
            # The tokenizer only numbers its own inputs, which are a part of all inputs.
            if named := _NUMBERED.match(str(error)):
                row, rest = first + int(named[2]), str(error)[named.end() :]
                error.args = (f"{named[1]} {row}{rest}",)
            raise

    def _encoded(self, texts: Sequence[str | tuple[str, str]]) -> EncodedBatch:
        options: EncodeOptions = {
            "truncation": self._truncation,
            "max_length": self._max_length,
            "stride": self._stride,
        }
        single = [text for text in texts if isinstance(text, str)]
        pairs = [text for text in texts if not isinstance(text, str)]
        if single and pairs:
            raise TypeError(
                "the inputs are texts and pairs of texts mixed: give one kind at a time"
            )
        if pairs:
            enc = self.tokenizer.encode_pairs(pairs, **options)
        else:
            enc = self.tokenizer.encode(single, **options)
        if not enc.input_ids.shape[1]:
            what = "pair" if pairs else "text"
            raise ValueError(
                f"{what} 0 has no tokens, for it is empty and this tokenizer adds none of its own"
            )
        return enc


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
    found = listed(pairs, method)
    return checked_pairs(found) if found else []
