"""Whether there is somebody to ask, and what they would say.

Imported on the warm path: only ``os`` and ``sys`` at module top.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_OFF = ("", "0", "false")

_yes = False


def answer_yes() -> None:
    """From now on every question answers itself with yes: ``fdl -y``."""
    global _yes
    _yes = True


def is_set(variables: Mapping[str, str], name: str) -> bool:
    """Whether a switch such as ``CI`` is on; empty, ``0`` and ``false`` are off."""
    return variables.get(name, "").strip().lower() not in _OFF


def may_ask() -> bool:
    """Whether a question makes sense: a person at a terminal who has not said yes to everything."""
    return not _yes and not is_set(os.environ, "CI") and sys.stderr.isatty()
