"""What all sources share: their shape, where they work, what makes a folder complete."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fdl.errors import LibtorchError
from fdl.libtorch import layout
from fdl.libtorch.layout import Contents
from fdl.libtorch.sources import pip
from fdl.libtorch.trust import Trust
from fdl.progress import Progress

if TYPE_CHECKING:
    from fdl.fetch import Algorithm, Unpacked


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a source works.

    Attributes:
        folder: An empty folder; what is left in it is removed.
        parts: A folder that is kept until the installation is whole, so that what is in it need
            not be fetched again; it need not exist.
        trust: The digests to compare downloads with.
        environ: The environment variables.
    """

    folder: Path
    parts: Path
    trust: Trust
    environ: Mapping[str, str]

    def room(self, name: str) -> Path:
        """A new empty folder in :attr:`folder`."""
        room = self.folder / name
        room.mkdir()
        return room

    def keep(self, name: str) -> Path:
        """A folder in :attr:`parts`, with what an earlier call has left there."""
        kept = self.parts / name
        kept.mkdir(parents=True, exist_ok=True)
        return kept


@dataclass(frozen=True, slots=True)
class Source:
    """Where one libtorch comes from.

    Attributes:
        shown: The address, path or pip command, for people.
        title: What it is as far as the request tells: ``libtorch 2.10.0 cpu``, a file name.
        slot: Part of a file name; two sources with the same must not be fetched side by side.
        wanted: What is asked of it.
        expected: Says what it is where that can be known without fetching it, else None. Raises
            LibtorchError when it is certainly not what is wanted.
        stage: Makes the libtorch folder somewhere in ``Bench.folder``, and says what it is.
            Raises FdlError when it cannot be fetched or is not what is wanted.
    """

    shown: str
    title: str
    slot: str
    wanted: Wanted
    expected: Callable[[], Contents | None]
    stage: Callable[[Bench], tuple[Path, Contents]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody asked for.

    Attributes:
        torch: Version of torch; None for whichever it is.
        variant: ``cpu``, ``cu128`` …; None for whichever it is.
    """

    torch: str | None = None
    variant: str | None = None

    def require(self, found: Contents, where: str) -> Contents:
        """Refuse what was not asked for.

        Raises:
            LibtorchError: It is of another version or variant.
        """
        if self.torch in (None, found.torch) and self.variant in (None, found.variant):
            return found
        asked = " ".join(filter(None, (self.torch, self.variant)))
        raise LibtorchError(
            f"{where} is {found.title}, and not {asked}",
            hint="ask for what it is, or leave version and variant out",
        )


def nothing_known() -> None:
    """For sources that say what they are only when they have been fetched."""
    return


def slot(kind: str, name: str) -> str:
    """A slot for a name that is no part of a file name."""
    return f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def without_password(url: str) -> str:
    """An address without the user and the password that may stand in it."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def unpack(
    file: Path,
    folder: Path,
    select: Callable[[str], str | None],
    algorithm: Algorithm = "blake3",
) -> Unpacked:
    """Unpack an archive of this machine, and say how far it is."""
    from fdl.fetch import unpack_file

    with Progress(f"unpacking {file.name}") as progress:
        return unpack_file(file, folder, select=select, algorithm=algorithm, progress=progress)


def finish(folder: Path, wanted: Wanted, where: str, bench: Bench, links: Path | None) -> Contents:
    """Say what an unpacked folder is, and add the libraries that a package leaves to others.

    Args:
        folder: The folder.
        wanted: What it has to be.
        where: What was unpacked, for messages.
        bench: Where to work.
        links: A folder of wheels that pip looks at before the index.

    Raises:
        FdlError: It is not what is wanted, or the other packages cannot be had.
    """
    contents = wanted.require(layout.settle(folder, wanted.variant, where), where)
    needed = layout.nvidia_requirements(folder)
    if needed and contents.variant != layout.CPU and sys.platform == "linux":
        into = bench.keep(f"nvidia-{contents.torch}-{contents.variant}")
        wheels = pip.download(needed, into, links=links, environ=bench.environ)
        for index, file in enumerate(wheels):
            room = bench.room(f"nvidia-{index}")
            unpacked = unpack(file, room, layout.place_nvidia, bench.trust.algorithm(file.name))
            bench.trust.check(file.name, unpacked.digest, file.name)
            for library in sorted(room.glob("lib/*")):
                library.rename(folder / "lib" / library.name)
    return contents
