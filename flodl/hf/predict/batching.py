"""Split many texts into batches of similar length, and keep track of their order.

All predictions use this module. :func:`running` puts the model into evaluation mode,
:class:`Batching` sets the size of batches, and :func:`encoded_batches` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from flodl.errors import StateError
from flodl.hf.batch_encoding import BatchEncoding

if TYPE_CHECKING:
    from flodl.hf.predict.text import TextEncoding

# Texts encoded at a time: enough to sort well and to use all tokenizer threads, few enough that the
# encoded form of a large corpus is never in memory as a whole.
_CHUNK = 2048

# Measured with a model of width 384: 1024 to 4096 are alike, more is slower by a tenth.
_CPU_TOKENS = 2048


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
        order: Sequence[int] = range(len(lengths))
        if self.bucket:
            # The batch that needs most memory comes first: if it fits, all others fit too.
            order = sorted(order, key=lambda row: -lengths[row])
        batch: list[int] = []
        longest = 0
        for row in order:
            width = max(longest, lengths[row])
            if batch and self._is_full(len(batch) + 1, width):
                yield batch
                batch, width = [], lengths[row]
            batch.append(row)
            longest = width
        if batch:
            yield batch

    def _is_full(self, rows: int, width: int) -> bool:
        too_many = self.batch_size is not None and rows > self.batch_size
        return too_many or (self.max_tokens is not None and rows * width > self.max_tokens)


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
    _evaluate(model)
    try:
        with torch.inference_mode():
            yield device
    finally:
        _restore(model)


class _Run:
    """The evaluations of a model that run now.

    Attributes:
        training: The modules that were in training mode before.
        count: Number of evaluations, each in its own thread.
    """

    __slots__ = ("count", "training")

    def __init__(self, training: list[nn.Module]) -> None:
        self.training = training
        self.count = 0


_RUNS: WeakKeyDictionary[nn.Module, _Run] = WeakKeyDictionary()
_LOCK = Lock()


def _evaluate(model: nn.Module) -> None:
    with _LOCK:
        run = _RUNS.get(model)
        if run is None:
            # train() would give all submodules the mode of the top module, but parts of a model may
            # be kept in another mode.
            run = _RUNS[model] = _Run([m for m in model.modules() if m.training])
            for module in run.training:
                module.training = False
        run.count += 1


def _restore(model: nn.Module) -> None:
    """Restore the previous modes, unless other evaluations still run: dropout would change them."""
    with _LOCK:
        run = _RUNS[model]
        run.count -= 1
        if run.count == 0:
            del _RUNS[model]
            for module in run.training:
                module.training = True


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
        for chosen in batching.split([len(row) for row in rows]):
            inputs = [first + samples[row] for row in chosen]
            batch = encode.batch([rows[row] for row in chosen])
            yield Part(inputs, [before + row for row in chosen], batch)
        before += len(rows)
