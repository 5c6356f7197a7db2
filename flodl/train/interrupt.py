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
"""Exit code after a request to terminate: 128 + SIGTERM."""


@final
class Terminated(SystemExit):
    """The process was asked to end (SIGTERM), as batch systems do before they take a machine away.

    Uncaught it ends the process quietly with exit code 143.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(TERMINATED)
        self._message = message

    def __str__(self) -> str:
        return self._message


@final
class InterruptRequest:
    """Turns the first SIGINT or SIGTERM into a request, and lets the next one act at once.

    A context manager. Handlers are installed only in the main thread, where Python allows it, and
    only in place of what a signal does by itself: a job started with SIGINT ignored, and a
    program with a SIGTERM handler of its own, keep what they have. Leaving the context puts the
    former handlers back.

    Args:
        wake: Called from the handler, so that whoever looks only now and then looks soon.
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
        """The signal that asked for it; None while none has."""
        return self._signal

    def stop(self, message: str, by: signal.Signals | None = None) -> NoReturn:
        """Leave training in the way the signal asked for.

        Args:
            message: For people.
            by: The signal, where another process was asked; None: the one that came here.

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
