"""Handlers of signals that are set for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

ENDING = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM")
"""Signals that ask a program to end."""


@contextmanager
def handled(names: Iterable[str], handler: Callable[[int], object]) -> Iterator[None]:
    """Call a function with the number of each of these signals that arrives meanwhile.

    Signals that are ignored stay ignored, as `nohup` wants it. Names that this system does not have
    are left out. Only the main thread can set handlers, so in another one nothing changes.
    """
    numbers = [signal.Signals[name] for name in names if hasattr(signal, name)]
    heeded = [one for one in numbers if signal.getsignal(one) != signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        heeded = []
    before = {one: signal.signal(one, lambda number, _: handler(number)) for one in heeded}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def interrupt(number: int) -> None:
    """A handler that acts like Ctrl-C.

    Raises:
        KeyboardInterrupt: Always; the signal is its argument.
    """
    raise KeyboardInterrupt(number)


def asked_by(stop: KeyboardInterrupt) -> int:
    """The signal that has interrupted fdl."""
    return int(stop.args[0]) if stop.args else signal.SIGINT
