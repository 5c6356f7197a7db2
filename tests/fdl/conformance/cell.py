"""One kind of option of one library, and how a person gives it a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A small program with one kind of option.

    ``by_hand`` is what its user types behind the program. ``options`` is the same setting in a
    manifest. ``sweep`` is the value behind ``--each NAME=``, for kinds with a spelling there.
    ``rest`` are further keys of the preset (``subcommand: ...``). ``reason`` says why fdl drives
    the kind only in part, and is shown on the page; a cell without a reason works in every column.
    """

    kind: str
    program: str
    by_hand: str
    options: dict[str, Any]
    sweep: str | None = None
    rest: str = ""
    reason: str = ""
