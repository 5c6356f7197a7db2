"""What may stand at one place of a command line."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

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
