"""Programs of flodl that bring a manifest of their own: presets, help and completion from it.

The manifest lies in the folder of the program's module, so it is the one of the flodl that the
project's Python would run.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.venv import interpreter, project_prefix, site_packages
from fdl.manifest.builtins import JOINING
from fdl.manifest.discover import find_in
from fdl.manifest.load import load as load_manifest
from fdl.manifest.select.level import PATH, Level, descend, enter
from fdl.manifest.select.project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fdl.manifest.discover import Found
    from fdl.manifest.load import Manifest
    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level

MODULES = {"ddp-bench": "flodl.ddp_bench", "flodl-hf": "flodl.hf"}
"""Name of the command -> the module that is its program."""


def level(name: str, variables: Mapping[str, str]) -> Level | None:
    """A bundle as a command, or None where flodl is not installed.

    Args:
        name: One of :data:`MODULES`.
        variables: The environment variables, which may name the environment in use.
    """
    folder = Path(*MODULES[name].split("."))
    prefix = project_prefix(str(Path.cwd()), variables)
    beside = Path(__file__).resolve().parents[3]
    for packages in (*map(Path, site_packages(prefix)), beside):
        manifest = load(str(packages / folder))
        if manifest is not None:
            python = interpreter(str(Path.cwd()), variables)
            manifest.node = _started_by(python, manifest.node)
            return Level(manifest, (name,), str(packages), None)
    return None


def _started_by(python: str, node: Node) -> Node:
    """A mapping of a manifest in which every ``entry: python …`` names the Python to use."""
    changed = dict(node.mapping)
    entry = node.get("entry")
    if entry is not None:
        first, *words = shlex.split(str(entry.value))
        changed["entry"] = entry.at(shlex.join([python if first == "python" else first, *words]))
    commands = node.get("commands")
    if commands is not None:
        below = {name: _started_by(python, child) for name, child in commands.mapping.items()}
        changed["commands"] = commands.at(below)
    return node.at(changed)


def load(directory: str) -> Manifest | None:
    """The manifest in a folder of a bundle, or None; nothing is cached beside it.

    Raises:
        ManifestError: It is broken.
    """
    found = find_in(directory)
    return None if found is None else load_manifest(found, write_cache=False)


def reached(bundled: Level, words: Sequence[str]) -> tuple[Level, list[str]]:
    """The level whose program gets what is typed behind some words, and the rest of them.

    Raises:
        ManifestError: The manifest of a command is missing or broken.
    """
    return descend(bundled, words, load)


def names(bundled: Level, found: Found | None) -> Iterator[tuple[str, str]]:
    """The presets or commands of a bundle, after those a project adds, each with a description.

    Raises:
        FdlError: The project's manifests cannot be read.
    """
    (name,) = bundled.names
    own = project_level(name, found) if name in JOINING else None
    for one in (own, bundled):
        for command, spec in one.commands.items() if one else ():
            yield command, spec.text("description") or ""


def leaves_to_project(name: str, found: Found, following: Sequence[str]) -> bool:
    """Whether a line is one of the project's own command, and not of the bundle of that name.

    The project's commands are stronger; where it has none of the name that was typed, the bundle's
    are there besides. What neither knows goes to the project's entry, if there is one.

    Args:
        name: The bundle, which is also a command of the project.
        found: The project's manifest.
        following: The words behind the name.

    Raises:
        FdlError: The project's manifests cannot be read.
    """
    own = project_level(name, found)
    if own is None:
        return True
    word = following[0] if following else ""
    if word in own.commands:
        return True
    bundled = level(name, os.environ)
    if bundled is None:
        return True
    return own.entry is not None and word not in bundled.commands


def project_level(name: str, found: Found | None) -> Level | None:
    """What a project has under the name of a bundle; None where that has no commands.

    Raises:
        FdlError: The project's manifests cannot be read.
    """
    if found is None:
        return None
    project = Project(found)
    top = project.level()
    if name not in top.commands or top.kind(name) != PATH:
        return None
    return enter(top, name, project.child)
