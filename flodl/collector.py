"""Pause Python's garbage collector while it would find nothing to collect."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
