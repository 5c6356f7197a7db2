"""Running the shell snippet that a program declares as an argument's completer."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen

LIMIT_SECONDS = 2.0
"""A snippet that takes longer is stopped; what it printed until then counts."""

_MOST_BYTES = 1 << 20


def values(snippet: str, folder: str, root: str) -> list[tuple[str, str]]:
    """What a snippet prints: one value per line, with a description behind a tab if it likes.

    Args:
        snippet: Text for ``sh -c``; it sees no input, and what it says on stderr is dropped.
        folder: Where it runs: the folder in which the program itself would run.
        root: The project, handed to it as ``FDL_PROJECT_ROOT``.
    """
    if os.name == "nt":
        return []
    from subprocess import DEVNULL, PIPE, Popen

    try:
        process = Popen(
            ["sh", "-c", snippet],
            cwd=folder,
            env={**os.environ, "FDL_PROJECT_ROOT": root},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return []
    lines = _output(process).decode("utf-8", "surrogateescape").split("\n")
    pairs = (line.rstrip("\r").partition("\t") for line in lines)
    return [(value, text) for value, _, text in pairs]


def _output(process: Popen[bytes]) -> bytes:
    """All it prints within the limits; nothing of it is left running."""
    from contextlib import suppress
    from select import select
    from signal import SIGKILL
    from time import monotonic

    end = monotonic() + LIMIT_SECONDS
    data = b""
    with process:
        pipe = process.stdout
        try:
            while pipe and len(data) < _MOST_BYTES:
                if not select([pipe], [], [], max(0.0, end - monotonic()))[0]:
                    break
                piece = os.read(pipe.fileno(), 1 << 16)
                if not piece:
                    return data
                data += piece
        finally:
            # Children it has left in the background belong to its group and go with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, SIGKILL)
    # The last line may have been cut in the middle.
    return data[: data.rfind(b"\n") + 1]
