"""Pause Python's garbage collector while it would find nothing to collect."""

from __future__ import annotations

import atexit
import gc
import io
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import GeneratorType
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from types import TracebackType

MOST_OBJECTS = 100_000
"""Objects that may exist before an import whose objects leave the collector's sight."""


@contextmanager
def paused() -> Iterator[None]:
    """Pause the garbage collector while modules are imported or a model is made.

    Both create many objects and hardly any garbage. Their number triggers collections, and each
    collection visits every object that torch has loaded, which takes as long as opening a model.
    Garbage that other threads make meanwhile is collected afterwards.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@final
class LastingImport:
    """Imports a module in this context, and keeps the collector from its objects.

    The modules of torch create some hundred thousand objects, which live to the end of the process.
    Each full collection visits them, and the end of the interpreter collects several times. So
    these visits take a third of the time of a program that only imports torch.

    ``gc.freeze`` hides every object of the process. So the objects that exist before the import are
    hidden, too. They are still removed when nothing refers to them. Only cycles among them stay.

    The collector sees everything as always in these cases:

    - The module is loaded already.
    - An object that exists before the import has work to do when it is removed, such as an open
      file that is written.
    - More than :data:`MOST_OBJECTS` exist, as in a notebook.

    At the end of the process everything is shown to it again, if any object has such work to do.

    Args:
        name: The module.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._was_on = self._freezes = False

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        self._freezes = self._was_on and self._name not in sys.modules and _can_freeze()
        gc.disable()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._freezes and kind is None:
            gc.freeze()
            atexit.register(_show_again)
        if self._was_on:
            gc.enable()


def _can_freeze() -> bool:
    """Whether nobody would notice that the objects of now are hidden."""
    gc.collect()  # garbage that exists now must not stay
    if gc.get_freeze_count():
        return False  # the program manages this itself
    objects = gc.get_objects()
    return len(objects) <= MOST_OBJECTS and not _any_work(objects)


def _show_again() -> None:
    """Let the interpreter end as always, unless no object has work to do then."""
    # The program is over: Ctrl-C has nothing to stop, and would print a traceback.
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _any_work(gc.get_objects()):
        gc.unfreeze()
    signal.signal(signal.SIGINT, former or signal.SIG_DFL)


def _any_work(objects: Iterable[object]) -> bool:
    """Whether an object has work to do when it is removed; the standard streams do not count."""
    streams = set()
    for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        streams |= {id(stream), id(getattr(stream, "buffer", None))}
    return any(
        hasattr(type(one), "__del__") and id(one) not in streams and _has_work(one)
        for one in objects
    )


def _has_work(one: object) -> bool:
    """Whether an object that has a ``__del__`` may do something there."""
    if isinstance(one, GeneratorType):
        return one.gi_suspended or one.gi_running  # else it has not begun, or has ended
    # The system closes what has no text or bytes to write.
    return type(one) not in (io.FileIO, io.BufferedReader)
