"""SIGINT and SIGTERM during training: stop cleanly at the next step, or at once when repeated."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, NoReturn, final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any, Self

TERMINATED = 143
"""Exit code after SIGTERM: 128 + SIGTERM."""


@final
class Terminated(SystemExit):
    """The process received SIGTERM; batch systems send it before they take a machine away.

    If it is not caught, the process ends without a traceback, with exit code 143.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(TERMINATED)
        self._message = message

    def __str__(self) -> str:
        return self._message


@final
class InterruptRequest:
    """Turns the first SIGINT or SIGTERM into a request; the second one acts at once.

    Use it as a context manager. It installs handlers only in the main thread, because Python allows
    it nowhere else. Two settings stay as they are: a SIGINT that was ignored when the job started,
    and a SIGTERM handler of the program. The former handlers come back when the context ends.

    Args:
        wake: Called from the handler, so that a loop that checks only now and then checks soon.
    """

    def __init__(self, wake: Callable[[], object] | None = None) -> None:
        self._wake = wake
        self._signal: signal.Signals | None = None
        self._former: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether training shall stop at the next step boundary."""
        return self._signal is not None

    @property
    def asked_by(self) -> signal.Signals | None:
        """The signal that asked for the stop; None if there was none."""
        return self._signal

    def stop(self, message: str, by: signal.Signals | None = None) -> NoReturn:
        """End the training in the way the signal asked for.

        Args:
            message: Text for people.
            by: The signal, if another process received it; None: the signal that this process
                received.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            Terminated: It was SIGTERM.
        """
        if (by or self._signal) == signal.SIGTERM:
            raise Terminated(message)
        raise KeyboardInterrupt(message)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            if callable(signal.getsignal(signal.SIGINT)):
                self._install(signal.SIGINT)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._install(signal.SIGTERM)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _install(self, number: signal.Signals) -> None:
        self._former[number] = signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal = signal.Signals(number)
            if self._wake is not None:
                self._wake()
            return
        former = self._former[signal.Signals(number)]
        self._restore()
        if number == signal.SIGTERM:
            raise Terminated
        former(number, frame)

    def _restore(self) -> None:
        while self._former:
            signal.signal(*self._former.popitem())
