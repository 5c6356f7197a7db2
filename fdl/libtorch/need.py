"""Decide from the files of a project whether it uses libtorch, the C++ library of PyTorch.

A project that uses torch as a Python package needs no libtorch. These files show the contrary, in
the project's folder or directly below it:

- a ``libtorch/`` folder or a ``libtorch.lock``: somebody has chosen a variant
- a ``Cargo.toml`` with ``tch`` or ``torch-sys``
- a ``CMakeLists.txt`` with ``find_package(Torch)``
- a manifest or a compose file that names libtorch
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from fdl.base.compose_file import COMPOSE_FILES
from fdl.base.hardware.container import read
from fdl.libtorch.active import FOLDER, LOCK_FILE
from fdl.manifest.discover import EXAMPLES, NAMES

_CARGO = re.compile(r"^\s*(?:\[[^#\n]*dependencies\.)?(tch|torch-sys)\s*[\].=]", re.MULTILINE)
_CMAKE = re.compile(r"^[^#\n]*\b(find_package\s*\(\s*Torch)\b", re.MULTILINE | re.IGNORECASE)
_NAMED = re.compile(r"^[^#\n]*(libtorch)", re.MULTILINE | re.IGNORECASE)

_SIGNS = {
    "Cargo.toml": _CARGO,
    "CMakeLists.txt": _CMAKE,
    **dict.fromkeys((*NAMES, *EXAMPLES, *COMPOSE_FILES), _NAMED),
}


def needed_by(root: Path) -> str:
    """The file that shows that the project in a folder uses libtorch; empty if none does."""
    for name in (FOLDER, LOCK_FILE):
        if os.path.lexists(root / name):
            return name
    for folder in ("", *_folders(root)):
        for name, sign in _SIGNS.items():
            if sign.search(read(root / folder / name)):
                return (Path(folder) / name).as_posix()
    return ""


def _folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            return sorted(one.name for one in entries if one.is_dir() and one.name[0] != ".")
    except OSError:
        return []
