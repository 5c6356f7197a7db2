"""Processes that read samples, for data sets whose ``get`` keeps a processor busy.

The processes are those of ``torch.utils.data``, kept from epoch to epoch and fed with our own
order. Before each batch a process seeds its generators from the seed of the epoch and the first
place of the batch in it, so that random transforms do not depend on the number of processes, and
an epoch that is resumed draws what it would have drawn.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import threading
import traceback
import weakref
from typing import TYPE_CHECKING, NamedTuple, cast, final

import numpy as np
import torch
import torch.utils.data

from flodl.data.adapters import members_of
from flodl.data.feed import read_rows
from flodl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from flodl.data.dataset import BatchDataSet


class _Request(NamedTuple):
    """What one process is asked for."""

    seed: int
    rows: list[int]


class _Answer(NamedTuple):
    """What one process has read."""

    keys: tuple[object, ...] | None
    """Those of the mappings, in the order of this process."""
    tensors: tuple[Tensor, ...]


class _Failure(NamedTuple):
    """An exception of a data set on its way to the consumer."""

    pickled: bytes | None
    summary: str
    trace: str


def _mixed(number: int) -> int:
    """Spread a number over 63 bits: torch's generator looks at the lower half of a seed only."""
    digest = hashlib.blake2b(str(number).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@final
class _Order:
    """The requests of the epoch that starts next; the loader of torch keeps this one object."""

    def __init__(self) -> None:
        self._requests: Iterator[_Request] = iter(())

    def set(self, batches: Iterator[Tensor], *, seed: int) -> None:
        self._requests = (
            _Request(_mixed(seed + place), rows.tolist()) for place, rows in enumerate(batches)
        )

    def __iter__(self) -> Iterator[_Request]:
        return self._requests


@final
class _Source:
    """The data set as a process sees it: one request in, one batch out."""

    def __init__(self, source: BatchDataSet) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, request: _Request) -> _Answer | _Failure:
        random.seed(request.seed)
        np.random.seed(request.seed % 2**32)
        torch.manual_seed(request.seed)
        try:
            tensors = read_rows(self._source, request.rows)
            return _Answer(members_of(self._source).keys, tensors)
        except Exception as error:
            return _failure(error)


def _failure(error: Exception) -> _Failure:
    summary = f"{type(error).__name__}: {error}"
    try:
        pickled: bytes | None = pickle.dumps(error)
    except Exception:
        pickled = None
    return _Failure(pickled, summary, "".join(traceback.format_exception(error)))


def _raise(failure: _Failure) -> None:
    """Raise what a process caught, with its own type and the way it went there.

    Raises:
        DataError: The exception could not travel between processes.
    """
    try:
        # Written by a process of ours a moment ago, in memory.
        error = pickle.loads(failure.pickled) if failure.pickled else None  # noqa: S301
    except Exception:
        error = None
    if not isinstance(error, Exception):
        error = DataError(
            f"the data set raised {failure.summary}, which cannot be handed over between "
            "processes; workers=0 raises it as it is"
        )
    error.add_note(f"In a worker process:\n{failure.trace}")
    try:
        raise error
    finally:
        # The traceback leads to this frame and from here to the processes: no ring, please.
        del error


@final
class _Team:
    """Some processes, one epoch at a time."""

    def __init__(self, source: BatchDataSet, workers: int) -> None:
        self.lost = False
        self._members = members_of(source)
        self._order = _Order()
        self._loader = torch.utils.data.DataLoader[object](
            _Source(source),  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._order,
            collate_fn=_unchanged,
            num_workers=workers,
            persistent_workers=True,
            # Without one of its own it would draw from the generator of the training.
            generator=torch.Generator(),
        )
        # Made on the main thread, torch's loader installs a signal handler that would raise in the
        # middle of a training step when a process dies; from elsewhere it looks after them itself.
        start = threading.Thread(target=self._start, name="flodl-fork")
        start.start()
        start.join()

    def _start(self) -> None:
        # An epoch without a batch makes the processes.
        for _ in self._loader:
            pass

    def begin(self, batches: Iterator[Tensor], *, seed: int) -> Iterator[object]:
        """Ask for the first batches of an epoch.

        Raises:
            RuntimeError: A process has ended since the epoch before.
        """
        self._order.set(batches, seed=seed)
        return iter(self._loader)

    def batches(self, answers: Iterator[object]) -> Iterator[tuple[Tensor, ...]]:
        while True:
            try:
                answer = next(answers)
            except StopIteration:
                return
            except Exception as error:
                # What a data set raises comes as an answer; this is the way between processes.
                self.lost = True
                raise DataError(
                    "a worker process of the loader ended before its work: "
                    f"{type(error).__name__}: {error}; the system may have run out of memory "
                    "(fewer workers need less)"
                ) from error
            if isinstance(answer, _Failure):
                _raise(answer)
            keys, tensors = cast("_Answer", answer)
            if keys is not None:
                # Each process has the order of the first mapping that it read itself.
                named = dict(zip(keys, tensors, strict=True))
                tensors = tuple(cast("list[Tensor]", self._members.ordered(named, "a batch")))
            yield tensors


def _unchanged(batch: object) -> object:
    return batch


_INHERITED: list[_Team] = []
"""Teams of the process that forked this one: letting go of them would end them there."""


def _dismiss(teams: list[_Team], owner: int) -> None:
    if os.getpid() != owner:
        _INHERITED.extend(teams)
    teams.clear()


@final
class WorkerProcesses:
    """Teams of processes: one for each epoch that runs at the same time.

    Args:
        source: The data set, of which each process has a copy.
        workers: Processes in a team.
    """

    def __init__(self, source: BatchDataSet, workers: int) -> None:
        self._source = source
        self._workers = workers
        self._teams = 0
        self._idle: list[_Team] = []
        self._lock = threading.Lock()
        # Holds the teams until this object is gone. Queues that the collector of cycles finds
        # together with their processes are closed first, and the processes then wait in vain.
        weakref.finalize(self, _dismiss, self._idle, os.getpid())

    def prepare(self, epochs: int) -> None:
        """Have teams for so many epochs at once; called on the consumer's thread."""
        with self._lock:
            while self._teams < epochs:
                self._idle.append(self._new_team())

    def _new_team(self) -> _Team:
        team = _Team(self._source, self._workers)
        self._teams += 1
        return team

    def batches(
        self, rows: Callable[[], Iterator[Tensor]], *, seed: int
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield what an idle team reads; runs on the thread that loads.

        Args:
            rows: Gives the sample numbers of each batch, from the first whenever it is called.
            seed: Seed of the first batch; those behind it count up.

        Raises:
            Exception: Whatever the data set raised in a process.
        """
        with self._lock:
            # There is none if the one prepared was lost in a cancelled epoch that ended just now.
            team = self._idle.pop() if self._idle else self._new_team()
        try:
            try:
                answers = team.begin(rows(), seed=seed)
            except Exception:
                # Killed between two epochs, by Ctrl-C in a notebook for instance: nothing that
                # the consumer waits for is lost yet.
                with self._lock:
                    self._teams -= 1
                    team = self._new_team()
                answers = team.begin(rows(), seed=seed)
            yield from team.batches(answers)
        finally:
            with self._lock:
                if team.lost:
                    self._teams -= 1
                else:
                    self._idle.append(team)
