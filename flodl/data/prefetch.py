"""One thread that loads batches ahead of their consumers.

A :class:`Prefetcher` serves any number of epochs at once. The oldest one that may load another
batch comes first. Its thread has references to the epochs and the transfer, but not to the loader.
So a loader without references can be collected, and that ends the thread.

The queues between the threads are written in C. After a step, nothing of Python is left in the
processor's caches, and a condition would then cost the training thread three times as much.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, final

from torch import Tensor

from flodl.data.transfer import Group, Sent, Transfer
from flodl.errors import StateError
from flodl.openmp import use_one_thread

_FAREWELL_SECONDS = 5.0
"""Seconds that closing waits for a data set that is reading a batch."""


class _End(NamedTuple):
    """Marks the end of an epoch, after its last batch."""

    failure: BaseException | None


@final
class _Epoch:
    """One epoch in progress: the batches that are loaded and not yet fetched.

    The thread writes ``source``, ``group`` and ``exhausted``, the consumer writes ``cancelled``.
    """

    __slots__ = ("cancelled", "depth", "exhausted", "group", "ready", "source")

    def __init__(self, source: Iterator[Group], depth: Callable[[], int]) -> None:
        self.source = source
        self.depth = depth
        self.group = 1
        self.ready: SimpleQueue[Sent | _End] = SimpleQueue()
        self.exhausted = False
        self.cancelled = False

    def has_room(self) -> bool:
        """Whether another group of batches may be read."""
        return self.ready.qsize() + self.group <= max(self.group, self.depth())


@final
class _Shared:
    """The state that the thread and its owner share."""

    __slots__ = ("bell", "epochs", "lock", "stopped")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Guards the list of epochs."""
        self.epochs: list[_Epoch] = []
        self.stopped = False
        self.bell: SimpleQueue[None] = SimpleQueue()
        """Receives an item when there may be work for the thread."""

    def snapshot(self) -> list[_Epoch]:
        with self.lock:
            return list(self.epochs)


@final
class Prefetcher:
    """Runs sources of batches on its own thread.

    Args:
        transfer: Brings the tensors of a source to the device.
    """

    def __init__(self, transfer: Transfer) -> None:
        self._shared = _Shared()
        self._transfer = transfer
        thread = threading.Thread(
            target=_serve, args=(self._shared, transfer), name="flodl-prefetch", daemon=True
        )
        thread.start()
        self._owner = os.getpid()
        # Also runs when the interpreter exits, before torch is unloaded under the thread.
        self._finalizer = weakref.finalize(self, _stop, self._shared, thread, self._owner)

    def epoch(
        self, source: Iterator[Group], depth: Callable[[], int]
    ) -> Generator[tuple[Tensor, ...]]:
        """Load a source ahead and yield its batches; closing the iterator cancels the rest.

        Reading begins with this call; so the iterator must be closed even if it is not used.

        Args:
            source: Runs on the thread and is closed there; its exceptions are raised here.
            depth: Returns how many batches may be ready and unfetched; called before each group.

        Raises:
            StateError: The prefetcher was closed, or belongs to the process that forked this one.
        """
        batches = self._batches(_Epoch(source, depth))
        next(batches)
        return batches

    def _batches(self, epoch: _Epoch) -> Generator[Any]:
        shared, transfer, owner = self._shared, self._transfer, self._owner
        with shared.lock:
            shared.epochs.append(epoch)
        shared.bell.put(None)
        try:
            yield None
            while (sent := _fetch(shared, epoch)) is not None:
                yield transfer.receive(sent)
                _check_owner(owner)
        finally:
            if os.getpid() == owner:
                epoch.cancelled = True
                _empty(epoch.ready)
                shared.bell.put(None)

    def active(self) -> int:
        """Return the number of epochs that are neither finished nor cancelled."""
        return sum(not (e.cancelled or e.exhausted) for e in self._shared.snapshot())

    def wake(self) -> None:
        """Let the thread read the depths again."""
        self._shared.bell.put(None)

    def close(self) -> None:
        """End the thread; epochs in progress end early."""
        self._finalizer()


def _check_owner(owner: int) -> None:
    # A forked process does not have this thread, and the lock may stay locked forever there.
    if os.getpid() != owner:
        raise StateError(
            "this epoch was begun before the process was forked, and its batches are read in the "
            "parent; start it again here, with start_batch= to continue from the same place"
        )


def _fetch(shared: _Shared, epoch: _Epoch) -> Sent | None:
    """Return the next batch of an epoch, ``None`` after the last.

    Raises:
        Exception: The source raised it, or the prefetcher was closed.
    """
    item = epoch.ready.get()
    if isinstance(item, _End):
        if item.failure is None:
            return None
        try:
            raise item.failure
        finally:
            # Its traceback refers to this frame, and this frame to the loader: avoid a reference
            # cycle.
            del item
    if epoch.has_room():
        shared.bell.put(None)
    return item


def _empty(queue: SimpleQueue[Any]) -> None:
    with suppress(Empty):
        while True:
            queue.get_nowait()


def _serve(shared: _Shared, transfer: Transfer) -> None:
    use_one_thread()  # the other cores belong to the training
    while (epoch := _next_task(shared)) is not None:
        _advance(shared, epoch, transfer)
        # A data set may be large, and the thread may sleep for a long time.
        del epoch


def _next_task(shared: _Shared) -> _Epoch | None:
    """Wait for an epoch that needs a batch or has to be closed; ``None`` at the end."""
    while True:
        # Empty the bell before looking: later changes ring it again.
        _empty(shared.bell)
        epochs = shared.snapshot()
        for epoch in epochs:
            # Cancelled epochs first: they may hold processes that the next epoch needs.
            if epoch.cancelled or shared.stopped:
                return epoch
        if shared.stopped:
            return None
        for epoch in epochs:
            if epoch.has_room():
                return epoch
        del epochs
        shared.bell.get()


def _advance(shared: _Shared, epoch: _Epoch, transfer: Transfer) -> None:
    """Load one group of an epoch, or close the epoch if nothing is left to do."""
    sent: Sequence[Sent] = ()
    failure: BaseException | None = None
    if shared.stopped:
        failure = StateError(
            "the loader was closed in the middle of this epoch; start the epoch again, with "
            "start_batch= to continue from here"
        )
    elif not epoch.cancelled:
        try:
            sent = transfer.send(next(epoch.source))
            epoch.group = len(sent)
        except StopIteration:
            pass
        except BaseException as error:
            failure = error
    if sent:
        for one in () if epoch.cancelled else sent:
            epoch.ready.put(one)
        return
    _close_source(epoch)
    epoch.exhausted = True
    with shared.lock:
        shared.epochs.remove(epoch)
    epoch.ready.put(_End(failure))
    # Its traceback refers to this frame.
    del failure


def _close_source(epoch: _Epoch) -> None:
    close = getattr(epoch.source, "close", None)
    if close is not None:
        close()


def _stop(shared: _Shared, thread: threading.Thread, owner: int) -> None:
    if os.getpid() != owner:  # as in _check_owner
        return
    shared.stopped = True
    shared.bell.put(None)
    # The prefetch thread itself may drop the last reference to a loader.
    if thread is not threading.current_thread():
        thread.join(_FAREWELL_SECONDS)
