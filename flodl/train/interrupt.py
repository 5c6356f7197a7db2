"""Ctrl-C during training: stop cleanly at the next step, or at once when pressed again."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Self


@final
class InterruptRequest:
    """Turns the first SIGINT into a request, and gives every later one its usual effect.

    A context manager. The handler is installed only in the main thread, where Python allows it,
    and only where SIGINT would interrupt (a job started with it ignored stays that way); leaving
    the context puts the former handler back.
    """

    def __init__(self) -> None:
        self._requested = False
        self._installed = False

    @property
    def requested(self) -> bool:
        """Whether training shall stop at the next step boundary."""
        return self._requested

    def __enter__(self) -> Self:
        self._former = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(self._former):
            signal.signal(signal.SIGINT, self._request)
            self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal's form
        self._requested = True
        self._restore()

    def _restore(self) -> None:
        if self._installed:
            self._installed = False
            signal.signal(signal.SIGINT, self._former)
