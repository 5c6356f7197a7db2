"""The modes of a new project: in containers, with one of two sources of torch, or natively."""

from __future__ import annotations

from enum import Enum

from fdl import terminal
from fdl.errors import UsageError


class Mode(Enum):
    """How a project runs."""

    MOUNTED = "mounted"
    """In containers that mount the libtorch of the project."""
    DOCKER = "docker"
    """In containers that contain everything."""
    NATIVE = "native"
    """With the Python and the torch of the machine."""

    @property
    def has_containers(self) -> bool:
        """Whether commands run in Docker."""
        return self is not Mode.NATIVE

    @property
    def layers(self) -> tuple[str, ...]:
        """The folders of ``templates/`` for such a project."""
        return ("project", "containers") if self.has_containers else ("project",)


def from_flags(*, docker: bool, native: bool) -> Mode | None:
    """The mode that the flags choose; None if they choose none.

    Raises:
        UsageError: The flags contradict each other.
    """
    if docker and native:
        raise UsageError(
            "`--docker` and `--native` exclude each other; nothing was written",
            hint="leave out one of them, or both to be asked",
        )
    if docker:
        return Mode.DOCKER
    return Mode.NATIVE if native else None


def ask() -> Mode:
    """Ask on the controlling terminal; without a user, and by default, it is ``MOUNTED``."""
    if not _choice("Run in Docker containers? [Y/n] ", ("yes", "no")):
        return Mode.NATIVE
    mounted = _choice(
        "Take libtorch from this machine (mounted), or from the image (baked)? [M/b] ",
        ("mounted", "baked"),
    )
    return Mode.MOUNTED if mounted else Mode.DOCKER


def ask_for_playground() -> bool:
    """Ask whether models of the Hugging Face Hub are wanted too; by default they are not."""
    return not _choice("Add a playground for Hugging Face models? [y/N] ", ("no", "yes"))


def _choice(question: str, answers: tuple[str, str]) -> bool:
    """Whether the first answer was given: completely, by its beginning, or by Enter alone."""
    while True:
        said = terminal.ask(question) or ""
        for answer in answers:
            if answer.startswith(said.lower()):
                return answer == answers[0]
