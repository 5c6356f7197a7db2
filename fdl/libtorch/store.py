"""The folder of installed variants: what is there, which one is in use, how one gets in.

Layout, below a project or below the user's own folder::

    libtorch/.active                          one line: KIND/NAME; blank for none
    libtorch/precompiled/cu128/{lib,include,share,.arch,build-version}
    libtorch/builds/sm61-sm120/…
    libtorch/.staging/                        half-made variants; never looked at by readers
    libtorch/.cache/                          parts of downloads, sources and trees of builds
    libtorch/.locks/

A variant appears by one rename and is never changed in place, so a reader, and a process that is
killed at any moment, sees it whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fdl.errors import LibtorchError
from fdl.libtorch.active import FOLDER, Variant, active, is_id, read_facts

HOME = "FLODL_HOME"
"""Variable with the user's own folder; ``~/.flodl`` without it."""

KINDS = ("precompiled", "builds")


@dataclass(frozen=True, slots=True)
class Store:
    """Where variants are installed.

    Attributes:
        root: Absolute folder that holds ``libtorch/``: a project's, or the user's own.
        scope: Which of the two it is.
    """

    root: Path
    scope: Literal["project", "global"]

    @property
    def folder(self) -> Path:
        """The folder of variants; it need not exist yet."""
        return self.root / FOLDER

    @property
    def cache(self) -> Path:
        """Where parts of downloads and trees of builds are kept between calls."""
        return self.folder / ".cache"

    @property
    def active(self) -> Variant | None:
        """The variant in use; None for none, and when it is not installed any more."""
        variant = active(str(self.root))
        return variant if variant and self.is_installed(variant.id) else None

    def path(self, id: str) -> Path:
        """The folder of a variant, installed or not.

        Raises:
            LibtorchError: The text is no id of a variant.
        """
        if not is_id(id):
            raise LibtorchError(
                f"`{id}` is no libtorch variant; they are called precompiled/NAME or builds/NAME",
                hint="fdl libtorch list",
            )
        return self.folder.joinpath(*id.split("/"))

    def is_installed(self, id: str) -> bool:
        """Whether a variant is there."""
        return (self.path(id) / "lib").is_dir()

    def installed(self) -> list[Variant]:
        """All variants, sorted by id."""
        found = []
        for kind in KINDS:
            for path in sorted((self.folder / kind).glob("*")):
                id = f"{kind}/{path.name}"
                if is_id(id) and (path / "lib").is_dir():
                    found.append(Variant(id, str(path), read_facts(str(path))))
        return sorted(found, key=lambda one: one.id)

    def get(self, id: str) -> Variant:
        """An installed variant.

        Raises:
            LibtorchError: It is not installed; the message lists those that are.
        """
        path = self.path(id)
        if self.is_installed(id):
            return Variant(id, str(path), read_facts(str(path)))
        names = ", ".join(one.id for one in self.installed())
        raise LibtorchError(
            f"{id} is not installed in {self.folder}; "
            + (f"installed: {names}" if names else "nothing is"),
            hint="fdl libtorch list" if names else "fdl libtorch install",
        )

    def required(self) -> Variant:
        """The variant in use.

        Raises:
            LibtorchError: There is none.
        """
        variant = self.active
        if variant is None:
            several = self.installed()
            gone = self._read_active()
            raise LibtorchError(
                f"{self.folder / '.active'} names {gone}, which is not installed any more"
                if is_id(gone)
                else f"no libtorch variant is active in {self.folder}",
                hint=f"fdl libtorch activate {several[0].id}"
                if several
                else "fdl libtorch install",
            )
        return variant

    def activate(self, id: str) -> Variant:
        """Put a variant into use.

        Raises:
            LibtorchError: It is not installed.
        """
        variant = self.get(id)
        self._write_active(id)
        return variant

    def remove(self, id: str) -> None:
        """Delete a variant; when it was in use, none is in use any more.

        Raises:
            LibtorchError: It is not installed, or cannot be deleted.
        """
        self.get(id)
        with self.lock(id), self.staging() as doomed:
            path = Path(self.get(id).path)
            if self._read_active() == id:
                self._write_active("")
            try:
                path.rename(doomed / path.name)
            except OSError as error:
                raise LibtorchError(f"cannot remove {path}: {error.strerror}") from None

    def lock(self, id: str) -> AbstractContextManager[None]:
        """Hold the right to change one variant; waits for another process that holds it."""
        return self.hold("-".join(self.path(id).parts[-2:]), f"changing {id}")

    @contextmanager
    def hold(self, name: str, doing: str) -> Iterator[None]:
        """Be the only process that does something with this store; wait for one that does.

        Args:
            name: What is locked: part of a file name.
            doing: What the other process is doing, for the message while waiting.
        """
        from filelock import FileLock, Timeout

        from fdl.output import note

        self._make(self.folder / ".locks")
        lock = FileLock(self.folder / ".locks" / f"{name}.lock")
        try:
            lock.acquire(timeout=0.2)
        except Timeout:
            note(f"waiting for another fdl that is {doing}")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty folder to make a variant in, on the same file system; removed at the end.

        Those of processes that were killed are removed here as well. A lock tells them from
        those in use: unlike a process id, it means the same in every container that shares the
        folder, and it ends with its process.
        """
        from filelock import FileLock

        parent = self.folder / ".staging"
        self._make(parent)
        _sweep(parent)
        folder = parent / uuid.uuid4().hex
        lock = FileLock(folder.with_suffix(".lock"))
        with lock:
            self._make(folder)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                Path(lock.lock_file).unlink(missing_ok=True)

    def commit(self, staged: Path, id: str, facts: Mapping[str, str]) -> Variant:
        """Make a staged folder the variant ``id``, in the place of one that was there.

        Call it under :meth:`lock`.

        Args:
            staged: A folder in :meth:`staging`, or that folder itself, with ``lib`` in it.
            id: The variant.
            facts: What its ``.arch`` is to say.

        Raises:
            LibtorchError: The folder is no libtorch, or cannot be moved.
        """
        self.replace(staged, self.path(id), facts)
        return Variant(id, str(self.path(id)), facts)

    def replace(self, staged: Path, target: Path, facts: Mapping[str, str]) -> None:
        """Move a staged folder to any place of the same file system, over what is there.

        Raises:
            LibtorchError: The folder is no libtorch, or cannot be moved.
        """
        require_libtorch(staged)
        lines = "".join(f"{key}={value}\n" for key, value in facts.items())
        self._make(target.parent)
        with self.staging() as aside:
            old = aside / "old"
            try:
                (staged / ".arch").write_text(lines, encoding="utf-8")
                if os.path.lexists(target):
                    target.rename(old)
                staged.rename(target)
            except OSError as error:
                if os.path.lexists(old) and not os.path.lexists(target):
                    old.rename(target)
                raise LibtorchError(f"cannot write {target}: {error.strerror}") from None

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LibtorchError(
                f"cannot create {folder}: {error.strerror}",
                hint="choose a folder you may write to: fdl libtorch download --path DIR",
            ) from None

    def _read_active(self) -> str:
        try:
            return (self.folder / ".active").read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return ""

    def _write_active(self, id: str) -> None:
        file = self.folder / ".active"
        with self.staging() as folder:
            try:
                (folder / file.name).write_text(f"{id}\n" if id else "", encoding="utf-8")
                (folder / file.name).replace(file)
            except OSError as error:
                raise LibtorchError(f"cannot write {file}: {error.strerror}") from None


def _sweep(parent: Path) -> None:
    """Remove the staging folders whose process is gone."""
    from filelock import FileLock, Timeout

    for file in parent.glob("*.lock"):
        # Somebody else may be sweeping, or the folder may not be ours to change.
        with suppress(Timeout, OSError), FileLock(file, timeout=0):
            shutil.rmtree(file.with_suffix(""), ignore_errors=True)
            file.unlink(missing_ok=True)


def require_libtorch(folder: Path) -> None:
    """Check that a folder holds the libraries of libtorch.

    Raises:
        LibtorchError: It does not.
    """
    names = ("libtorch.so", "libtorch.dylib", "torch.lib")
    if not any((folder / "lib" / name).is_file() for name in names):
        raise LibtorchError(
            f"what was unpacked is no libtorch: it has none of {', '.join(names)} in lib/",
            hint="take an archive from the PyTorch site, or let fdl choose: fdl libtorch install",
        )


def locate(start: str, environ: Mapping[str, str], *, use_global: bool = False) -> Store:
    """The store that commands typed in a folder are about.

    It belongs to the nearest folder above that has ``libtorch/.active``, else the nearest whose
    ``pyproject.toml`` depends on flodl, else the nearest with a manifest; without any of these,
    and when asked for, it is the user's own.

    Args:
        start: The folder.
        environ: The environment variables.
        use_global: Take the user's own store wherever one stands.
    """
    from fdl.manifest.discover import find

    if not use_global:
        above = [Path(start).absolute(), *Path(start).absolute().parents]
        for holds in (_has_active, _depends_on_flodl):
            for folder in above:
                if holds(folder):
                    return Store(folder, "project")
        found = find(start)
        if found is not None:
            return Store(Path(found.directory), "project")
    return Store(home(environ), "global")


def home(environ: Mapping[str, str]) -> Path:
    """The user's own folder."""
    chosen = environ.get(HOME, "")
    return Path(chosen).absolute() if chosen else Path.home() / ".flodl"


def _has_active(folder: Path) -> bool:
    # A path object would raise where a folder may not be entered.
    return os.path.isfile(folder / FOLDER / ".active")  # noqa: PTH113


def _depends_on_flodl(folder: Path) -> bool:
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        wanted = tomllib.loads(text).get("project", {}).get("dependencies", [])
    except (OSError, ValueError, AttributeError):
        return False
    return any(_is_flodl(one) for one in wanted if isinstance(one, str))


def _is_flodl(requirement: str) -> bool:
    name = requirement.lstrip()
    return name.lower().startswith("flodl") and not name[5:6].isalnum() and name[5:6] not in "-_."
