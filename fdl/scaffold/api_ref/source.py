"""Where the source of flodl is: named, in the checkout around, or installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from fdl.base.errors import FdlError, UsageError
from fdl.base.venv import project_prefix, site_packages

OWN_NAME = "flodl"
LEVELS = 5
"""How many folders above the working directory may be the checkout."""


def find(path: Path | None, start: Path, environ: Mapping[str, str]) -> Path:
    """The folder of the package to describe: that in ``path``, which the user has named.

    Without a path, the nearest checkout counts, then what the environment of the project around
    has installed, then what came along with this fdl.

    Raises:
        UsageError: The named folder is neither.
        FdlError: flodl is not there.
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
    for folder in (path / "src", path):
        found = [one for one in sorted(folder.glob("*")) if _is_package(one)]
        found = [one for one in found if one.name not in ("test", "tests")]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(
                f"--path {path} has several packages: {', '.join(one.name for one in found)}",
                hint=f"name one: fdl api-ref --path {found[0]}",
            )
    problem = "it has no Python package" if path.is_dir() else "there is no such folder"
    raise UsageError(
        f"--path {path}: {problem}",
        hint="name a project folder, or a folder with an __init__.py",
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
    for folder in site_packages(project_prefix(str(start), environ)):
        yield Path(folder, OWN_NAME)
    yield Path(__file__).parents[3] / OWN_NAME
