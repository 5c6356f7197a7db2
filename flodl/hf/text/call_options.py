"""The options of a call of a tokenizer, and what they mean for the rows: cut and filled how far."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypedDict

from flodl.hf.batch_encoding import TensorKind

Strategy: TypeAlias = Literal["longest_first", "only_first", "only_second"]
TruncationChoice: TypeAlias = bool | Strategy
Padding: TypeAlias = Literal["longest", "max_length"]
PaddingChoice: TypeAlias = bool | Literal["longest", "max_length", "do_not_pad"]
CallTruncation: TypeAlias = bool | Strategy | Literal["do_not_truncate"]
Side: TypeAlias = Literal["left", "right"]

STRATEGIES: Final[tuple[Strategy, ...]] = ("longest_first", "only_first", "only_second")
SIDES: Final = ("left", "right")
NO_LIMIT: Final = int(1e30)
"""The ``model_max_length`` of a tokenizer without a limit, as its files write it."""

# A larger limit means that there is none.
_LARGEST_LIMIT = int(1e20)


class CallOptions(TypedDict, total=False):
    """The options of a call; every entry is optional, and the defaults are those of transformers.

    Attributes:
        add_special_tokens: Put the special tokens around the texts. Default: True.
        padding: True or ``"longest"`` fills rows to the longest one, ``"max_length"`` to
            ``max_length``. Default: False.
        truncation: True or ``"longest_first"`` cuts rows to ``max_length``; for pairs,
            ``"only_first"`` and ``"only_second"`` cut one text. Default: False; but a
            ``max_length`` without ``padding`` and ``truncation`` cuts too.
        max_length: Tokens of a row. Default: the tokenizer's ``model_max_length``.
        stride: Tokens that each further row of a long text repeats. Default: 0.
        is_split_into_words: Texts are lists of words. Default: False.
        pad_to_multiple_of: The width is a multiple of this.
        padding_side: ``"right"`` or ``"left"``. Default: the tokenizer's ``padding_side``.
        return_tensors: ``"pt"`` for tensors, ``"np"`` for arrays. Default: lists.
        return_token_type_ids: Default: as the family's models need them (``model_input_names``).
        return_attention_mask: Default: True.
        return_overflowing_tokens: Make further rows of what is cut off, and
            ``overflow_to_sample_mapping``, the input of each row. Default: False.
        return_special_tokens_mask: 1 for special tokens and padding. Default: False.
        return_offsets_mapping: ``offset_mapping``, the characters of each token. Default: False.
        return_length: ``length``, the tokens of each row, padding included. Default: False.
        verbose: Warn of rows that are too long for the model. Default: True.
    """

    add_special_tokens: bool
    padding: PaddingChoice
    truncation: CallTruncation | None
    max_length: int | None
    stride: int
    is_split_into_words: bool
    pad_to_multiple_of: int | None
    padding_side: Side | None
    return_tensors: TensorKind | None
    return_token_type_ids: bool | None
    return_attention_mask: bool | None
    return_overflowing_tokens: bool
    return_special_tokens_mask: bool
    return_offsets_mapping: bool
    return_length: bool
    verbose: bool


@dataclass(frozen=True, slots=True)
class RowShape:
    """How rows are cut and filled.

    Attributes:
        padding: What rows are filled to; None leaves them as they are.
        truncation: Which text is cut; None cuts nothing.
        max_length: The length for both; None where neither needs one.
        stride: Tokens that each further row of a text repeats.
        multiple: The width is a multiple of this; None for any width.
        side: The side that is filled.
        cut_side: The side that is cut off.
    """

    padding: Padding | None
    truncation: Strategy | None
    max_length: int | None
    stride: int
    multiple: int | None
    side: Side
    cut_side: Side

    def width(self, lengths: Iterable[int]) -> int:
        """The width that rows of these lengths are filled to; 0 if they are not filled."""
        if self.padding is None:
            return 0
        longest = max(lengths, default=0)
        width = longest if self.padding == "longest" else self.max_length or 0
        multiple = self.multiple or 1
        return -(-width // multiple) * multiple


def row_shape(
    options: CallOptions, model_max_length: int, side: Side, cut_side: Side = "right"
) -> RowShape:
    """Settle the options of a call, by the rules of transformers.

    Args:
        options: The options.
        model_max_length: The length that counts if no ``max_length`` is given.
        side: The side that is filled if no ``padding_side`` is given.
        cut_side: The side that is cut off.

    Raises:
        ValueError: An option has an unknown value, or two contradict each other.
    """
    asked, multiple = options.get("max_length"), options.get("pad_to_multiple_of")
    stride = options.get("stride", 0)
    padding = _padding(options.get("padding", False))
    truncation = _truncation(options.get("truncation"), options)
    if options.get("padding") is True and asked is not None and truncation is None:
        warnings.warn(
            "max_length does nothing here: padding=True fills to the longest row, and nothing is "
            "truncated; pass padding='max_length' or truncation=True",
            stacklevel=4,
        )
    length = asked
    if asked is None and (truncation is not None or padding == "max_length"):
        if model_max_length > _LARGEST_LIMIT:
            truncation = None
            padding = None if padding == "max_length" else padding
        else:
            length = model_max_length
    if length is not None and length < 1:
        raise ValueError(f"max_length must be at least 1, got {length}")
    if stride < 0:
        raise ValueError(f"stride must not be negative, got {stride}")
    if multiple is not None and multiple < 1:
        raise ValueError(f"pad_to_multiple_of must be at least 1, got {multiple}")
    if truncation and padding and length and multiple and length % multiple:
        raise ValueError(
            f"max_length {length} is not a multiple of pad_to_multiple_of ({multiple}); pass one "
            "that is"
        )
    chosen = options.get("padding_side")
    if chosen is not None:
        side = checked_side("padding_side", chosen)
    return RowShape(padding, truncation, length, stride, multiple, side, cut_side)


def _padding(choice: PaddingChoice) -> Padding | None:
    if choice is True or choice == "longest":
        return "longest"
    if choice == "max_length":
        return "max_length"
    if choice is False or choice == "do_not_pad":
        return None
    raise ValueError(
        f"padding is True, False, 'longest', 'max_length' or 'do_not_pad', not {choice!r}"
    )


def _truncation(choice: CallTruncation | None, options: CallOptions) -> Strategy | None:
    if choice is None:
        alone = options.get("max_length") is not None and options.get("padding", False) is False
        return "longest_first" if alone else None
    if choice is False or choice == "do_not_truncate":
        return None
    if choice is True:
        return "longest_first"
    if choice not in STRATEGIES:
        raise ValueError(
            f"truncation is True, False, 'do_not_truncate' or one of {', '.join(STRATEGIES)}, "
            f"not {choice!r}"
        )
    return choice


def checked_side(name: str, value: Side) -> Side:
    """The side that a caller gives.

    Raises:
        ValueError: It is another value.
    """
    if value not in SIDES:
        raise ValueError(f"{name} is 'right' or 'left', not {value!r}")
    return value


# --- Checks ----------------------------------------------------------------------------------


def check_options(
    options: Mapping[str, object], known: Any, method: str, otherwise: str = ""
) -> None:
    """Refuse unknown keyword arguments.

    Args:
        options: The given arguments.
        known: A typed dictionary of the allowed arguments.
        method: The method that takes them, for the message.
        otherwise: What to do for other arguments.

    Raises:
        TypeError: An argument is unknown; lists the known ones.
    """
    allowed = sorted(known.__optional_keys__)
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise TypeError(
            f"{method}() takes no argument {unknown[0]!r}; it takes {', '.join(allowed)}"
            + (f". {otherwise[0].upper()}{otherwise[1:]}" if otherwise else "")
        )


def broken_text(inputs: Sequence[Any], first: int) -> ValueError | None:
    """An error that names the first input that UTF-8 cannot encode; None if there is none.

    Args:
        inputs: Texts, or pairs; each text may be a list of words.
        first: The number of the first input.
    """
    for row, entry in enumerate(inputs, first):
        for text in _flat(entry):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                return ValueError(
                    f"{'pair' if isinstance(entry, tuple) else 'text'} {row} holds half of a "
                    f"surrogate pair at character {error.start}; decode it with errors='replace' "
                    "first"
                )
    return None


def _flat(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, (list, tuple)):
        for part in entry:
            yield from _flat(part)


def checked_pair(row: int, value: object) -> tuple[str, str]:
    """A pair of texts as a tuple.

    Raises:
        TypeError: It is something else; names its row.
    """
    if isinstance(value, (tuple, list)) and len(value) == 2:
        first, second = value
        if isinstance(first, str) and isinstance(second, str):
            return first, second
    raise TypeError(f"pair {row} must be two texts, got {value!r:.80}")
