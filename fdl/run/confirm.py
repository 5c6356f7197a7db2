"""The question of ``confirm:``, asked before a command runs."""

from __future__ import annotations

from fdl.base.errors import FdlError
from fdl.base.terminal import ask, has_yes, may_ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fdl.plan.value import Plan


def confirm_all(plans: Iterable[Plan]) -> None:
    """Ask the question of each plan, every question once.

    Raises:
        FdlError: An answer is no, or no terminal is there to ask.
    """
    asked: set[str] = set()
    for plan in plans:
        if plan.confirm and plan.confirm not in asked:
            asked.add(plan.confirm)
            require_yes(plan.confirm, plan.command)


def require_yes(question: str, command: Sequence[str]) -> None:
    """Ask on the terminal; ``-y`` answers yes, Enter alone means no.

    Raises:
        FdlError: The answer is no, or no terminal is there to ask.
    """
    if has_yes():
        return
    typed = " ".join(command)
    if not may_ask():
        raise FdlError(
            f"`fdl {typed}` asks `{question}`, and there is no terminal to ask on",
            hint=f"fdl -y {typed} answers yes",
        )
    answer = ask(f"{question} [y/N] ")
    if answer is None or answer.lower() not in ("y", "yes"):
        raise FdlError(f"`fdl {typed}` was not confirmed, so nothing ran")
