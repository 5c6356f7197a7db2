"""Download a zip archive and unpack it while it arrives: safe, and resumable after a stop.

One or more threads write the archive into a part file (``transfer``). Other threads read it: one
computes the digest, others inflate members (``unpack``; ``walk`` if the directory arrives last).
All wait on ``arrival``. A killed call leaves the part file and its journal (``part``) for the next
call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fdl.fetch.archive import (
    Unpacked as Unpacked,
    extract_file as extract_file,
    unpack_file as unpack_file,
)
from fdl.fetch.digest import ALGORITHMS as ALGORITHMS, Algorithm as Algorithm, Digest as Digest
from fdl.fetch.options import Options as Options

if TYPE_CHECKING:
    from fdl.fetch.download import unpack_url as unpack_url


def __getattr__(name: str) -> Any:
    # Unpacking a local file must not import the HTTP client.
    if name == "unpack_url":
        from fdl.fetch.download import unpack_url

        return unpack_url
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
