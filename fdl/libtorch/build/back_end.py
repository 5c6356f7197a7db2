"""Determine where a build can run on this machine: in a container, or with native tools."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping

from fdl.base.errors import BuildError
from fdl.libtorch.build.plan import BackEnd
from fdl.libtorch.build.tools import Tools

_PATIENCE_S = 15

_INSTALL = (
    "install Docker, or the missing tools; the CUDA toolkit brings nvcc, the packages of your "
    "system the others (`build-essential cmake git python3` on Debian and Ubuntu)"
)


def docker_problem(environ: Mapping[str, str]) -> str:
    """Why Docker cannot build an image here; empty if it can."""
    program = shutil.which("docker", path=environ.get("PATH", ""))
    if program is None:
        return "there is no docker"
    argv = [program, "version", "--format", "{{.Server.Version}}"]
    try:
        answer = subprocess.run(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {_PATIENCE_S} s"
    except OSError as problem:
        return f"{program}: {problem.strerror}"
    if answer.returncode == 0:
        return ""
    words = answer.stderr.strip().splitlines()
    return words[-1] if words else f"`docker version` failed with exit code {answer.returncode}"


def require_linux(platform: str) -> None:
    """Check that the platform is Linux: macOS has no CUDA, and the container is a Linux one.

    Raises:
        BuildError: The system is not Linux.
    """
    if platform != "linux":
        raise BuildError(
            f"libtorch for GPUs is built on Linux, and this is {platform}",
            hint="on Windows, build inside WSL2; or install what there is: fdl libtorch install",
        )


def choose(
    wanted: BackEnd | None,
    found: Tools,
    problem: Callable[[], str],
    ask: Callable[[], BackEnd],
) -> BackEnd:
    """Choose the back end: the wanted one, else one that can be used.

    ``problem`` returns the result of :func:`docker_problem`. It is called if the choice depends on
    it, and ``ask`` if both back ends can be used.

    Raises:
        BuildError: The requested back end cannot be used, or none can.
    """
    if wanted == "native":
        if found.missing:
            raise BuildError(f"a native build lacks {', '.join(found.missing)}", hint=_INSTALL)
        return "native"
    trouble = problem()
    if not trouble:
        return "docker" if wanted or found.missing else ask()
    if wanted or found.missing:
        lacks = "" if wanted else f", and a native build lacks {', '.join(found.missing)}"
        raise BuildError(
            f"Docker cannot be used: {trouble}{lacks}",
            hint="start or install Docker, or build without it: fdl libtorch build --native"
            if wanted
            else _INSTALL,
        )
    return "native"
