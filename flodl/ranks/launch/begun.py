"""Tell the launcher of this rank that the training has begun."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from pathlib import Path

BEGUN = "training-has-begun"
"""File beside the error file of a rank, once the rank has trained a step or has a checkpoint.

Only then the ranks are started again after a failure: a program that fails at its start would fail
in the same way again.
"""

WATCHED = "training-is-watched"
"""File beside the error file of a rank that will say when it has begun.

Without it, fdl takes a program that has run for a minute for one that has begun.
"""


def mark_begun(environ: Mapping[str, str] = os.environ) -> None:
    """Record that the training has begun; does nothing without a launcher that gives a file."""
    _mark(environ.get("TORCHELASTIC_ERROR_FILE"), BEGUN)


def mark_watched(environ: Mapping[str, str] = os.environ) -> None:
    """Record that this program will call :func:`mark_begun` after its first step."""
    _mark(environ.get("TORCHELASTIC_ERROR_FILE"), WATCHED)


def has_begun(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this rank has begun."""
    file = environ.get("TORCHELASTIC_ERROR_FILE")
    return file is not None and Path(file).with_name(BEGUN).exists()


def any_begun(folder: Path) -> bool:
    """Whether a rank has begun, according to the files in the folder of a launch."""
    return any(folder.rglob(BEGUN))


@functools.cache  # it is called after every step
def _mark(file: str | None, name: str) -> None:
    if file is not None:
        # A launcher that keeps no files names the null device.
        with contextlib.suppress(OSError):
            Path(file).with_name(name).touch()
