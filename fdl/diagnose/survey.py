"""Gathering what a report is made of; what cannot be read is a fact like any other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fdl.diagnose.environment import Environment, find
from fdl.errors import FdlError
from fdl.hardware import Nvidia, System, nvidia, system
from fdl.libtorch.active import Variant
from fdl.libtorch.store import KINDS, Store, home, locate


@dataclass(frozen=True, slots=True)
class Stock:
    """The variants of a store.

    Attributes:
        store: The store.
        installed: The variants that are there.
        named: What ``libtorch/.active`` says; empty without one.
        active: The variant in use; None for none, and when it is not installed.
        obstacle: File or folder that keeps the store from being read; empty when none does.
        reason: Why it does.
    """

    store: Store
    installed: tuple[Variant, ...] = ()
    named: str = ""
    active: Variant | None = None
    obstacle: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known before anything is judged.

    Attributes:
        stock: The variants that the report is about.
        system: The machine.
        nvidia: The cards and their driver.
        environment: The project's Python environment.
        environ: The environment variables.
        manifest: Why the project's manifest cannot be read; None when it can, or there is none.
    """

    stock: Stock
    system: System
    nvidia: Nvidia
    environment: Environment
    environ: Mapping[str, str] = field(default_factory=dict)
    manifest: FdlError | None = None


def survey(start: str, environ: Mapping[str, str], manifest: FdlError | None) -> Facts:
    """Look at the machine and at the project around a folder.

    Args:
        start: The folder.
        environ: The environment variables.
        manifest: Why the project's manifest cannot be read; None when it can, or there is none.
    """
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
        return Stock(store, tuple(store.installed()), named, store.active)
    except OSError as error:
        return Stock(store, obstacle=str(error.filename), reason=str(error.strerror))
    except UnicodeError:
        return Stock(store, obstacle=str(store.folder / ".active"), reason="it is not a text")


def _named(folder: Path) -> str:
    """What ``.active`` says.

    Raises:
        OSError: The store is not readable.
        UnicodeError: The file is not a text.
    """
    present = [entry.name for entry in folder.iterdir()] if os.path.lexists(folder) else []
    for kind in KINDS:
        if kind in present:
            # Listed here because the store itself skips what it cannot read.
            list((folder / kind).iterdir())
    if ".active" not in present:
        return ""
    return (folder / ".active").read_text(encoding="utf-8").strip()
