"""Ask questions on the controlling terminal; without a user, take the defaults."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fdl.terminal import ask, may_ask


class Questions:
    """Asks a user, or takes the default of every question.

    Args:
        on: False to take the defaults even if a user could answer.

    Attributes:
        on: Whether a user answers.
    """

    def __init__(self, *, on: bool = True) -> None:
        self.on = on and may_ask()

    def confirm(self, question: str, *, default: bool, unanswered: bool | None = None) -> bool:
        """Ask for yes or no.

        Args:
            question: Ends with a question mark.
            default: The meaning of Enter without text.
            unanswered: The answer if no user answers; by default that of ``default``.
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

    def choose(self, question: str, options: Sequence[str], *, default: int) -> int:
        """Ask for one of several options.

        Args:
            question: Printed above the numbered list.
            options: One line each.
            default: Position of the option that Enter without text means.

        Returns:
            The position of the chosen option, from 0.
        """
        if not self.on:
            return default
        lines = [f"  {number}  {text}" for number, text in enumerate(options, 1)]
        sys.stderr.write("\n".join([question, *lines]) + "\n")
        while True:
            answer = self._ask(f"Choose [{default + 1}]: ")
            if not answer:
                return default
            if answer.isascii() and answer.isdigit() and 1 <= int(answer[:9]) <= len(options):
                return int(answer) - 1

    def _ask(self, prompt: str) -> str | None:
        """The typed text; None if no user answers, or no longer."""
        return ask(prompt) if self.on else None
