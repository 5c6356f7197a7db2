"""Processes that read samples, for data sets whose ``get`` keeps a processor busy.

The processes are those of ``torch.utils.data``. They are kept from epoch to epoch, and flodl gives
them its own order. Before each batch, a process seeds its generators from the seed of the epoch and
the position of the batch in it; with a cache, it does so for each sample. So random transforms do
not depend on the number of processes, and a resumed epoch draws the same values.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast, final

import torch
import torch.utils.data
from torch import Tensor

from flodl.data.adapters import members_of
from flodl.data.dataset import BatchDataSet
from flodl.data.draws import SampleReader, seed_generators
from flodl.data.feed import read_rows
from flodl.data.seeds import Seeds, mixed
from flodl.errors import DataError


class _Request(NamedTuple):
    """A request to one process."""

    seed: int
    rows: list[int]
    each_sample: bool
    """Whether each sample draws from a seed of its own, derived from this one."""


class _Answer(NamedTuple):
    """The answer of one process."""

    keys: tuple[object, ...] | None
    """Keys of the mappings, in the order of this process."""
    tensors: tuple[Tensor, ...]


class _Failure(NamedTuple):
    """An exception of a data set, as it is sent to the consumer."""

    pickled: bytes | None
    summary: str
    trace: str


@final
class _Order:
    """The requests of the next epoch; torch's loader keeps this one object."""

    def __init__(self) -> None:
        self._requests: Iterator[_Request] = iter(())

    def set(self, batches: Iterator[Tensor], seeds: Seeds, *, each_sample: bool) -> None:
        self._requests = (
            _Request(
                seeds.training if each_sample else mixed(seeds.batches[place]),
                rows.tolist(),
                each_sample,
            )
            for place, rows in enumerate(batches)
        )

    def __iter__(self) -> Iterator[_Request]:
        return self._requests


@final
class _Source:
    """The data set as a process sees it: one request in, one batch out."""

    def __init__(self, source: BatchDataSet) -> None:
        self._source = source
        self._samples = SampleReader(source)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, request: _Request) -> _Answer | _Failure:
        try:
            if request.each_sample:
                tensors = self._samples.read(request.rows, request.seed)
            else:
                seed_generators(request.seed)
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
    """Raise an exception from a process, with its type and its traceback as a note.

    Raises:
        DataError: The exception could not be pickled.
    """
    try:
        # Our own process wrote it a moment ago, in memory.
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
        # The traceback refers to this frame, which refers to the processes: avoid a reference
        # cycle.
        del error


@final
class _Team:
    """Some processes that read one epoch at a time."""

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
            worker_init_fn=_outlast,
            # Without its own generator it would draw from the generator of the training.
            generator=torch.Generator(),
        )
        # On the main thread, torch's loader would install a signal handler. If a process died, that
        # handler would raise in the middle of a training step. On another thread, the loader checks
        # its processes itself.
        start = threading.Thread(target=self._start, name="flodl-fork")
        start.start()
        start.join()

    def _start(self) -> None:
        # An epoch without a batch starts the processes.
        for _ in self._loader:
            pass
        # torch and Python end processes that hang with SIGTERM, which these outlast.
        for process in self._loader._iterator._workers:  # type: ignore[union-attr]
            process._popen.terminate = process._popen.kill

    def begin(
        self, batches: Iterator[Tensor], seeds: Seeds, *, each_sample: bool
    ) -> Iterator[object]:
        """Ask for the first batches of an epoch.

        Raises:
            RuntimeError: A process has ended since the previous epoch.
        """
        self._order.set(batches, seeds, each_sample=each_sample)
        return iter(self._loader)

    def batches(self, answers: Iterator[object]) -> Iterator[tuple[Tensor, ...]]:
        while True:
            try:
                answer = next(answers)
            except StopIteration:
                return
            except Exception as error:
                # Errors of a data set come as an answer, so this one comes from the processes
                # themselves.
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
                # Each process uses the key order of the first mapping that it read itself.
                named = dict(zip(keys, tensors, strict=True))
                tensors = tuple(cast("list[Tensor]", self._members.ordered(named, "a batch")))
            yield tensors


def _unchanged(batch: object) -> object:
    return batch


def _outlast(_: int) -> None:
    """Let a process read on after SIGTERM.

    Batch systems, ``timeout`` and fdl send it to every process. The training then waits for the
    batch of its last step; it ends the processes itself.
    """
    # Not ignored: programs that a data set starts would inherit that.
    signal.signal(signal.SIGTERM, lambda *_: None)


_INHERITED: list[_Team] = []
"""Teams of the parent process: a forked process that released them would end them there."""


def _dismiss(teams: list[_Team], owner: int) -> None:
    if os.getpid() != owner:
        _INHERITED.extend(teams)
    teams.clear()


@final
class WorkerProcesses:
    """Teams of processes: one for each epoch that runs at the same time.

    Args:
        source: The data set; each process has a copy.
        workers: Processes in a team.
    """

    def __init__(self, source: BatchDataSet, workers: int) -> None:
        self._source = source
        self._workers = workers
        self._teams = 0
        self._idle: list[_Team] = []
        self._lock = threading.Lock()
        # Holds the teams until this object is gone. If the garbage collector finds queues together
        # with their processes, it closes the queues first, and the processes then wait in vain.
        weakref.finalize(self, _dismiss, self._idle, os.getpid())

    def prepare(self, epochs: int) -> None:
        """Start teams for this many epochs at once; call it on the consumer's thread."""
        with self._lock:
            while self._teams < epochs:
                self._idle.append(self._new_team())

    def _new_team(self) -> _Team:
        team = _Team(self._source, self._workers)
        self._teams += 1
        return team

    def batches(
        self, rows: Callable[[], Iterator[Tensor]], seeds: Seeds, *, each_sample: bool
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches that an idle team reads; runs on the thread that loads.

        Args:
            rows: Returns the sample numbers of each batch; each call starts again at the first.
            seeds: What random transforms draw from.
            each_sample: Whether that is a seed of each sample, instead of each batch.

        Raises:
            Exception: Any exception of the data set in a process.
        """
        with self._lock:
            # There is none if the prepared team was lost in a cancelled epoch that ended just now.
            team = self._idle.pop() if self._idle else self._new_team()
        try:
            try:
                answers = team.begin(rows(), seeds, each_sample=each_sample)
            except Exception:
                # Killed between two epochs, for instance by Ctrl-C in a notebook: the consumer has
                # not lost any batch yet.
                with self._lock:
                    self._teams -= 1
                    team = self._new_team()
                answers = team.begin(rows(), seeds, each_sample=each_sample)
            yield from team.batches(answers)
        finally:
            with self._lock:
                if team.lost:
                    self._teams -= 1
                else:
                    self._idle.append(team)
