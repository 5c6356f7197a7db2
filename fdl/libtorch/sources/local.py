"""Sources on this machine: an archive, a wheel, a libtorch folder, an installed torch package."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from fdl.base.errors import LibtorchError
from fdl.libtorch import layout
from fdl.libtorch.catalog import numbers
from fdl.libtorch.fetch.archive import DAMAGE
from fdl.libtorch.layout import Contents
from fdl.libtorch.sources.base import (
    Bench,
    Source,
    Wanted,
    finish,
    nothing_known,
    slot,
    unpack,
)

_VERSIONS = tuple(f"{root}{layout.BUILD_VERSION}" for root in ("libtorch/", "torch/", ""))
_PACKAGE = "torch/version.py"
"""Members that give the version: those of an archive, and that of a wheel."""

_CUDA = re.compile(r"\blib/\w*torch_cuda")
"""The name of a library of CUDA."""

_SMALL = 1 << 20


def local_archive(file: Path, wanted: Wanted) -> Source:
    """An archive or a wheel."""
    return Source(
        shown=str(file),
        title=file.name,
        slot=slot("file", str(file)),
        wanted=wanted,
        expected=partial(_peek, file, wanted),
        stage=partial(_stage_archive, file, wanted),
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
    """The contents of an archive, without unpacking it."""
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
        cuda=str(facts["cuda"]) if facts.get("cuda") else None,
        has_cuda=any(map(_CUDA.search, names)),
        wanted=wanted.variant,
        where=str(file),
    )
    return wanted.require(found, str(file))


def local_folder(path: Path, wanted: Wanted) -> Source:
    """A libtorch folder, or the folder of an installed torch package.

    Its files are linked if the file system supports that, else copied.
    """
    return Source(
        shown=str(path),
        title=str(path),
        slot=slot("file", str(path)),
        wanted=wanted,
        expected=nothing_known,
        stage=partial(_stage_folder, path, wanted),
    )


def _stage_folder(path: Path, wanted: Wanted, bench: Bench) -> tuple[Path, Contents]:
    folder = bench.room("libtorch")
    is_package = (path / "version.py").is_file()
    try:
        _link_all(path, "torch" if is_package else "libtorch", folder, layout.place)
        if is_package:
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
