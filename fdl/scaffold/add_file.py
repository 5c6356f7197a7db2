"""A text file that is replaced in one step, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from fdl.errors import ScaffoldError


class TextFile:
    """The text of a file, with its line ends as they are.

    Args:
        path: The file; a link is followed, and stays one.

    Attributes:
        path: The file.
        text: What it says, as it was read.

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
        """Write another text; permissions stay as they are.

        Raises:
            ScaffoldError: It cannot be written, or has changed since it was read.
        """
        self._write(self._raw, text.encode())

    def restore(self, text: str) -> None:
        """Put back what was read, where it says what :meth:`replace` wrote.

        Raises:
            ScaffoldError: It cannot be written, or says something else by now.
        """
        self._write(text.encode(), self._raw)

    def _write(self, old: bytes, new: bytes) -> None:
        target = Path(os.path.realpath(self.path))
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        try:
            mode = target.stat().st_mode & 0o7777
            if target.read_bytes() != old:
                raise ScaffoldError(
                    f"{self.path.name} has changed meanwhile; it was left alone", hint="try again"
                )
            with temporary.open("xb") as stream:
                stream.write(new)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(mode)
            temporary.replace(target)
        except OSError as problem:
            raise ScaffoldError(
                f"{self.path.name} cannot be written: {problem.strerror}; it is as it was",
                hint=f"check the permissions of {target.parent}",
            ) from None
        finally:
            temporary.unlink(missing_ok=True)
