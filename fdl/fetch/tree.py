"""The folder that an archive is unpacked to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fdl.fetch.failures import disk_failure
from fdl.fetch.plan import Member, check_link, refused

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class Tree:
    """Writes files below an initially empty folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made = {""}

    def write(self, destination: str, blocks: Iterable[bytes], *, executable: bool) -> None:
        """Write a new file; users who may read an executable file may also run it.

        Raises:
            FetchError: It cannot be written.
        """
        path = f"{self.root}/{destination}"
        try:
            self._make(destination.rpartition("/")[0])
            file = os.open(path, _CREATE, 0o777 if executable else 0o666)
        except OSError as error:
            raise disk_failure(path, error) from None
        try:
            for block in blocks:
                _write(file, block, path)
        finally:
            os.close(file)

    def finish(self, members: Sequence[Member], *, modes: bool) -> None:
        """Do the steps that need all members: turn files with link texts into links.

        They were files until now, so nothing could be written through a link. With ``modes``, also
        set the execute bits, which were not known when the files were written.

        Raises:
            FetchError: A link leads outside, or cannot be created.
        """
        texts = {member: self._text(member) for member in members if member.is_link}
        for member, text in texts.items():
            check_link(member, text)
        try:
            for member, text in texts.items():
                path = self.root / member.destination
                path.unlink()
                path.symlink_to(text)
            for member in members:
                if modes and member.is_executable and not member.is_link:
                    path = self.root / member.destination
                    mode = path.stat().st_mode
                    path.chmod(mode | (mode & 0o444) >> 2)
        except OSError as error:
            raise disk_failure(path, error) from None

    def clear(self) -> None:
        """Empty the folder.

        Raises:
            FetchError: It cannot be emptied.
        """
        self._made = {""}
        try:
            for folder, folders, files in os.walk(self.root, topdown=False):
                for name in files:
                    Path(folder, name).unlink()
                for name in folders:
                    path = Path(folder, name)
                    path.unlink() if path.is_symlink() else path.rmdir()
        except OSError as error:
            raise disk_failure(self.root, error) from None

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            # Two threads may create it at the same time, so it may exist now.
            Path(self.root, folder).mkdir(parents=True, exist_ok=True)
            self._made.add(folder)

    def _text(self, member: Member) -> str:
        try:
            return (self.root / member.destination).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise refused(member.entry.name, "is a link to something that is not a name") from None
        except OSError as error:
            raise disk_failure(self.root / member.destination, error) from None


def _write(file: int, block: bytes, path: str) -> None:
    try:
        written = os.write(file, block)
        while written < len(block):
            written += os.write(file, block[written:])
    except OSError as error:
        raise disk_failure(path, error) from None
