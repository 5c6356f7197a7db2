"""The common part of all sources: interface, working folders, completing a folder."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.errors import LibtorchError
from fdl.base.progress import Progress
from fdl.libtorch import layout
from fdl.libtorch.layout import Contents
from fdl.libtorch.sources import pip
from fdl.libtorch.trust import Trust

if TYPE_CHECKING:
    from fdl.libtorch.fetch import Algorithm, Unpacked


@dataclass(frozen=True, slots=True)
class Bench:
    """The working folders of a source.

    Attributes:
        folder: An empty folder; remaining files in it are removed.
        parts: A folder that is kept until the installation is complete, so that nothing in it must
            be downloaded again; it may not exist yet.
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
        """A folder in :attr:`parts`, with the files of an earlier call."""
        kept = self.parts / name
        kept.mkdir(parents=True, exist_ok=True)
        return kept


@dataclass(frozen=True, slots=True)
class Source:
    """A source of one libtorch.

    Attributes:
        shown: The address, path or pip command, for people.
        title: Its name, as known from the request: ``libtorch 2.10.0 cpu``, a file name.
        slot: Part of a file name; two sources with the same slot must not download at once.
        expected: Returns its contents if they are known without a download, else None. Raises
            LibtorchError if it is certainly not what is wanted.
        stage: Makes the libtorch folder somewhere in ``Bench.folder``, and returns its contents.
            Raises FdlError if it cannot be downloaded or is not what is wanted.
    """

    shown: str
    title: str
    slot: str
    wanted: Wanted
    expected: Callable[[], Contents | None]
    stage: Callable[[Bench], tuple[Path, Contents]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested version and variant.

    Attributes:
        torch: Version of torch; None for any.
        variant: ``cpu``, ``cu128`` …; None for any.
    """

    torch: str | None = None
    variant: str | None = None

    def require(self, found: Contents, where: str) -> Contents:
        """Refuse other versions and variants.

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
    """For sources whose contents are known only after the download."""
    return


def slot(kind: str, name: str) -> str:
    """A slot for a name that cannot be part of a file name."""
    return f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def unpack(
    file: Path,
    folder: Path,
    select: Callable[[str], str | None],
    algorithm: Algorithm = "blake3",
) -> Unpacked:
    """Unpack an archive on this machine, and show the progress."""
    from fdl.libtorch.fetch import unpack_file

    with Progress(f"unpacking {file.name}") as progress:
        return unpack_file(file, folder, select=select, algorithm=algorithm, progress=progress)


def finish(folder: Path, wanted: Wanted, where: str, bench: Bench, links: Path | None) -> Contents:
    """Determine the contents of an unpacked folder, and add libraries from other packages.

    The name ``where`` is for messages. In the folder ``links`` pip searches for wheels before it
    asks the index.

    Raises:
        FdlError: It is not what is wanted, or the other packages cannot be downloaded.
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
