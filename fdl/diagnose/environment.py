"""Read the project's Python environment and its torch from files, without imports or runs."""

from __future__ import annotations

import ast
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fdl.venv import project_prefix, python_of, site_packages


@dataclass(frozen=True, slots=True)
class Wheel:
    """An installed torch.

    Attributes:
        version: Its version, such as ``2.13.0+cpu``.
        cuda: CUDA version it is built for; empty for a build without CUDA.
    """

    version: str
    cuda: str


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python environment.

    Attributes:
        executable: Path of its interpreter.
        version: Version of its interpreter; empty if unknown.
        torch: Its torch; None if there is none.
    """

    executable: str
    version: str
    torch: Wheel | None


def find(start: Path, environ: Mapping[str, str]) -> Environment:
    """The environment that a project's commands run in.

    It is the nearest ``.venv`` above, else the activated environment, else that of this process.
    """
    prefix = Path(project_prefix(str(start), environ))
    if _read(prefix / "pyvenv.cfg"):
        return Environment(
            executable=python_of(str(prefix)),
            version=_interpreter_version(prefix / "pyvenv.cfg"),
            torch=_torch(site_packages(str(prefix))),
        )
    own = (entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
    return Environment(sys.executable, platform.python_version(), _torch(own))


def _interpreter_version(configuration: Path) -> str:
    for line in _read(configuration).splitlines():
        key, _, value = line.partition("=")
        # venv writes `version`; uv and virtualenv write the other key.
        if key.strip() in ("version", "version_info"):
            return ".".join(value.strip().split(".")[:3])
    return ""


def _torch(folders: Iterable[str]) -> Wheel | None:
    for folder in folders:
        text = _read(Path(folder, "torch", "version.py"))
        if text:
            said = _literals(text)
            return Wheel(said.get("__version__", ""), said.get("cuda", ""))
    return None


def _literals(text: str) -> dict[str, str]:
    """The string constants of a module, by name: ``cuda: Optional[str] = '13.0'``."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return {}
    found = {}
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found.update({one.id: value.value for one in targets if isinstance(one, ast.Name)})
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
