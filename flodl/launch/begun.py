"""Tell the launcher of this rank that the training has begun."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

BEGUN = "training-has-begun"
"""File beside the error file of a rank, once the rank has trained a step or has a checkpoint.

Only then the ranks are started again after a failure: a program that fails at its start would fail
in the same way again.
"""


def mark_begun(environ: Mapping[str, str]) -> None:
    """Record that the training has begun; does nothing without a launcher that gives a file."""
    if file := environ.get("TORCHELASTIC_ERROR_FILE"):
        # A launcher that keeps no files names the null device.
        with contextlib.suppress(OSError):
            Path(file).with_name(BEGUN).touch()


def any_begun(folder: Path) -> bool:
    """Whether a rank has begun, according to the files in the folder of a launch."""
    return any(folder.rglob(BEGUN))
