"""What may stand at one place of a command line: words, files, flags of fdl, values of snippets."""

from __future__ import annotations

import os
from time import monotonic

from fdl.base.global_flags import ANYWHERE, FLAGS, SPELLINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from subprocess import Popen


NEVER = 0
OTHERWISE = 1
ALWAYS = 2
"""When files belong to an offer: not at all, where no candidate fits, in any case."""


class Offer:
    """Candidates and files.

    Attributes:
        candidates: Whole words -> one line each about them, which may be empty.
        files: ``NEVER``, ``OTHERWISE`` or ``ALWAYS``.
        folder: Where relative file names start; empty for the working directory.
        value_due: Whether the word is the value of an option, so that no flag can stand there.
    """

    __slots__ = ("candidates", "files", "folder", "value_due")

    def __init__(self) -> None:
        self.candidates: dict[str, str] = {}
        self.files = NEVER
        self.folder = ""
        self.value_due = False

    def add(self, value: str, text: str | None = "") -> None:
        """Offer a word; the first description of a word stays.

        What no line of a terminal can hold is left out.
        """
        if value.isprintable() and value not in ("", ":files"):
            one_line = " ".join((text or "").split())
            printable = "".join(char if char.isprintable() else "?" for char in one_line)
            self.candidates.setdefault(value, printable)

    def add_all(self, pairs: Iterable[tuple[str, str]], prefix: str = "") -> None:
        """Offer several words, all behind the same beginning."""
        for value, text in pairs:
            if value:
                self.add(prefix + value, text)

    def add_files(self, when: int, folder: str = "") -> None:
        """Offer files beside the candidates, or instead of them.

        A folder whose name would break the line it is told in has none to offer.
        """
        if "\n" in folder:
            return
        self.files = max(self.files, when)
        self.folder = folder

    def files_wanted(self, matching: Collection[str]) -> bool:
        """Whether files are offered, given the candidates that fit what is typed so far."""
        return self.files == ALWAYS or (self.files == OTHERWISE and not matching)

    def __bool__(self) -> bool:
        return bool(self.candidates) or self.files != NEVER


def add_global(offer: Offer, words: Collection[str], *, first: bool, env: bool = True) -> None:
    """Offer the flags that still have an effect; ``first``: the command is still to come."""
    given = {SPELLINGS[word].field for word in words if word in SPELLINGS}
    for flag in FLAGS:
        has_effect = {
            "env": env and "env" not in given,
            "json": first and "dry_run" in given,
            "": not words,
        }.get(flag.field, first or flag.place == ANYWHERE)
        if flag.text and has_effect and flag.field not in given:
            offer.add(flag.name, flag.text)


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
