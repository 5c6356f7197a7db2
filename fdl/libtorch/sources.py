"""The sources of a libtorch: an official archive, a wheel, an address, a file, a folder.

A source makes a finished libtorch folder in a staging folder. :mod:`fdl.libtorch.install` moves it
to its place.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from fdl.base.errors import LibtorchError, failing
from fdl.base.own_files import inside
from fdl.base.progress import Progress
from fdl.base.shell_words import join
from fdl.libtorch import layout, pip
from fdl.libtorch.archive import DAMAGE, Job, UnreachableError, shown
from fdl.libtorch.catalog import Artifact, numbers
from fdl.libtorch.layout import Contents
from fdl.libtorch.trust import Trust

if TYPE_CHECKING:
    from fdl.libtorch.archive import Unpacked


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
        """A folder in :attr:`parts`, with the files of an earlier call.

        Raises:
            LibtorchError: It cannot be made, or is a link.
        """
        kept = self.parts / name
        with failing(f"cannot write {kept}", kind=LibtorchError):
            Path(inside(self.parts, name)).mkdir(parents=True, exist_ok=True)
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


def slot(kind: str, name: str) -> str:
    """A slot for a name that cannot be part of a file name."""
    return f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def unpack(file: Path, folder: Path, select: Callable[[str], str | None]) -> Unpacked:
    """Unpack an archive on this machine, and show the progress."""
    with Progress(f"unpacking {file.name}") as progress:
        return Job(target=folder, select=select, progress=progress).unpack(file)


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
            unpacked = unpack(file, room, layout.place_nvidia)
            bench.trust.check(file.name, unpacked.sha256, file.name)
            for library in sorted(room.glob("lib/*")):
                library.rename(folder / "lib" / library.name)
    return contents


_VERSIONS = tuple(f"{root}{layout.BUILD_VERSION}" for root in ("libtorch/", "torch/", ""))
_PACKAGE = "torch/version.py"
"""Members that give the version: those of an archive, and that of a wheel."""

_CUDA = re.compile(r"\blib/\w*torch_cuda")
"""The name of a library of CUDA."""

_SMALL = 1 << 20


def local(path: Path, wanted: Wanted) -> Source:
    """An archive, a wheel, a libtorch folder, or the folder of an installed torch package.

    The files of a folder are linked if the file system supports that, else copied.
    """
    return Source(
        shown=str(path),
        title=path.name,
        slot=slot("file", str(path)),
        wanted=wanted,
        expected=partial(_peek, path, wanted),
        stage=partial(_stage_folder if path.is_dir() else _stage_archive, path, wanted),
    )


def _stage_archive(file: Path, wanted: Wanted, bench: Bench) -> tuple[Path, Contents]:
    folder = bench.room("libtorch")
    # A file that somebody has chosen on this machine is compared with nothing.
    unpack(file, folder, layout.place)
    return folder, finish(folder, wanted, str(file), bench, links=file.parent)


def newest(folder: Path, wanted: Wanted, *, wheels_only: bool) -> list[Path]:
    """The archives and wheels of a folder that hold what is wanted, the newest version first."""
    found = []
    for file in sorted(folder.iterdir()):
        fits = file.suffix == ".whl" or (file.suffix == ".zip" and not wheels_only)
        if not fits or not file.name.startswith(("torch-", "libtorch")):
            continue
        with suppress(LibtorchError):
            contents = _peek(file, wanted)
            if contents is not None:
                found.append((numbers(contents.torch)[:3], file))
    return [file for _, file in sorted(found, reverse=True)]


def _peek(file: Path, wanted: Wanted) -> Contents | None:
    """The contents of an archive, without unpacking it; None for a folder."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            texts = {
                name: archive.read(name).decode()
                for name in (*_VERSIONS, _PACKAGE)
                if name in archive.NameToInfo and archive.getinfo(name).file_size <= _SMALL
            }
    except (OSError, *DAMAGE):
        # Unpacking it gives a detailed error.
        return None
    facts = layout.version_facts(texts.get(_PACKAGE, ""))
    build_version = next((texts[name] for name in _VERSIONS if name in texts), "")
    version = build_version.strip() or str(facts.get("__version__") or "")
    if not version:
        return None
    found = layout.identify(
        version,
        cuda=facts.get("cuda"),
        has_cuda=any(map(_CUDA.search, names)),
        wanted=wanted.variant,
        where=str(file),
    )
    return wanted.require(found, str(file))


def _stage_folder(path: Path, wanted: Wanted, bench: Bench) -> tuple[Path, Contents]:
    folder = bench.room("libtorch")
    is_package = (path / "version.py").is_file()
    try:
        _link_all(path, "torch" if is_package else "libtorch", folder, layout.place)
        if is_package:
            _link_all(path.parent / "torch.libs", "torch.libs", folder, layout.place)
            _link_all(path.parent / "nvidia", "nvidia", folder, layout.place_nvidia)
    except OSError as error:
        raise LibtorchError(f"cannot copy {error.filename}: {error.strerror}") from None
    return folder, wanted.require(layout.settle(folder, wanted.variant, str(path)), str(path))


def _link_all(root: Path, prefix: str, target: Path, place: Callable[[str], str | None]) -> None:
    """Link the files that belong to a libtorch, as if from an archive with ``prefix/…`` in it."""
    files = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    for file in files:
        name = place(f"{prefix}/{file.relative_to(root).as_posix()}")
        if name is not None:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            _link(file, target / name)


def _link(file: Path, target: Path) -> None:
    # `libx.so -> libx.so.1` stays a link; for a link to another folder, the file itself is linked.
    if file.is_symlink() and file.resolve().parent == file.parent.resolve():
        target.symlink_to(file.resolve().name)
        return
    try:
        target.hardlink_to(file.resolve())
    except OSError:
        shutil.copy2(file, target)


def official(artifact: Artifact, environ: Mapping[str, str]) -> Source:
    """An archive of the catalog; the environment may name mirrors."""
    contents = Contents(artifact.torch, artifact.variant, artifact.cuda, artifact.recorded_archs)
    return Source(
        shown=shown(artifact.urls(environ)[0]),
        title=contents.title,
        slot=f"archive-{artifact.variant}",
        wanted=Wanted(artifact.torch, artifact.variant),
        expected=lambda: contents,
        stage=partial(_stage_official, artifact, contents),
    )


def _stage_official(artifact: Artifact, contents: Contents, bench: Bench) -> tuple[Path, Contents]:
    folder = bench.room("libtorch")
    try:
        unpacked = _fetch(
            contents.title,
            artifact.urls(bench.environ),
            folder,
            bench,
            sha256=artifact.sha256,
        )
    except UnreachableError as problem:
        line = f"fdl libtorch install {artifact.variant} --source wheel"
        hint = "; or ".join(filter(None, (problem.hint, f"through pip: {line}")))
        raise UnreachableError(problem.message, hint=hint) from None
    where = shown(unpacked.url)
    bench.trust.check(artifact.path, unpacked.sha256, where, proven=bool(artifact.sha256))
    if layout.installed_version(folder):
        found = layout.settle(folder, artifact.variant, where)
        Wanted(artifact.torch, artifact.variant).require(found, where)
    else:
        version = f"{artifact.torch}+{artifact.variant}\n"
        (folder / layout.BUILD_VERSION).write_text(version, encoding="utf-8")
    return folder, contents


def address(url: str, wanted: Wanted) -> Source:
    """An archive or a wheel at any address of http or https."""
    place = shown(url)
    parts = urlsplit(place)
    # A query often holds a signature that differs each time.
    name = f"{parts.netloc}{parts.path}"

    def stage(bench: Bench) -> tuple[Path, Contents]:
        folder = bench.room("libtorch")
        unpacked = _fetch(source.title, [url], folder, bench, sha256=None)
        bench.trust.check(name, unpacked.sha256, place)
        return folder, finish(folder, wanted, place, bench, links=None)

    source = Source(
        shown=place,
        title=unquote(parts.path).rpartition("/")[2] or place,
        # A new signature of the same file takes the place of the part with the old one.
        slot=slot("url", name),
        wanted=wanted,
        expected=lambda: None,
        stage=stage,
    )
    return source


def package(
    torch: str | None, variant: str | None, *, exact: bool, environ: Mapping[str, str]
) -> Source:
    """The Python package of torch, through pip; without a version, the newest that pip has.

    With ``exact``, variants other than the given one are refused; None stands for any.
    """
    wanted = Wanted(torch, variant if exact else None)
    # pip takes seconds to answer, and both functions below may need the answer.
    offer = cache(lambda: pip.resolve(torch, variant, exact=exact, environ=environ))

    def expected() -> Contents | None:
        if torch and exact and variant:
            return Contents(torch, variant)
        return offer().contents

    return Source(
        shown="python -m pip download torch"
        + (f"=={'+'.join(filter(None, (torch, wanted.variant)))}" if torch else ""),
        title=" ".join(filter(None, ("libtorch", torch, variant))),
        slot=f"wheel-{variant or 'any'}",
        wanted=wanted,
        expected=expected,
        stage=lambda bench: _stage_package(offer, wanted, bench),
    )


def _stage_package(
    offer: Callable[[], pip.Offer], wanted: Wanted, bench: Bench
) -> tuple[Path, Contents]:
    requirement = f"torch=={offer().version}"
    into = bench.keep(f"torch-{offer().version}")
    file = pip.download([requirement], into, dependencies=False, environ=bench.environ)[-1]
    folder = bench.room("libtorch")
    unpacked = unpack(file, folder, layout.place)
    bench.trust.check(file.name, unpacked.sha256, file.name)
    return folder, finish(folder, wanted, file.name, bench, links=None)


def _fetch(
    title: str,
    urls: Sequence[str],
    folder: Path,
    bench: Bench,
    *,
    sha256: str | None,
) -> Unpacked:
    from fdl.libtorch.download import unpack_url

    with Progress(title) as progress:
        return unpack_url(
            urls,
            Job(target=folder, select=layout.place, progress=progress, sha256=sha256),
            part=bench.keep("archive") / "archive.part",
            environ=bench.environ,
            typed=join(["fdl", *map(shown, sys.argv[1:])]),
        )
