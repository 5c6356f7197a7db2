"""The modes of a new project: in containers, with one of two sources of torch, or natively."""

from __future__ import annotations

from enum import Enum

from fdl.base.errors import ScaffoldError


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


def from_flags(*, docker: bool, native: bool, mounts_libtorch: bool) -> Mode:
    """The mode that the flags choose; without any it is native.

    Raises:
        ScaffoldError: The flags contradict each other.
    """
    if native and (docker or mounts_libtorch):
        flag = "--docker" if docker else "--mount-libtorch"
        raise ScaffoldError(
            f"`{flag}` and `--native` exclude each other; nothing was written",
            hint="leave out one of them",
        )
    if mounts_libtorch:
        return Mode.MOUNTED
    return Mode.DOCKER if docker else Mode.NATIVE
