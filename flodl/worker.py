"""Work for another thread, one task after the other."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, final

from flodl.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self


@final
class CpuWorker:
    """Runs tasks on one thread in the order they were submitted.

    The thread lives only while there is work, and a program that ends waits for it: a save that
    was submitted is never lost because somebody forgot :meth:`finish`. What a task raises is kept
    for :meth:`finish` and does not keep the others from running. A forked process begins with an
    empty worker: what was queued stays the business of the process that queued it.

    As a context manager it finishes at the end of the block.
    """

    def __init__(self) -> None:
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
        """Whether nothing is queued or running."""
        self._leave_parent()
        with self._changed:
            return not self._busy

    def submit(self, task: Callable[[], object]) -> None:
        """Queue a function without arguments; what it returns is dropped.

        Raises:
            StateError: After :meth:`finish`.
            RuntimeError: The system has no thread left; the task was not queued.
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
        """Wait until every task has run; nothing can be submitted any more.

        Raises:
            BaseException: What the first failing task raised, with a note on every further one. A
                second call raises nothing.
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
        """In a forked process, leave the tasks to the process whose thread runs them."""
        if os.getpid() != self._owner:
            self._begin()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._tasks:
                    self._busy = False
                    self._changed.notify_all()
                    return
                task = self._tasks.popleft()
            try:
                task()
            except BaseException as error:  # kept for finish, SystemExit included
                self._errors.append(error)
            del task  # what it holds, a snapshot for instance, may be large
