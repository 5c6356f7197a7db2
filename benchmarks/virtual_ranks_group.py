"""Ranks that live in one process: a group whose exchanges happen in memory.

The averages of flodl wait for each other, as ranks do. A rank that would wait lets the next one run
instead, inside its own call, if every call has a single exchange. Otherwise each call has a thread.
Between exchanges nothing runs but the caller. Sums are added in the order of the ranks, so a
training gives the same bits every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, final

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore, Store

from flodl.ranks.group import Group, Pending

T = TypeVar("T")

_PATIENCE = 600.0
"""Seconds after which a rank that nobody joins is a fault of the program."""


@final
class _Exchange:
    """One exchange of all ranks; the last rank to bring its value completes it."""

    def __init__(self, ranks: int) -> None:
        self.values: list[Any] = [None] * ranks
        self.missing = ranks
        self.complete = threading.Event()


@final
class _Brought(Pending):
    """An exchange to which this rank has brought its value."""

    def __init__(self, exchange: _Exchange, run_others: Callable[[], None]) -> None:
        self._exchange, self._run_others = exchange, run_others

    def done(self) -> bool:
        """Whether every rank has brought its value."""
        return self._exchange.complete.is_set()

    def wait(self) -> Any:
        """Return the values of all ranks, combined."""
        if not self.done():
            self._run_others()
        if not self._exchange.complete.wait(_PATIENCE):
            raise RuntimeError("a virtual rank has waited for another one that never came")
        return self._exchange.values


@final
class Meeting:
    """Where the ranks of a process exchange values.

    Args:
        ranks: Their number.
        nested: Whether every call of :meth:`together` exchanges values once.
    """

    def __init__(self, ranks: int, *, nested: bool) -> None:
        self.ranks, self.store = ranks, HashStore()
        self._nested = nested
        self._others: Iterator[int] = iter(())
        self._run: Callable[[int], None]
        self._lock = threading.Lock()
        self._open: dict[int, _Exchange] = {}
        self._calls = [0] * ranks
        self._threads = ThreadPoolExecutor(ranks)

    def bring(self, rank: int, value: object, combine: Callable[[list[Any]], object]) -> Pending:
        """Bring a value to the next exchange of a rank; the last rank combines all of them."""
        with self._lock:
            call = self._calls[rank]
            self._calls[rank] += 1
            exchange = self._open.setdefault(call, _Exchange(self.ranks))
            exchange.values[rank] = value
            exchange.missing -= 1
            if not exchange.missing:
                del self._open[call]
                combine(exchange.values)
                exchange.complete.set()
        return _Brought(exchange, self._run_others)

    def together(self, call: Callable[[int], T]) -> list[T]:
        """Call a function for every rank; return what each call returned."""
        if not self._nested:
            return list(self._threads.map(call, range(self.ranks)))
        found: dict[int, T] = {}

        def run(rank: int) -> None:
            found[rank] = call(rank)

        self._others, self._run = iter(range(self.ranks)), run
        self._run_others()
        return [found[rank] for rank in range(self.ranks)]

    def _run_others(self) -> None:
        """Run the ranks that have not begun with a call of :meth:`together`."""
        for rank in self._others:
            self._run(rank)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


@final
class VirtualGroup(Group):
    """All ranks of a process, seen from one of them.

    Args:
        meeting: Where they meet; the same for all ranks.
        rank: This rank.
    """

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting = meeting
        self.rank, self.world_size, self.local_rank = rank, meeting.ranks, rank
        self.device = torch.device("cpu")

    def gather(self, values: Sequence[float], *, prompt: bool = False) -> list[list[float]]:
        """Return the values of every rank."""
        found: list[list[float]] = self.gather_later(values, prompt=prompt).wait()
        return found

    def gather_later(self, values: Sequence[float], *, prompt: bool = False) -> Pending:  # noqa: ARG002
        """Begin a gather."""
        return self._bring([float(value) for value in values])

    def gather_objects(self, value: T) -> list[T]:
        """Return the object of every rank."""
        found: list[T] = self._bring(value).wait()
        return found

    def broadcast_(self, tensor: Tensor) -> None:
        """Overwrite a tensor with that of rank 0."""
        self._bring(tensor, _copy_first).wait()

    def all_reduce_later(self, tensor: Tensor, *, maximum: bool = False) -> Pending:
        """Begin a sum over the ranks."""
        return self._bring(tensor, _take_maximum if maximum else _add)

    def swap_rows_later(self, given: Tensor, taken: Tensor) -> Pending:
        """Begin to send each rank its row."""
        return self._bring((given, taken), _swap)

    @property
    def store(self) -> Store:
        """Values that all ranks share."""
        return self._meeting.store

    def _bring(self, value: object, combine: Callable[[list[Any]], object] = len) -> Pending:
        return self._meeting.bring(self.rank, value, combine)


@torch.no_grad()
def _copy_first(tensors: list[Tensor]) -> None:
    for tensor in tensors[1:]:
        tensor.copy_(tensors[0])


@torch.no_grad()
def _swap(ranks: list[tuple[Tensor, Tensor]]) -> None:
    for rank, (_, taken) in enumerate(ranks):
        for other, (given, _) in enumerate(ranks):
            taken[other].copy_(given[rank])


@torch.no_grad()
def _add(tensors: list[Tensor]) -> None:
    for tensor in tensors[1:]:
        tensors[0].add_(tensor)
    _copy_first(tensors)


@torch.no_grad()
def _take_maximum(tensors: list[Tensor]) -> None:
    for tensor in tensors[1:]:
        torch.maximum(tensors[0], tensor, out=tensors[0])
    _copy_first(tensors)
