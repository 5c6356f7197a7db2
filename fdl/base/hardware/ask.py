"""Run a program for one question, within a limited time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a program.

    Attributes:
        code: Its exit code; None if it took too long and was ended.
        text: Its output on stdout.
    """

    code: int | None
    text: str


def ask(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    patience: float,
    folders: Sequence[str] = (),
) -> Answer | None:
    """Run a program and return its answer; None if there is no such program, or it cannot be run.

    It is searched in the PATH of ``environ``, then in ``folders``, and has ``patience`` seconds.
    """
    path = os.pathsep.join([environ.get("PATH", os.defpath), *folders])
    program = shutil.which(argv[0], path=path)
    if program is None:
        return None
    # A file, because a pipe stays open as long as any child process of the program lives.
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return None
        code: int | None
        try:
            code = process.wait(patience)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        out.seek(0)
        return Answer(code, out.read().decode(errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program and its children, if they still run."""
    if process.poll() is not None:
        return
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
