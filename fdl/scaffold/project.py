"""The values for the templates of a new project."""

from __future__ import annotations

import re

from fdl.base.errors import ScaffoldError
from fdl.libtorch.catalog import artifacts, default_version
from fdl.libtorch.layout import WHEELS
from fdl.scaffold.mode import Mode
from fdl.scaffold.render import Values

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")

# Containers run Linux on every host.
_PLATFORM = "linux-x86_64"


def check_name(name: str) -> None:
    """Refuse a project name that is not suitable as a folder or package name.

    Raises:
        ScaffoldError: The name is empty or has characters other than letters, digits, ``-``, ``_``.
    """
    if not _NAME.match(name):
        raise ScaffoldError(
            f"`{name}` is not a project name: use letters, digits, `-` and `_` only",
            hint="for example: fdl init my-model",
        )


def is_released(version: str) -> bool:
    """Whether an index has a version of flodl, so that a project can be pinned to it."""
    return "dev" not in version and "+" not in version


def values(name: str, mode: Mode, version: str) -> Values:
    """All values that templates may use; a released ``version`` of flodl becomes a pin."""
    torch = default_version()
    cuda = artifacts(torch, _PLATFORM)[-1]
    # Package names begin and end with a letter or digit. Image names have no capitals and no two
    # signs in a row.
    distribution = name.strip("-_") or "project"
    return {
        "name": name,
        "distribution": distribution,
        "image": re.sub(r"[-_]+", "-", distribution).lower(),
        "requirement": f"flodl[train]=={version}" if is_released(version) else "flodl[train]",
        "containers": mode.has_containers,
        "mounted": mode is Mode.MOUNTED,
        "baked": mode is Mode.DOCKER,
        "cpu_dockerfile": "Dockerfile.cpu" if mode is Mode.DOCKER else "Dockerfile",
        "torch": torch,
        "cuda_version": cuda.cuda or "",
        "cuda_variant": cuda.variant,
        "wheels": WHEELS,
    }
