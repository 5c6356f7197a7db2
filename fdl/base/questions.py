"""Ask questions on the controlling terminal; without a user, take the defaults."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fdl.base.terminal import ask, may_ask


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
