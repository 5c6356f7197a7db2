"""Whether there is somebody to ask, and what they would say.

Imported on the warm path: only ``os`` and ``sys`` at module top.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH123
from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

_TERMINAL = "CONIN$" if os.name == "nt" else "/dev/tty"

_OFF = ("", "0", "false")

_yes = False


def answer_yes() -> None:
    """From now on every question answers itself with yes: ``fdl -y``."""
    global _yes
    _yes = True


def has_yes() -> bool:
    """Whether ``-y`` answers every question."""
    return _yes


def is_set(variables: Mapping[str, str], name: str) -> bool:
    """Whether a switch such as ``CI`` is on; empty, ``0`` and ``false`` are off."""
    return variables.get(name, "").strip().lower() not in _OFF


def may_ask() -> bool:
    """Whether a question makes sense: a person at a terminal who has not said yes to everything."""
    return not _yes and not is_set(os.environ, "CI") and sys.stderr.isatty()


def ask(prompt: str) -> str | None:
    """Ask on the controlling terminal, so that a piped standard input stays the child's.

    Returns:
        What was typed, without blanks around it; None where nobody can answer, or no longer.
    """
    if not may_ask():
        return None
    try:
        with open(_TERMINAL, encoding="utf-8", errors="replace") as terminal:
            sys.stdout.flush()
            from fdl.base.masking import KNOWN

            sys.stderr.write(KNOWN.text(prompt))
            sys.stderr.flush()
            _wait_for(terminal)
            line = terminal.readline()
    except KeyboardInterrupt:
        # What the shell prints next gets its own line.
        sys.stderr.write("\n")
        raise
    except OSError:
        return None
    if not line:
        # At the end of input nobody pressed Enter: what follows gets its own line.
        sys.stderr.write("\n")
        return None
    return line.strip()


def _wait_for(terminal: TextIO) -> None:
    """Return when something can be read.

    A Ctrl-C in the instant before a blocking read would be noticed only after the next key.
    """
    if os.name == "nt":  # Windows waits for sockets only
        return
    from select import select

    while not select([terminal], [], [], 0.2)[0]:
        pass
