"""Install a libtorch into a store, or into any folder.

An installation becomes visible only when it is complete. Until then, downloads stay in the store's
cache, so a later call continues after a failure or ``kill -9``.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fdl.base.errors import FdlError, LibtorchError
from fdl.libtorch import layout
from fdl.libtorch.active import Variant
from fdl.libtorch.catalog import find, this_platform
from fdl.libtorch.download import state_of
from fdl.libtorch.layout import Contents
from fdl.libtorch.prove import facts_of
from fdl.libtorch.sources import Bench, Source
from fdl.libtorch.store import Store
from fdl.libtorch.trust import Trust

KEPT_DAYS = 30
_DAY_S = 86_400


def _prune(store: Store) -> None:
    """Remove the parts of downloads that cannot be continued or are older than 30 days.

    Those that another process works on are left alone.
    """
    from filelock import FileLock, Timeout

    for slot in store.kept("downloads").glob("*/"):
        # Another user may own it.
        with suppress(Timeout, OSError), FileLock(store.lock_file(slot.name), timeout=0):
            if _is_useless(slot):
                shutil.rmtree(slot, ignore_errors=True)


def _is_useless(slot: Path) -> bool:
    files = [one for one in slot.rglob("*") if one.is_file()]
    newest = max((one.stat().st_mtime for one in files), default=0.0)
    is_old = time.time() - newest > KEPT_DAYS * _DAY_S
    # Wheels are whole; pip removes what it could not finish.
    return is_old or not any(one.suffix == ".whl" or state_of(one) for one in files)


_FILES = "files"
"""Entry of ``.arch``: the files that a variant was made from, with their digests."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The result of an installation.

    Attributes:
        variant: The installed variant and its folder.
        fresh: Whether it was installed now; False if it was installed already.
    """

    variant: Variant
    fresh: bool


def install(
    store: Store,
    source: Source,
    *,
    activate: bool,
    locked: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Installation:
    """Install a libtorch into a store, unless it is installed; another version is replaced.

    With ``activate``, it is activated, also if it was installed already. With ``locked``, every
    file must have a digest in ``libtorch.lock``.

    Raises:
        FdlError: It cannot be downloaded, is not the requested one, or cannot be written. The store
            is unchanged.
    """
    # A store that is not writable serves what it has.
    done = _installed(store, source, locked)
    if done is None:
        with store.hold(source.slot, f"installing {source.title}"):
            done = _installed(store, source, locked)
            if done is None:
                trust = Trust(store, locked=locked)
                done = Installation(_install(store, source, trust, environ), fresh=True)
                _prune(store)
    if activate:
        store.activate(done.variant.id)
    return done


def _installed(store: Store, source: Source, locked: bool) -> Installation | None:
    known = source.expected()
    if known is None or not known.is_installed_in(store.path(known.id)):
        return None
    variant = store.get(known.id)
    if locked and not Trust(store).holds(variant.facts.get(_FILES, "")):
        # It came from other files than those that the lock names now.
        return None
    return Installation(variant, fresh=False)


def install_into(folder: Path, source: Source, *, trust: Trust) -> Installation:
    """Make any folder a libtorch, without a store; downloads are compared with ``trust``.

    The folder may be missing, empty, or a libtorch, which is replaced.

    Raises:
        FdlError: As for :func:`install`, or the folder holds something else. It is unchanged.
    """
    refuse_foreign(folder)
    # A separate store beside the folder provides staging, parts and locks on the same file system.
    workshop = Store(folder.parent / f".{folder.name}.fdl", "global")
    with workshop.hold("install", f"installing into {folder}"):
        known = source.expected()
        if known is not None and known.is_installed_in(folder):
            done = Installation(Variant(known.id, str(folder), known.facts), fresh=False)
        else:
            try:
                variant = _install(workshop, source, trust, os.environ, folder)
                done = Installation(variant, fresh=True)
            except FdlError:
                _discard(workshop, parts=False)
                raise
        _discard(workshop, parts=True)
    return done


def _discard(workshop: Store, *, parts: bool) -> None:
    """Remove a temporary store; one with parts of a download only if ``parts`` is set."""
    if parts or not any(one.is_file() for one in workshop.kept().rglob("*")):
        shutil.rmtree(workshop.root, ignore_errors=True)


def refuse_foreign(folder: Path) -> None:
    """Check that a folder may become a libtorch.

    Raises:
        LibtorchError: It is a file, or a folder that holds something other than a libtorch.
    """
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise LibtorchError(f"{folder} is not a folder", hint="name a folder that is new or empty")
    if any(folder.iterdir()) and not (folder / layout.BUILD_VERSION).is_file():
        raise LibtorchError(
            f"{folder} is not empty and holds no libtorch, so it is left alone",
            hint="name a folder that is new or empty",
        )


def _install(
    store: Store,
    source: Source,
    trust: Trust,
    environ: Mapping[str, str],
    folder: Path | None = None,
) -> Variant:
    """Make a libtorch in the staging of a store, and move it to its place there, or to a folder."""
    with store.staging() as staging:
        # An invalid lock file is refused before anything is downloaded.
        trust.read()
        bench = Bench(staging, store.kept("downloads", source.slot), trust, environ)
        staged, contents = source.stage(bench)
        contents = _with_archs(contents, staged)
        recorded = {_FILES: trust.files} if trust.files and folder is None else {}
        with store.lock(contents.id):
            if folder is not None:
                refuse_foreign(folder)
            facts = {**contents.facts, **recorded}
            variant = store.commit(staged, contents.id, facts, folder)
        shutil.rmtree(bench.parts, ignore_errors=True)
    return variant


def _with_archs(contents: Contents, folder: Path) -> Contents:
    """Add the GPU architectures of a libtorch, if its source does not give them."""
    if contents.archs:
        return contents
    found = ""
    # Only libraries for Linux can be read.
    with suppress(LibtorchError):
        found = " ".join(map(str, facts_of(folder).architectures))
    if not found:
        # The archive of the same version and variant, if there is one.
        with suppress(FdlError):
            found = find(contents.torch, contents.variant, this_platform()).recorded_archs
    return replace(contents, archs=found)
