"""What the templates of a new project are told about it."""

from __future__ import annotations

import re

from fdl.errors import ScaffoldError
from fdl.libtorch.catalog import artifacts, default_version
from fdl.scaffold.mode import Mode
from fdl.scaffold.render import Values

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")

# Containers are Linux wherever they run.
_PLATFORM = "linux-x86_64"

WHEELS = "https://download.pytorch.org/whl"
"""Where PyTorch keeps the wheels that say which CUDA they are for, a folder for each."""


def check_name(name: str) -> None:
    """Refuse a project name that would make a surprising folder or package name.

    Raises:
        ScaffoldError: The name is empty or has other than letters, digits, ``-`` and ``_``.
    """
    if not _NAME.match(name):
        raise ScaffoldError(
            f"`{name}` is no project name: use letters, digits, `-` and `_` only",
            hint="for example: fdl init my-model",
        )


def is_released(version: str) -> bool:
    """Whether a version of flodl can be had from an index, so that a project can be held to it."""
    return "dev" not in version and "+" not in version


def values(name: str, mode: Mode, version: str) -> Values:
    """Everything the templates may ask for.

    Args:
        name: Of the project.
        mode: How it runs.
        version: Of flodl; the project is held to it when it is a released one.
    """
    torch = default_version()
    cuda = artifacts(torch, _PLATFORM)[-1]
    # Packages begin and end with a letter or digit; images have no capitals and single signs.
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
