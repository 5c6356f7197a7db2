"""Run tasks on another thread, one after the other."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self, final

from flodl.errors import StateError
from flodl.openmp import use_one_thread


@final
class CpuWorker:
    """Runs tasks on one thread in the order they were submitted.

    - The thread exists only while there is work. A program that ends waits for it, so a submitted
      save is not lost when :meth:`finish` is never called.
    - An exception in a task is kept for :meth:`finish`; the other tasks still run.
    - A forked process starts with an empty worker. Queued tasks stay with the parent process.

    Used as a context manager, it finishes at the end of the block.

    Args:
        one_thread: Operations of torch in its tasks run on its thread alone. They are slower, and
            leave the other cores to the rest of the program.
    """

    def __init__(self, *, one_thread: bool = False) -> None:
        self._one_thread = one_thread
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._tasks: deque[Callable[[], object]] = deque()
        self._errors: list[BaseException] = []
        self._busy = False
        self._finished = False

    @property
    def is_idle(self) -> bool:
        """Whether no task is queued or running."""
        self._leave_parent()
        with self._changed:
            return not self._busy

    def submit(self, task: Callable[[], object]) -> None:
        """Queue a function without arguments; its return value is dropped.

        Raises:
            StateError: :meth:`finish` was called before.
            RuntimeError: The system cannot start a thread; the task was not queued.
        """
        self._leave_parent()
        with self._changed:
            if self._finished:
                raise StateError("the worker has finished; make a new CpuWorker for more work")
            if not self._busy:
                threading.Thread(target=self._work, name="flodl-worker").start()
                self._busy = True
            self._tasks.append(task)

    def finish(self) -> None:
        """Wait until every task has run; afterwards :meth:`submit` is refused.

        Raises:
            BaseException: The exception of the first failed task, with a note for each later one.
                A second call raises nothing.
        """
        self._leave_parent()
        with self._changed:
            self._finished = True
            self._changed.wait_for(lambda: not self._busy)
            errors, self._errors = self._errors, []
        if errors:
            for further in errors[1:]:
                errors[0].add_note(f"a later task raised {type(further).__name__}: {further}")
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.finish()
        except BaseException as failure:
            if error is None:
                raise
            error.add_note(f"a background task raised {type(failure).__name__}: {failure}")

    def _leave_parent(self) -> None:
        """In a forked process, drop the queued tasks: the parent's thread runs them."""
        if os.getpid() != self._owner:
            self._begin()

    def _work(self) -> None:
        if self._one_thread:
            use_one_thread()
        while True:
            with self._changed:
                if not self._tasks:
                    self._busy = False
                    self._changed.notify_all()
                    return
                task = self._tasks.popleft()
            try:
                task()
            except BaseException as error:  # kept for finish(), including SystemExit
                self._errors.append(error)
            del task  # it may hold something large, such as a snapshot
