"""Encode the texts of one call, and fill rows that were encoded before.

The ``tokenizers`` package keeps truncation as state of a tokenizer. Each call that cuts rows sets
it on a copy of its own, so threads can share one tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from flodl.hf.batch_encoding import BatchEncoding, TensorKind
from flodl.hf.errors import CheckpointFormatError
from flodl.hf.families.family import IDS, MASK, TYPES
from flodl.hf.text.call_options import CallOptions, RowShape, Side, broken_text
from flodl.hf.text.files import is_panic
from flodl.hf.text.source import TokenizerSource, working_copy
from flodl.hf.text.vocabulary import Vocabulary, plain

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
    first: int = 0,
) -> list[Encoding]:
    """Encode inputs, one encoding per input; cut off parts are in its ``overflowing``.

    Args:
        source: The tokenizer; not changed.
        inputs: See :func:`gathered`.
        shape: How rows are cut; they are not filled.
        options: The options of the call.
        first: The number of the first input, for messages.

    Raises:
        CheckpointFormatError: The tokenizer's file is broken in a way that shows only now.
        ValueError: An input is not text, or cannot be cut as asked.
    """
    inner = source.inner
    settled = shape.truncation is None and inner.padding is None and inner.truncation is None
    worker = inner if settled else working_copy(inner)
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
        # The package refuses half of a surrogate pair as if it were not text.
        broken = broken_text(inputs, first)
        raise broken or _explained(error, inputs, shape, worker, source.where, first) from error


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
    error: BaseException,
    inputs: Sequence[Any],
    shape: RowShape,
    worker: Tokenizer,
    where: str,
    first: int,
) -> Exception:
    """The error that a caller gets for one of the package."""
    if isinstance(error, TypeError):
        return TypeError(
            "a text is a str, a pair is two of them, and with is_split_into_words=True each is a "
            f"list of words: {error}"
        )
    if isinstance(error, ValueError):
        return error
    if shape.truncation is not None:
        which = _first_refused(worker, inputs, first)
        return ValueError(
            f"{which} cannot be cut to {shape.max_length} tokens with "
            f"truncation={shape.truncation!r}: {error}; raise max_length, or choose another "
            "truncation"
        )
    return CheckpointFormatError(f"{where} cannot encode: {error}")


def _first_refused(worker: Tokenizer, inputs: Sequence[Any], first: int) -> str:
    """The number of the first input that the package refuses, which does not name it."""
    for row, one in enumerate(inputs, first):
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
    encodings: Sequence[Encoding], names: Sequence[str], options: CallOptions
) -> tuple[dict[str, list[Any]], Sequence[Encoding]]:
    """The values of a batch by name, and the encoding of each row.

    Args:
        encodings: One for each input; see :func:`encode_rows`.
        names: The values that a call returns unless its options say otherwise.
        options: The options of the call.
    """
    rows, samples = encodings, None
    if options.get("return_overflowing_tokens", False):
        rows, samples = with_windows(encodings)
    # What the package calls each value, and whether it is asked for; None leaves it to the names.
    known = {
        IDS: ("ids", True),
        TYPES: ("type_ids", options.get("return_token_type_ids")),
        MASK: ("attention_mask", options.get("return_attention_mask")),
        "special_tokens_mask": (
            "special_tokens_mask",
            options.get("return_special_tokens_mask", False),
        ),
        "offset_mapping": ("offsets", options.get("return_offsets_mapping", False)),
    }
    values: dict[str, list[Any]] = {}
    for name, (fact, asked) in known.items():
        if asked or (asked is None and name in names):
            values[name] = list(map(attrgetter(fact), rows))
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


Features: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]]


NO_PAD_TOKEN = (
    "padding needs a pad token, and the tokenizer has none: name one with "
    "tokenizer.add_special_tokens({'pad_token': '[PAD]'})"
)


def fill_rows(
    rows: Sequence[Encoding], width: int, words: Vocabulary, side: Side = "right"
) -> None:
    """Fill encodings to one width, in place; longer ones stay as they are.

    Args:
        rows: The encodings, with those of cut off parts in them.
        width: Tokens of a row.
        words: The vocabulary, for the token of padding.
        side: The side that is filled.

    Raises:
        ValueError: A row is too short, and the tokenizer has no token to fill it with.
    """
    pad_id, token, type_id = words.pad_id, words.pad_token, words.pad_token_type_id
    if pad_id is None and any(len(row) < width for row in rows):
        raise ValueError(NO_PAD_TOKEN)
    for row in rows:
        row.pad(
            width, direction=side, pad_id=pad_id or 0, pad_token=token or "", pad_type_id=type_id
        )


def padded(
    features: Features,
    shape: RowShape,
    words: Vocabulary,
    tensors: TensorKind | None,
    mask: bool | None,
) -> BatchEncoding:
    """Fill rows that were encoded before to one width.

    Args:
        features: A list of rows (mappings of values), or one mapping of lists of values. Values
            with other names than those of a tokenizer are passed on as they are.
        shape: How far rows are filled; ``truncation`` is not read.
        words: The vocabulary, for the token of padding.
        tensors: The kind of tensor that the values become; None for lists.
        mask: Whether rows get an ``attention_mask`` that they do not have.

    Raises:
        ValueError: There are no ``input_ids``, or values have unequal numbers of rows, or rows
            have unequal lengths and become tensors.
    """
    values = _by_name(features)
    if IDS not in values:
        raise ValueError(f"pad() needs {IDS!r} for each row, got {', '.join(values) or 'nothing'}")
    if tensors is None:
        tensors = _kind_of(values[IDS])
    values = {name: plain(value) for name, value in values.items()}
    rows = values[IDS]
    single = bool(rows) and not isinstance(rows[0], list)
    if single:
        values = {name: [value] for name, value in values.items()}
        rows = values[IDS]
    for name, value in values.items():
        if len(value) != len(rows):
            raise ValueError(f"{name} has {len(value)} rows and {IDS} {len(rows)}")
    # As in transformers, a batch without rows gets a mask only if it is asked for.
    if MASK not in values and (mask or (mask is None and rows and MASK in words.model_input_names)):
        values[MASK] = [[1] * len(row) for row in rows]
    width = shape.width([len(row) for row in rows])
    if any(len(row) < width for row in rows):
        fill = {
            IDS: words.pad_id or 0,
            MASK: 0,
            TYPES: words.pad_token_type_id,
            "special_tokens_mask": 1,
        }
        for name in fill.keys() & values.keys():
            missing = [[fill[name]] * (width - len(row)) for row in rows]
            pairs = zip(values[name], missing, strict=True)
            left = shape.side == "left"
            values[name] = [more + row if left else row + more for row, more in pairs]
    if single:
        values = {name: value[0] for name, value in values.items()}
    return BatchEncoding(values, tensor_type=tensors if rows else None)


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
