"""A text file that is replaced in one step: completely, or not at all."""

from __future__ import annotations

from pathlib import Path

from fdl.base.errors import ScaffoldError
from fdl.base.rewrite import rewrite


class TextFile:
    """A file and its text when it was read, with unchanged line ends; a link stays one.

    Raises:
        ScaffoldError: It cannot be read.
    """

    __slots__ = ("_raw", "path", "text")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._raw = path.read_bytes()
            self.text = self._raw.decode()
        except OSError as problem:
            raise ScaffoldError(
                f"{path.name} cannot be read: {problem.strerror}", hint="check its permissions"
            ) from None
        except UnicodeDecodeError:
            raise ScaffoldError(
                f"{path.name} is not UTF-8; nothing was written", hint="save it as UTF-8"
            ) from None

    def replace(self, text: str) -> None:
        """Write another text; permissions stay unchanged.

        Raises:
            ScaffoldError: It cannot be written, or has changed since it was read.
        """
        self._write(self._raw, text.encode())

    def restore(self, text: str) -> None:
        """Restore the text that was read, if the file still holds the text of :meth:`replace`.

        Raises:
            ScaffoldError: It cannot be written, or holds another text now.
        """
        self._write(text.encode(), self._raw)

    def _write(self, old: bytes, new: bytes) -> None:
        rewrite(self.path, old, new, name=self.path.name, error=ScaffoldError)
