"""Encode many texts into batches of similar length, and keep track of their order.

All predictions use this module. :class:`TextEncoding` encodes, :class:`Batching` sets the size of
batches, :func:`encoded_batches` makes them, and :func:`running` puts the model into evaluation
mode. :func:`answered` does all of it for a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from threading import Lock, get_ident
from typing import TYPE_CHECKING, NamedTuple, Self, TypedDict, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from flodl.errors import StateError
from flodl.hf.batch_encoding import BatchEncoding
from flodl.hf.errors import TokenizerMissingError, need
from flodl.hf.families import family_of
from flodl.hf.families.family import IDS, MASK, TYPES
from flodl.hf.task_heads import Head
from flodl.hf.text.call_options import NO_LIMIT, TruncationChoice, checked_pair, row_shape
from flodl.hf.text.calling import encode_rows, fill_rows, values_of, with_windows
from flodl.hf.tokenizer import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from tokenizers import Encoding


# Texts encoded at a time: enough to sort well and to use all tokenizer threads, few enough that the
# encoded form of a large corpus is never in memory as a whole.
_CHUNK = 2048

# Measured with a model of width 384: 1024 to 4096 are alike, more is slower by a tenth.
_CPU_TOKENS = 2048


class BatchOptions(TypedDict, total=False):
    """How inputs are split into batches: see :class:`Batching`; every entry is optional."""

    batch_size: int | None
    max_tokens: int | None
    bucket: bool


class ReadingOptions(BatchOptions, total=False):
    """How a model reads texts; every entry is optional.

    Attributes:
        truncation: Whether and how to cut texts that are too long; see :class:`TextEncoding`.
            Without it (False, the default) they raise an error.
        max_length: Tokens to cut to; None (default) for the limit of the model.
    """

    truncation: TruncationChoice
    max_length: int | None


@dataclass(frozen=True, slots=True)
class Batching:
    """How inputs are split into batches.

    Attributes:
        batch_size: Maximum inputs of a batch; None if only ``max_tokens`` limits it.
        max_tokens: Maximum tokens of a batch, with padding. None means no limit on a GPU and 2048
            on the CPU, where more do not fit the caches. A single input may be longer.
        bucket: Sort by length first, so that the inputs of a batch have similar lengths.

    Raises:
        ValueError: A limit is below 1, or there is no limit.
    """

    batch_size: int | None = 32
    max_tokens: int | None = None
    bucket: bool = True

    def __post_init__(self) -> None:
        for name, limit in (("batch_size", self.batch_size), ("max_tokens", self.max_tokens)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name} must be at least 1, got {limit}")
        if self.batch_size is None and self.max_tokens is None:
            raise ValueError(
                "batch_size and max_tokens cannot both be None: one has to end a batch"
            )

    @classmethod
    def of(cls, options: BatchOptions) -> Self:
        """The batches for the options of a call."""
        return cls(
            options.get("batch_size", 32), options.get("max_tokens"), options.get("bucket", True)
        )

    def on(self, device: torch.device) -> Batching:
        """The same, with the default limit of a device.

        Args:
            device: Where the batches are computed.
        """
        if device.type != "cpu" or self.max_tokens is not None:
            return self
        return replace(self, max_tokens=_CPU_TOKENS)

    def split(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield the inputs of each batch, the longest inputs first.

        Args:
            lengths: Tokens of each input.
        """
        tokens = self.max_tokens
        order: Sequence[int] = range(len(lengths))
        if self.bucket:
            # The batch that needs most memory comes first: if it fits, all others fit too.
            order = sorted(order, key=lengths.__getitem__, reverse=True)
        batch: list[int] = []
        longest = 0
        for row in order:
            width, rows = max(longest, lengths[row]), len(batch) + 1
            too_many = self.batch_size is not None and rows > self.batch_size
            if batch and (too_many or (tokens is not None and rows * width > tokens)):
                yield batch
                batch, width = [], lengths[row]
            batch.append(row)
            longest = width
        if batch:
            yield batch


@contextmanager
def running(model: nn.Module) -> Iterator[torch.device]:
    """Evaluate in inference mode; afterwards every module is back in its previous mode.

    Several threads may run one model at the same time. The modes are restored when the last thread
    is done.

    Args:
        model: The model.

    Yields:
        The device its parameters are on.

    Raises:
        StateError: The parameters are on the meta device and have no values.
    """
    device = device_of(model)
    if device.type == "meta":
        raise StateError("the model is on the meta device and has no values: load weights first")
    with _LOCK:
        known = _RUNS.get(model)
        if known is None:
            # train() would give all submodules the mode of the top module, but parts of a model may
            # be kept in another mode.
            known = list(filter(attrgetter("training"), model.modules())), []
            for module in known[0]:
                module.training = False
            _RUNS[model] = known
        training, runs = known
        runs.append(get_ident())
    try:
        with torch.inference_mode():
            yield device
    finally:
        with _LOCK:
            runs.remove(get_ident())
            if not runs:  # others may still run, and dropout would change their results
                del _RUNS[model]
                for module in training:
                    module.training = True


_RUNS: WeakKeyDictionary[nn.Module, tuple[list[nn.Module], list[int]]] = WeakKeyDictionary()
"""For each model that is evaluated now: its modules in training mode, and the threads."""
_LOCK = Lock()


def device_of(model: nn.Module) -> torch.device:
    """The device of the first parameter; the CPU for a model without any."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


class Part(NamedTuple):
    """Some of the inputs, encoded.

    Attributes:
        inputs: The number of the input that each row was made from.
        rows: The number of each row among all rows. It differs from ``inputs`` if inputs were cut
            into several windows.
        batch: The rows.
    """

    inputs: list[int]
    rows: list[int]
    batch: BatchEncoding


def encoded_batches(
    texts: Sequence[str | tuple[str, str]], encode: TextEncoding, batching: Batching
) -> Iterator[Part]:
    """Encode inputs and yield them in batches.

    Args:
        texts: The inputs.
        encode: Encodes them.
        batching: How large batches are.

    Yields:
        All rows, in an order that makes good batches.
    """
    before = 0
    for first in range(0, len(texts), _CHUNK):
        rows, samples = encode(texts[first : first + _CHUNK], first)
        for chosen in batching.split(list(map(len, rows))):
            batch = encode.batch(list(map(rows.__getitem__, chosen)))
            inputs = [first + samples[row] for row in chosen]
            yield Part(inputs, [before + row for row in chosen], batch)
        before += len(rows)


Row = TypeVar("Row")


def answered(
    head: Head,
    inputs: Sequence[str | tuple[str, str]],
    encode: TextEncoding,
    batching: Batching,
    answers: Callable[[Part], Sequence[Row]],
) -> list[Row]:
    """Run a model on all inputs, in batches.

    Args:
        head: The model.
        inputs: Texts or pairs.
        encode: Encodes them.
        batching: How large batches are.
        answers: Runs the model on a batch, and answers for each of its rows.

    Returns:
        The answers in the order of the inputs: one for each, or one for each of its windows.
    """
    found: dict[int, Row] = {}
    with running(head._graph) as device:
        for part in encoded_batches(inputs, encode, batching.on(device)):
            found.update(zip(part.rows, answers(part), strict=True))
    return [found[row] for row in sorted(found)]


# --- Texts -----------------------------------------------------------------------------------


Input = TypeVar("Input")


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
        limit, longest = tokenizer.limit, NO_LIMIT if max_length is None else max_length
        if truncation is False:
            if stride is not None:
                raise ValueError("stride makes windows of what is cut off: it needs truncation")
            longest = min(longest, limit or NO_LIMIT)
        elif max_length is None:
            longest = min(longest, limit or NO_LIMIT, tokenizer.source.length or NO_LIMIT)
        elif limit is not None and max_length > limit:
            raise ValueError(f"max_length {max_length} is more than the model's {limit} positions")
        self.tokenizer = tokenizer
        cut = None if longest == NO_LIMIT else longest
        self._shape = row_shape(
            {"truncation": truncation, "max_length": cut, "stride": stride or 0}, NO_LIMIT, "right"
        )
        self._windowed = stride is not None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast, options: ReadingOptions) -> Self:
        """The encoding for the options of a call."""
        return cls(tokenizer, options.get("truncation", False), options.get("max_length"))

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
        what = "text" if isinstance(texts[0], str) else "pair"
        inputs: list[str | tuple[str, str]] = []
        for number, text in enumerate(texts, first):
            if isinstance(text, str) != (what == "text"):
                raise TypeError(
                    "the inputs are texts and pairs of texts mixed: give one kind at a time"
                )
            inputs.append(text if isinstance(text, str) else checked_pair(number, text))
        shape = self._shape
        if shape.truncation is not None:
            self._check_room(what)
        rows = encode_rows(self.tokenizer.source, inputs, shape, {}, first)
        if not any(map(len, rows)):
            raise ValueError(
                f"{what} {first} has no tokens, for it is empty and this tokenizer adds none of "
                "its own"
            )
        longest = shape.max_length
        for number, row in enumerate(rows, first):
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
        """Rows as a batch of tensors for the model, filled on the right to the longest, in place.

        It has segments if the model reads some.

        Raises:
            ValueError: Rows have unequal lengths, and the tokenizer has no padding.
        """
        width = max(1, *map(len, rows))
        if min(map(len, rows)) < width:
            fill_rows(rows, width, self.tokenizer)
        config = self.tokenizer.config
        typed = config is None or family_of(config).reads_segments
        names = (IDS, MASK, TYPES) if typed else (IDS, MASK)
        return BatchEncoding(*values_of(rows, names, {}), "pt")


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
