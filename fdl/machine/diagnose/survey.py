"""Gather the facts of a report; a file that cannot be read is a fact too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fdl.base.errors import FdlError
from fdl.base.hardware import Nvidia, System, nvidia, system
from fdl.libtorch.active import FOLDER, KINDS, Variant
from fdl.libtorch.need import needed_by
from fdl.libtorch.store import Store, home, locate
from fdl.machine.diagnose.environment import Environment, find


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
