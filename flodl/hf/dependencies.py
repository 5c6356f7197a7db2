"""Import packages of an extra when they are first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flodl.hf.errors import MissingDependencyError


def need(package: str, extra: str = "hf") -> Any:
    """Import a package, or raise an error that names the extra to install.

    Args:
        package: Name of a package or of a module inside one: ``tokenizers``, ``safetensors.torch``.
        extra: The extra of flodl that installs it.

    Returns:
        The module.

    Raises:
        MissingDependencyError: The package is not installed.
        ImportError: The package is installed but broken; installing the extra would not help.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        top = package.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise
        raise MissingDependencyError(
            f'the package {top} is not installed: run pip install "flodl[{extra}]"'
        ) from None
