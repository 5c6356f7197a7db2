"""Gather the facts about machine and project; a file that cannot be read is a fact too.

The project's Python environment and its torch are read from files, without imports or runs.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fdl.base.errors import FdlError
from fdl.base.files import text_of
from fdl.base.hardware import Nvidia, System, nvidia, system
from fdl.base.venv import project_prefix, python_of, site_packages
from fdl.libtorch.active import FOLDER, KINDS, Variant
from fdl.libtorch.layout import version_facts
from fdl.libtorch.store import Store, home, locate, needed_by


@dataclass(frozen=True, slots=True)
class Wheel:
    """An installed torch.

    Attributes:
        version: Its version, such as ``2.13.0+cpu``.
        cuda: CUDA version it is built for; empty for a build without CUDA.
    """

    version: str
    cuda: str


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python environment.

    Attributes:
        executable: Path of its interpreter.
        version: Version of its interpreter; empty if unknown.
        torch: Its torch; None if there is none.
    """

    executable: str
    version: str
    torch: Wheel | None


def find(start: Path, environ: Mapping[str, str]) -> Environment:
    """The environment that a project's commands run in.

    It is the nearest ``.venv`` above, else the activated environment, else that of this process.
    """
    prefix = Path(project_prefix(str(start), environ))
    if text_of(prefix / "pyvenv.cfg"):
        return Environment(
            executable=python_of(str(prefix)),
            version=_interpreter_version(prefix / "pyvenv.cfg"),
            torch=_torch(site_packages(str(prefix))),
        )
    own = (entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
    return Environment(sys.executable, platform.python_version(), _torch(own))


def _interpreter_version(configuration: Path) -> str:
    for line in text_of(configuration).splitlines():
        key, _, value = line.partition("=")
        # venv writes `version`; uv and virtualenv write the other key.
        if key.strip() in ("version", "version_info"):
            return ".".join(value.strip().split(".")[:3])
    return ""


def _torch(folders: Iterable[str]) -> Wheel | None:
    for folder in folders:
        text = text_of(Path(folder, "torch", "version.py"))
        if text:
            said = version_facts(text)
            return Wheel(*(str(said.get(key) or "") for key in ("__version__", "cuda")))
    return None


@dataclass(frozen=True, slots=True)
class Stock:
    """The variants of a store.

    Attributes:
        store: The store.
        installed: The installed variants.
        named: The id in ``libtorch/.active``; empty without the file.
        active: The active variant; None for none, or if it is not installed.
        obstacle: File or folder that makes the store unreadable; empty if it is readable.
        reason: Why that file or folder cannot be read.
        needed_by: The file that shows that the project uses libtorch; empty if none does.
    """

    store: Store
    installed: tuple[Variant, ...] = ()
    named: str = ""
    active: Variant | None = None
    obstacle: str = ""
    reason: str = ""
    needed_by: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts before anything is judged.

    ``manifest`` is why the project's manifest cannot be read; None if it can, or there is none.
    """

    stock: Stock
    system: System
    nvidia: Nvidia
    environment: Environment
    environ: Mapping[str, str] = field(default_factory=dict)
    manifest: FdlError | None = None


def survey(start: str, environ: Mapping[str, str], manifest: FdlError | None) -> Facts:
    """Gather facts about the machine and a folder's project; ``manifest`` as in :class:`Facts`."""
    stock = _stock(start, environ)
    return Facts(
        stock=stock,
        system=system(environ),
        nvidia=nvidia(environ),
        environment=find(Path(start), environ),
        environ=environ,
        manifest=manifest,
    )


def _stock(start: str, environ: Mapping[str, str]) -> Stock:
    store = Store(home(environ), "global")
    try:
        store = locate(start, environ)
        named = _named(store.folder)
        installed = tuple(store.installed())
        return Stock(store, installed, named, store.active, needed_by=needed_by(store.root))
    except OSError as error:
        file = str(error.filename)
        return Stock(store, obstacle=file, reason=str(error.strerror), needed_by=FOLDER)
    except UnicodeError:
        file = str(store.folder / ".active")
        return Stock(store, obstacle=file, reason="it is not a text", needed_by=FOLDER)


def _named(folder: Path) -> str:
    """The id in ``.active``.

    Raises:
        OSError: The store is not readable.
        UnicodeError: The file is not valid text.
    """
    present = [entry.name for entry in folder.iterdir()] if os.path.lexists(folder) else []
    for kind in KINDS:
        if kind in present:
            # Listed here, because the store skips folders that it cannot read.
            list((folder / kind).iterdir())
    if ".active" not in present:
        return ""
    return (folder / ".active").read_text(encoding="utf-8").strip()
