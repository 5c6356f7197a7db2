"""The store: the folder of installed variants, the active variant, installing and removing.

Layout, below a project or below the user's folder::

    libtorch/.active                          one line: KIND/NAME; empty for none
    libtorch/precompiled/cu128/{lib,include,share,.arch,build-version}
    libtorch/builds/sm61-sm120/…
    libtorch/.staging/                        unfinished variants; readers never look here
    libtorch/.cache/                          parts of downloads, sources and trees of builds
    libtorch/.locks/

A variant appears by one rename and is never changed in place. So a reader sees it complete or not
at all, even if a process is killed at any moment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fdl.base.compose_file import COMPOSE_FILES
from fdl.base.errors import LibtorchError, failing
from fdl.base.files import staging, subfolders, text_of, toml_of
from fdl.base.output import note
from fdl.base.own_files import inside, put_own
from fdl.libtorch.active import (
    FOLDER,
    KINDS,
    LOCK_FILE,
    Variant,
    active,
    active_id,
    is_id,
    read_facts,
)
from fdl.manifest.discover import EXAMPLES, NAMES, find

_CARGO = re.compile(r"^\s*(?:\[[^#\n]*dependencies\.)?(tch|torch-sys)\s*[\].=]", re.MULTILINE)
_CMAKE = re.compile(r"^[^#\n]*\b(find_package\s*\(\s*Torch)\b", re.MULTILINE | re.IGNORECASE)
_NAMED = re.compile(r"^[^#\n]*(libtorch)", re.MULTILINE | re.IGNORECASE)

_SIGNS = {
    "Cargo.toml": _CARGO,
    "CMakeLists.txt": _CMAKE,
    **dict.fromkeys((*NAMES, *EXAMPLES, *COMPOSE_FILES), _NAMED),
}


def needed_by(root: Path) -> str:
    """The file that shows that the project in a folder uses libtorch; empty if none does."""
    for name in (FOLDER, LOCK_FILE):
        if os.path.lexists(root / name):
            return name
    for folder in ("", *subfolders(root)):
        for name, sign in _SIGNS.items():
            if sign.search(text_of(root / folder / name)):
                return (Path(folder) / name).as_posix()
    return ""


HOME = "FLODL_HOME"
"""Variable with the user's folder; ``~/.flodl`` without it."""


@dataclass(frozen=True, slots=True)
class Store:
    """A folder with installed variants.

    Attributes:
        root: Absolute folder that holds ``libtorch/``: that of a project, or the user's.
        scope: Which of the two it is.
    """

    root: Path
    scope: Literal["project", "global"]

    @property
    def folder(self) -> Path:
        """The folder of variants; it may not exist yet."""
        return self.root / FOLDER

    def kept(self, *names: str) -> Path:
        """A path in the folder of parts of downloads and trees of builds, kept between calls.

        Raises:
            LibtorchError: A part of it is a link.
        """
        return self._own(".cache", *names)

    @property
    def active(self) -> Variant | None:
        """The active variant; None for none, or if it is not installed any more."""
        variant = active(str(self.root))
        return variant if variant and self.is_installed(variant.id) else None

    def path(self, id: str) -> Path:
        """The folder of a variant, installed or not.

        Raises:
            LibtorchError: The text is not the id of a variant.
        """
        if not is_id(id):
            meant = [one.id for one in self.installed() if one.id.endswith(f"/{id}")]
            raise LibtorchError(
                f"`{id}` is not a libtorch variant; a variant is precompiled/NAME or builds/NAME",
                hint=f"did you mean `{meant[0]}`?" if meant else "fdl libtorch list",
            )
        return self.folder.joinpath(*id.split("/"))

    def is_installed(self, id: str) -> bool:
        """Whether a variant is installed."""
        # A path object would raise an error if the folder may not be entered.
        return os.path.isdir(self.path(id) / "lib")  # noqa: PTH112

    def installed(self) -> list[Variant]:
        """All variants, sorted by id."""
        found = []
        for kind in KINDS:
            for name in subfolders(self.folder / kind):
                id, path = f"{kind}/{name}", self.folder / kind / name
                if is_id(id) and self.is_installed(id):
                    found.append(Variant(id, str(path), read_facts(str(path))))
        return sorted(found, key=lambda one: one.id)

    def get(self, id: str) -> Variant:
        """An installed variant.

        Raises:
            LibtorchError: It is not installed; the message lists the installed ones.
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
        """The active variant, which must exist.

        Raises:
            LibtorchError: There is no active variant.
        """
        variant = self.active
        if variant is None:
            several = self.installed()
            gone = active_id(str(self.root))
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
        """Make a variant the active one.

        Raises:
            LibtorchError: It is not installed, or this user may not write to the store.
        """
        variant = self.get(id)
        if active_id(str(self.root)) != id:
            self._require_write("activate", id)
            self.write(self.folder / ".active", f"{id}\n")
        return variant

    def _require_write(self, verb: str, id: str) -> None:
        if not os.access(self.folder, os.W_OK):
            raise LibtorchError(
                f"cannot {verb} {id}: you may not write to {self.folder}",
                hint='take a variant for one shell: eval "$(fdl libtorch env ID)"',
            )

    def remove(self, id: str) -> None:
        """Delete a variant; if it was the active one, no variant is active any more.

        Raises:
            LibtorchError: It is not installed, or cannot be deleted.
        """
        self.get(id)
        self._require_write("remove", id)
        with self.lock(id), self.staging() as doomed:
            path = Path(self.get(id).path)
            with failing(f"cannot remove {path}", kind=LibtorchError):
                path.rename(doomed / path.name)
            if active_id(str(self.root)) == id:
                self.write(self.folder / ".active", "")

    def lock_file(self, name: str) -> Path:
        """The file of the lock for some work on this store."""
        return self._own(".locks", f"{name}.lock")

    def lock(self, id: str) -> AbstractContextManager[None]:
        """Hold the lock for changes of one variant; waits for another process that holds it."""
        return self.hold("-".join(self.path(id).parts[-2:]), f"changing {id}")

    @contextmanager
    def hold(self, name: str, doing: str) -> Iterator[None]:
        """Hold an exclusive lock for some work on this store; wait for another process.

        The name is part of a file name. While waiting, a message says what the other process is
        ``doing``.
        """
        from filelock import FileLock, Timeout

        self._make(self.lock_file(name).parent)
        lock = FileLock(self.lock_file(name))
        with _creating(lock.lock_file):
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
        """An empty folder to prepare a variant in, on the same file system; removed at the end.

        Staging folders of killed processes are removed too. A lock tells them from folders in use.
        Unlike a process id, a lock works across all containers that share the folder, and it ends
        with its process.
        """
        parent = self._own(".staging")
        self._make(parent)
        with ExitStack() as stack:
            with _creating(parent):
                folder = stack.enter_context(staging(parent))
            yield folder

    def commit(
        self, staged: Path, id: str, facts: Mapping[str, str], place: Path | None = None
    ) -> Variant:
        """Move a staged folder to its place as the variant ``id``; it replaces what is there.

        Call it under :meth:`lock`. The folder has ``lib`` in it. The facts become the entries of
        its ``.arch``. The place is that in the store, or any other on the same file system.

        Raises:
            LibtorchError: The folder is not a libtorch, or cannot be moved.
        """
        target = place or self.path(id)
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
        return Variant(id, str(target), facts)

    def write(self, file: Path, text: str) -> None:
        """Replace a file of the store as a whole.

        Raises:
            LibtorchError: It cannot be written.
        """
        with failing(f"cannot write {file}", kind=LibtorchError):
            put_own(self.root, file, text.encode())

    def _own(self, *names: str) -> Path:
        """A path in the store at which fdl writes and deletes; a clone may have put a link there.

        Raises:
            LibtorchError: A part of it is a link.
        """
        try:
            return Path(inside(self.folder, *names))
        except OSError as problem:
            raise LibtorchError(
                f"{problem.filename}: {problem.strerror}", hint="or choose a store: --global"
            ) from None

    def _make(self, folder: Path) -> None:
        with _creating(folder):
            folder.mkdir(parents=True, exist_ok=True)


def _creating(path: Path | str) -> failing:
    hint = (
        "choose a folder you may write to: FLODL_HOME=DIR fdl libtorch install, or "
        "fdl libtorch download --path DIR"
    )
    return failing(f"cannot create {path}", hint, LibtorchError)


def require_libtorch(folder: Path) -> None:
    """Check that a folder holds the libraries of libtorch.

    Raises:
        LibtorchError: The libraries are missing.
    """
    names = ("libtorch.so", "libtorch.dylib", "torch.lib")
    if not any((folder / "lib" / name).is_file() for name in names):
        raise LibtorchError(
            f"the unpacked files are not a libtorch: lib/ has none of {', '.join(names)}",
            hint="take an archive from the PyTorch site, or let fdl choose: fdl libtorch install",
        )


def locate(start: str, environ: Mapping[str, str], *, use_global: bool = False) -> Store:
    """The store for commands that run in the folder ``start``.

    It is the store of the first of these folders, from ``start`` upwards:

    - the nearest folder with ``libtorch/.active``;
    - the nearest folder with a ``libtorch.lock``;
    - the nearest folder whose ``pyproject.toml`` depends on flodl;
    - the nearest folder with a manifest.

    Without any of these, or with ``use_global``, it is the user's store.
    """
    if not use_global:
        above = [Path(start).absolute(), *Path(start).absolute().parents]
        for holds in (_has_active, _has_lock, _depends_on_flodl):
            for folder in above:
                if holds(folder):
                    return Store(folder, "project")
        found = find(start)
        if found is not None:
            return Store(Path(found.directory), "project")
    return Store(home(environ), "global")


def home(environ: Mapping[str, str]) -> Path:
    """The user's folder."""
    chosen = environ.get(HOME, "")
    return Path(chosen).absolute() if chosen else Path.home() / ".flodl"


def _has_active(folder: Path) -> bool:
    # A path object would raise an error if a folder may not be entered.
    return os.path.isfile(folder / FOLDER / ".active")  # noqa: PTH113


def _has_lock(folder: Path) -> bool:
    return os.path.isfile(folder / LOCK_FILE)  # noqa: PTH113


def _depends_on_flodl(folder: Path) -> bool:
    project = toml_of(folder / "pyproject.toml").get("project")
    wanted = project.get("dependencies") if isinstance(project, dict) else None
    listed = wanted if isinstance(wanted, list) else []
    return any(_is_on_flodl(one) for one in listed if isinstance(one, str))


def _is_on_flodl(requirement: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        return canonicalize_name(Requirement(requirement).name) == "flodl"
    except InvalidRequirement:
        # Whoever installs the project is told.
        return False
