"""Encode the texts of one call, and fill rows that were encoded before.

The ``tokenizers`` package keeps padding and truncation as state of a tokenizer. Each call sets them
on a copy of its own, so threads can share one tokenizer. The copy shares the vocabulary, and takes
about 10 µs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from flodl.hf.batch_encoding import BatchEncoding, TensorKind
from flodl.hf.errors import CheckpointFormatError, need
from flodl.hf.families.family import IDS, MASK, TYPES
from flodl.hf.text.call_options import CallOptions, RowShape, broken_text
from flodl.hf.text.files import is_panic
from flodl.hf.text.source import TokenizerSource

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

Texts: TypeAlias = str | Sequence[str] | Sequence[Sequence[str]] | Sequence[Sequence[Sequence[str]]]


def gathered(text: Texts, pair: Texts | None, split: bool) -> tuple[list[Any], bool]:
    """The inputs of a call as a list for the ``tokenizers`` package, and whether it is a batch.

    Args:
        text: A text, texts, or pairs of texts; with ``split``, each text is a list of words.
        pair: The second text of each pair.
        split: Whether texts are lists of words.

    Raises:
        TypeError: It is not text, or one text is paired with many.
        ValueError: There are no texts, or unequal numbers of first and second texts.
    """
    _check_text("text", text)
    batched = isinstance(text, (list, tuple))
    if split:
        batched = batched and len(text) > 0 and isinstance(text[0], (list, tuple))
    if not batched:
        if pair is not None:
            _check_text("text_pair", pair)
        # As in transformers, an empty second text is none.
        return [(text, pair)] if pair else [text], False
    if len(text) == 0:
        raise ValueError("empty batch: pass at least one text")
    if pair is None:
        return list(text), True
    if isinstance(pair, str):
        raise TypeError("text is a list and text_pair is one text: pass a second text for each")
    _check_text("text_pair", pair)
    if len(pair) != len(text):
        raise ValueError(f"text has {len(text)} entries and text_pair {len(pair)}")
    return list(zip(text, pair, strict=True)), True


def encode_rows(
    source: TokenizerSource,
    inputs: Sequence[Any],
    shape: RowShape,
    options: CallOptions,
    pad: dict[str, Any] | None = None,
) -> list[Encoding]:
    """Encode inputs, one encoding per input; cut off parts are in its ``overflowing``.

    Args:
        source: The tokenizer; not changed.
        inputs: See :func:`gathered`.
        shape: How rows are cut and filled.
        options: The options of the call.
        pad: ``pad_id``, ``pad_token`` and ``pad_type_id``, if rows are filled.

    Raises:
        CheckpointFormatError: The tokenizer's file is broken in a way that shows only now.
        ValueError: An input is not text, or cannot be cut as asked.
    """
    plain = shape.padding is None and shape.truncation is None
    worker = source.stateless() if plain else working_copy(source.stateless())
    if shape.padding is not None:
        worker.enable_padding(
            direction=shape.side,
            length=shape.max_length if shape.padding == "max_length" else None,
            pad_to_multiple_of=shape.multiple,
            **(pad or {}),
        )
    try:
        if shape.truncation is not None:
            _enable_truncation(worker, shape, options, isinstance(inputs[0], tuple))
        return worker.encode_batch(
            inputs,
            is_pretokenized=options.get("is_split_into_words", False),
            add_special_tokens=options.get("add_special_tokens", True),
        )
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise _explained(error, inputs, shape, worker, source.where) from error


def working_copy(inner: Tokenizer) -> Tokenizer:
    """A tokenizer with the same vocabulary and steps, whose padding and truncation are off.

    Vocabulary and steps are shared, not copied.
    """
    copy: Tokenizer = need("tokenizers").Tokenizer(inner.model)
    # The package sets a step, but not the absence of a step.
    for step in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        value = getattr(inner, step)
        if value is not None:
            setattr(copy, step, value)
    added = inner.get_added_tokens_decoder()
    copy.add_tokens([added[number] for number in sorted(added)])
    if copy.get_added_tokens_decoder().keys() != added.keys():
        # Numbers with gaps between them cannot be given again, only read.
        copy = need("tokenizers").Tokenizer.from_str(inner.to_str())
        copy.no_padding()
        copy.no_truncation()
    copy.encode_special_tokens = inner.encode_special_tokens
    return copy


def _enable_truncation(
    worker: Tokenizer, shape: RowShape, options: CallOptions, pair: bool
) -> None:
    length = shape.max_length or 0
    framed = options.get("add_special_tokens", True)
    framing = worker.num_special_tokens_to_add(pair) if framed else 0
    if length < framing:
        raise ValueError(f"max_length {length} is less than the {framing} special tokens of a row")
    if shape.stride and shape.stride >= length - framing:
        raise ValueError(
            f"a stride of {shape.stride} is not smaller than the {length - framing} tokens of text "
            f"in a row; lower stride or raise max_length ({length})"
        )
    worker.enable_truncation(
        length, stride=shape.stride, strategy=shape.truncation, direction=shape.cut_side
    )


def _explained(
    error: BaseException, inputs: Sequence[Any], shape: RowShape, worker: Tokenizer, where: str
) -> Exception:
    """The error that a caller gets for one of the package."""
    # The package refuses half of a surrogate pair as if it were not text.
    broken = broken_text(inputs)
    if broken is not None:
        return broken
    if isinstance(error, TypeError):
        return TypeError(
            "a text is a str, a pair is two of them, and with is_split_into_words=True each is a "
            f"list of words: {error}"
        )
    if isinstance(error, ValueError):
        return error
    if shape.truncation is not None:
        return ValueError(
            f"{_first_refused(worker, inputs)} cannot be cut to {shape.max_length} tokens with "
            f"truncation={shape.truncation!r}: {error}; raise max_length, or choose another "
            "truncation"
        )
    return CheckpointFormatError(f"{where} cannot encode: {error}")


def _first_refused(worker: Tokenizer, inputs: Sequence[Any]) -> str:
    """The number of the first input that the package refuses, which does not name it."""
    for row, one in enumerate(inputs):
        try:
            worker.encode_batch([one])
        except BaseException:
            return f"{'pair' if isinstance(one, tuple) else 'text'} {row}"
    return "a row"


def _check_text(name: str, value: object) -> None:
    if isinstance(value, str):
        return
    if not isinstance(value, (list, tuple)):
        raise TypeError(
            f"{name} is a {type(value).__name__}; pass a str, a list of str, or a list of pairs"
        )
    first = value[0] if value else ""
    if not isinstance(first, (str, list, tuple)):
        raise TypeError(f"{name} holds a {type(first).__name__}; pass str, or pairs of str")


def values_of(
    encodings: list[Encoding], names: Sequence[str], options: CallOptions
) -> tuple[dict[str, list[Any]], list[Encoding]]:
    """The values of a batch by name, and the encoding of each row.

    Args:
        encodings: One for each input; see :func:`encode_rows`.
        names: The values that a call returns unless its options say otherwise.
        options: The options of the call.
    """
    rows, samples = encodings, None
    if options.get("return_overflowing_tokens", False):
        rows, samples = with_windows(encodings)
    values: dict[str, list[Any]] = {IDS: [row.ids for row in rows]}
    if _wanted(options.get("return_token_type_ids"), TYPES in names):
        values[TYPES] = [row.type_ids for row in rows]
    if _wanted(options.get("return_attention_mask"), MASK in names):
        values[MASK] = [row.attention_mask for row in rows]
    if options.get("return_special_tokens_mask", False):
        values["special_tokens_mask"] = [row.special_tokens_mask for row in rows]
    if options.get("return_offsets_mapping", False):
        values["offset_mapping"] = [row.offsets for row in rows]
    if options.get("return_length", False):
        values["length"] = [len(row) for row in rows]
    if samples is not None:
        values["overflow_to_sample_mapping"] = samples
    return values, rows


def with_windows(encodings: Sequence[Encoding]) -> tuple[list[Encoding], list[int]]:
    """All rows, with those of cut off parts, and the number of the input of each row."""
    rows: list[Encoding] = []
    samples: list[int] = []
    for number, encoding in enumerate(encodings):
        windows = [encoding, *encoding.overflowing]
        rows += windows
        samples += [number] * len(windows)
    return rows, samples


def _wanted(asked: bool | None, usual: bool) -> bool:
    return usual if asked is None else asked


Features: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Filling:
    """What rows are filled with.

    Attributes:
        pad_id: The id of padding; None if the tokenizer has none.
        pad_type_id: The segment of padding.
        with_mask: Whether rows get an ``attention_mask`` that they do not have.
        mask_of_none: Whether a batch without rows gets one too.
    """

    pad_id: int | None
    pad_type_id: int
    with_mask: bool
    mask_of_none: bool


def padded(
    features: Features, shape: RowShape, filling: Filling, tensors: TensorKind | None
) -> BatchEncoding:
    """Fill encoded rows to one width.

    Args:
        features: A list of rows (mappings of values), or one mapping of lists of values. Values
            with other names than those of a tokenizer are passed on as they are.
        shape: How far rows are filled; ``truncation`` is not read.
        filling: What they are filled with.
        tensors: The kind of tensor that the values become; None for lists.

    Raises:
        ValueError: There are no ``input_ids``, or values have unequal numbers of rows, or rows
            have unequal lengths and become tensors.
    """
    values = _by_name(features)
    if IDS not in values:
        raise ValueError(f"pad() needs {IDS!r} for each row, got {', '.join(values) or 'nothing'}")
    if tensors is None:
        tensors = _kind_of(values[IDS])
    values = {name: _plain(value) for name, value in values.items()}
    rows = values[IDS]
    if not rows:
        return BatchEncoding({**values, MASK: []} if filling.mask_of_none else values)
    if not isinstance(rows[0], list):
        one = {name: [value] for name, value in values.items()}
        filled = {name: value[0] for name, value in _filled(one, shape, filling).items()}
        return BatchEncoding(filled, tensor_type=tensors)
    for name, value in values.items():
        if len(value) != len(rows):
            raise ValueError(f"{name} has {len(value)} rows and {IDS} {len(rows)}")
    return BatchEncoding(_filled(values, shape, filling), tensor_type=tensors)


def _filled(values: dict[str, list[Any]], shape: RowShape, filling: Filling) -> dict[str, Any]:
    rows = values[IDS]
    if filling.with_mask and MASK not in values:
        values = {**values, MASK: [[1] * len(row) for row in rows]}
    if shape.padding is None:
        return values
    width = max(len(row) for row in rows) if shape.padding == "longest" else shape.max_length or 0
    if shape.multiple is not None:
        width = -(-width // shape.multiple) * shape.multiple
    if all(len(row) >= width for row in rows):
        return values
    if filling.pad_id is None:
        raise ValueError(NO_PAD_TOKEN)
    padding = {IDS: filling.pad_id, MASK: 0, TYPES: filling.pad_type_id, "special_tokens_mask": 1}
    return {
        name: _widened(value, width, padding[name], shape.side) if name in padding else value
        for name, value in values.items()
    }


NO_PAD_TOKEN = (
    "padding needs a pad token, and the tokenizer has none: name one with "
    "tokenizer.add_special_tokens({'pad_token': '[PAD]'})"
)


def _widened(rows: list[list[int]], width: int, padding: int, side: str) -> list[list[int]]:
    if side == "left":
        return [[padding] * (width - len(row)) + row for row in rows]
    return [row + [padding] * (width - len(row)) for row in rows]


def _by_name(features: Features) -> dict[str, Any]:
    if isinstance(features, Mapping):
        return dict(features)
    if not features or not all(isinstance(row, Mapping) for row in features):
        raise ValueError("pad() needs a mapping of values, or a list with a mapping for each row")
    try:
        return {name: [row[name] for row in features] for name in features[0]}
    except KeyError as error:
        raise ValueError(f"a row has no {error.args[0]!r}, and the first row has it") from None


def _kind_of(rows: Any) -> TensorKind | None:
    """The kind of tensor that the rows are, so that the result is of the same kind."""
    first = rows[0] if isinstance(rows, (list, tuple)) and rows else rows
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, torch.Tensor):
        return "pt"
    return "np" if isinstance(first, (np.ndarray, np.generic)) else None


def _plain(value: Any) -> Any:
    """Tensors and arrays as lists, at any depth of lists."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (torch.Tensor, np.ndarray, np.generic, list, tuple)):
            return [_plain(entry) for entry in value]
        return list(value)
    return value
