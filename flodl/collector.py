"""Python's collector of reference cycles, where it would only look at what is there to stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Let the collector wait while modules are loaded or a model is made.

    Both make many objects and no garbage, and what sets the collector off is their number: it would
    walk over everything torch has loaded, which takes as long as opening a model. What other
    threads leave behind meanwhile is collected afterwards.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
