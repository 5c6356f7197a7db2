"""Whether there is somebody to ask, and what they would say.

Imported on the warm path: only ``os`` and ``sys`` at module top.
"""

# ruff: noqa: PTH123
from __future__ import annotations

import os
import sys
from select import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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
    while not select([terminal], [], [], 0.2)[0]:
        pass


class Questions:
    """Asks a user while ``on`` is true, or takes the default of every question."""

    def __init__(self, *, on: bool = True) -> None:
        self.on = on and may_ask()

    def confirm(self, question: str, *, default: bool, unanswered: bool | None = None) -> bool:
        """Ask for yes or no; Enter means ``default``.

        Without a user the answer is ``unanswered``, else ``default``.
        """
        choices = "[Y/n]" if default else "[y/N]"
        while True:
            answer = self._ask(f"{question} {choices} ")
            if answer is None:
                return default if unanswered is None else unanswered
            if answer == "":
                return default
            if answer.lower() in ("y", "yes", "n", "no"):
                return answer.lower().startswith("y")

    def choose(
        self, question: str, options: Sequence[str], *, default: int, unanswered: int | None = None
    ) -> int:
        """Ask for one of several options; returns its position, from 0.

        Enter means ``default``; the end of the input means ``unanswered``, or else ``default``.
        """
        if not self.on:
            return default
        lines = [f"  {number}  {text}" for number, text in enumerate(options, 1)]
        sys.stderr.write("\n".join([question, *lines]) + "\n")
        while True:
            answer = self._ask(f"Choose [{default + 1}]: ")
            if answer is None and unanswered is not None:
                return unanswered
            if not answer:
                return default
            if answer.isascii() and answer.isdigit() and 1 <= int(answer[:9]) <= len(options):
                return int(answer) - 1

    def _ask(self, prompt: str) -> str | None:
        """The typed text; None if no user answers, or no longer."""
        return ask(prompt) if self.on else None
