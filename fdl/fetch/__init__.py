"""Fetching a zip archive and unpacking it while it arrives, safely and so that it can go on later.

How the parts fit: one or more threads write the archive into a part file (``transfer``), others
read it behind them: one computes its digest, others inflate members (``unpack``, or ``walk`` where
the directory comes last). ``arrival`` is what they wait on. A killed call leaves the part file and
its journal (``part``) for the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdl.fetch.archive import Unpacked as Unpacked
from fdl.fetch.archive import unpack_file as unpack_file
from fdl.fetch.digest import ALGORITHMS as ALGORITHMS
from fdl.fetch.digest import Algorithm as Algorithm
from fdl.fetch.digest import Digest as Digest
from fdl.fetch.options import Options as Options

if TYPE_CHECKING:
    from fdl.fetch.download import unpack_url as unpack_url

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Digest",
    "Options",
    "Unpacked",
    "unpack_file",
    "unpack_url",
]


def __getattr__(name: str) -> Any:
    # A file of this machine is unpacked without loading the HTTP client.
    if name == "unpack_url":
        from fdl.fetch.download import unpack_url

        return unpack_url
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
