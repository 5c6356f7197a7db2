"""Where the source of flodl is: named, in the checkout around, or installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import fdl
from fdl.errors import FdlError, UsageError
from fdl.update.installed import OWN_NAME, packages
from fdl.venv import site_packages

LEVELS = 5
"""How many folders above the working directory may be the checkout."""


def find(path: Path | None, start: Path, environ: Mapping[str, str]) -> Path:
    """The folder of the package to describe.

    The nearest checkout counts, then what the environment of the project around has installed,
    then what came along with this fdl.

    Args:
        path: A checkout or a package that the user has named.
        start: The working directory.
        environ: The environment variables.

    Raises:
        UsageError: The named folder is neither.
        FdlError: There is no flodl anywhere.
    """
    if path is not None:
        return _named(path)
    for folder in [start, *start.parents][: LEVELS + 1]:
        if _is_checkout(folder):
            return folder / OWN_NAME
    for found in _installed(start, environ):
        if _is_package(found):
            return found
    raise FdlError(
        "the source of flodl is neither in a checkout around here nor installed",
        hint="name a folder that holds it: fdl api-ref --path DIR",
    )


def _named(path: Path) -> Path:
    path = path.expanduser().absolute()
    for candidate in (path / OWN_NAME, path / "src" / OWN_NAME, path):
        if _is_package(candidate):
            return candidate
    problem = (
        f"holds no Python package `{OWN_NAME}`, nor is it one" if path.is_dir() else "is no folder"
    )
    raise UsageError(
        f"--path {path}: it {problem}",
        hint="name a checkout of flodl, or a folder with an __init__.py",
    )


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _is_checkout(folder: Path) -> bool:
    if not _is_package(folder / OWN_NAME):
        return False
    try:
        document = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    project = document.get("project")
    return isinstance(project, dict) and project.get("name") == OWN_NAME


def _installed(start: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Where an installed flodl may be: the project's, which may differ from our own, first."""
    for package in packages(str(start), environ):
        if package.name == OWN_NAME and not package.is_own:
            for folder in site_packages(package.prefix):
                yield Path(folder, OWN_NAME)
    yield Path(fdl.__file__).parents[1] / OWN_NAME
