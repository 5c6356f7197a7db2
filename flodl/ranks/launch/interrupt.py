"""Signals during training: stop cleanly at the next step, or at once when repeated."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self, final

from flodl.ranks.launch.launcher import LAUNCHED_VARIABLE

JOB_VARIABLE = "SLURM_JOB_ID"
"""Set in every process of a SLURM job."""

_NOTICE = getattr(signal, "SIGUSR1", None)
"""Sent by a batch system some time before a job reaches its time limit or is preempted."""

_SAME_WITHIN_S = 1.0
"""Batch systems and ``timeout`` signal every process, and launchers pass the signal on."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C inside the context, where the main thread uses it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former or signal.SIG_DFL)


def ignore_repeated() -> None:
    """Ignore for a moment the SIGINT that repeats the one which has ended a training.

    ``timeout`` signals a whole process group, and ``fdl`` passes the signal on once more. The
    second one would end the report or a function at exit.
    """
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(former):
        return
    if isinstance(former, _Ignoring):
        former = former.former
    signal.signal(signal.SIGINT, _Ignoring(former))


@final
class _Ignoring:
    """A handler that ignores signals for a moment and then gives way to the former one."""

    def __init__(self, former: Callable[[int, FrameType | None], object]) -> None:
        self.former = former
        self._until = time.monotonic() + _SAME_WITHIN_S

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= self._until:
            signal.signal(number, self.former)
            self.former(number, frame)


@final
class Terminated(SystemExit):
    """The process received SIGTERM; batch systems send it before they take a machine away.

    In a SLURM job, SIGUSR1 has the same effect: it announces that the job ends soon. If the
    exception is not caught, the process ends without a traceback. The exit code is 143 after
    SIGTERM and 138 after SIGUSR1 on Linux: 128 + the number of the signal.
    """

    def __init__(self, message: str = "", number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
        self._message = message

    @property
    def preempted(self) -> bool:
        """Whether SIGUSR1 announced the end of the job."""
        return _NOTICE is not None and self.code == 128 + _NOTICE

    def __str__(self) -> str:
        return self._message


@final
class InterruptRequest:
    """Turns the first SIGINT or SIGTERM into a request; the second one acts at once.

    Use it as a context manager. It installs handlers only in the main thread, because Python allows
    it nowhere else. Two settings stay as they are: a SIGINT that was ignored when the job started,
    and a SIGTERM handler of the program. The former handlers come back when the context ends.

    In a SLURM job, SIGUSR1 is a request as well, unless the program handles or ignores it, and it
    never acts at once. There and in a rank that a launcher has started, signals within a second of
    the first one count as the same request.

    Args:
        wake: Called from the handler, so that a loop that checks only now and then checks soon.

    Attributes:
        asked_by: The signal that asked for the stop; None if there was none.
    """

    def __init__(self, wake: Callable[[], object] | None = None) -> None:
        self._wake = wake
        self.asked_by: signal.Signals | None = None
        self._asked_at = 0.0
        self._in_job = JOB_VARIABLE in os.environ
        self._several = self._in_job or LAUNCHED_VARIABLE in os.environ
        self._former: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether training shall stop at the next step boundary."""
        return self.asked_by is not None

    def ask(self) -> None:
        """Ask for the stop without a signal; a signal that follows acts at once."""
        if self.asked_by is None:
            self.asked_by, self._asked_at = signal.SIGINT, time.monotonic()

    def stop(self, message: str, by: signal.Signals | None = None) -> NoReturn:
        """End the training in the way the signal asked for.

        Args:
            message: Text for people.
            by: The signal, if another process received it; None: the signal that this process
                received.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            Terminated: It was SIGTERM or, in a SLURM job, SIGUSR1.
        """
        number = by or self.asked_by
        if number is not None and number in (signal.SIGTERM, _NOTICE):
            raise Terminated(message, number)
        raise KeyboardInterrupt(message)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            if callable(signal.getsignal(signal.SIGINT)):
                self._install(signal.SIGINT)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._install(signal.SIGTERM)
            if self._in_job and _NOTICE and signal.getsignal(_NOTICE) is signal.SIG_DFL:
                self._install(_NOTICE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()
        if self.asked_by is not None and isinstance(error, KeyboardInterrupt | Terminated):
            ignore_repeated()

    def _install(self, number: signal.Signals) -> None:
        self._former[number] = signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.asked_by is None:
            self.asked_by = signal.Signals(number)
            self._asked_at = time.monotonic()
            if self._wake is not None:
                self._wake()
            return
        same = self._several and time.monotonic() - self._asked_at < _SAME_WITHIN_S
        if number == _NOTICE or same:
            return
        former = self._former[signal.Signals(number)]
        self._restore()
        if number == signal.SIGTERM:
            raise Terminated
        former(number, frame)

    def _restore(self) -> None:
        while self._former:
            signal.signal(*self._former.popitem())
