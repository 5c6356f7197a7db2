"""The modes of a new project: in containers, with one of two sources of torch, or natively."""

from __future__ import annotations

from enum import Enum

from fdl.errors import ScaffoldError
from fdl.setup.questions import Questions


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
        ScaffoldError: The flags contradict each other.
    """
    if docker and native:
        raise ScaffoldError(
            "`--docker` and `--native` exclude each other; nothing was written",
            hint="leave out one of them, or both to be asked",
        )
    if docker:
        return Mode.DOCKER
    return Mode.NATIVE if native else None


def ask(questions: Questions, *, has_docker: bool) -> Mode:
    """Ask how the project shall run; without a user it is ``MOUNTED``.

    Args:
        questions: Asks the user.
        has_docker: Whether this machine has Docker. Without it, Enter means ``NATIVE``.
    """
    wants = "Run in Docker containers?"
    if not has_docker:
        wants += " (docker is not found on this machine)"
    if not questions.confirm(wants, default=has_docker, unanswered=True):
        return Mode.NATIVE
    mounts = questions.confirm("Mount the libtorch of this machine into them?", default=True)
    return Mode.MOUNTED if mounts else Mode.DOCKER
