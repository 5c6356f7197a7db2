"""The folder of the package that a reference is about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fdl.base.errors import FdlError, UsageError
from fdl.base.files import toml_of
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
        return _named(path.expanduser().absolute())
    found = [folder for folder in [start, *start.parents][: LEVELS + 1] if _is_checkout(folder)]
    found += map(Path, site_packages(project_prefix(str(start), environ)))
    for folder in (*found, Path(__file__).parents[3]):
        if _is_package(folder / OWN_NAME):
            return folder / OWN_NAME
    raise FdlError(
        "the source of flodl is neither in a checkout around here nor installed",
        hint="name a folder that holds it: fdl api-ref --path DIR",
    )


def _named(path: Path) -> Path:
    problem = ": it has no Python package" if path.is_dir() else ": there is no such folder"
    hint = "name a project folder, or a folder with an __init__.py"
    for one in (path / OWN_NAME, path / "src" / OWN_NAME, path):
        if _is_package(one):
            return one
    for folder in (path / "src", path):
        found = sorted(one.parent for one in folder.glob("*/__init__.py"))
        found = [one for one in found if one.name not in ("test", "tests")]
        if len(found) == 1:
            return found[0]
        if found:
            problem = f" has several packages: {', '.join(one.name for one in found)}"
            hint = f"name one: fdl api-ref --path {found[0]}"
            break
    raise UsageError(f"--path {path}{problem}", hint=hint)


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _is_checkout(folder: Path) -> bool:
    project = toml_of(folder / "pyproject.toml").get("project")
    return isinstance(project, dict) and project.get("name") == OWN_NAME
