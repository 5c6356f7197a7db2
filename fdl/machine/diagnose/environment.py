"""Read the project's Python environment and its torch from files, without imports or runs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fdl.base.hardware.container import read
from fdl.base.venv import project_prefix, python_of, site_packages
from fdl.libtorch.layout import version_facts


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
    if read(prefix / "pyvenv.cfg"):
        return Environment(
            executable=python_of(str(prefix)),
            version=_interpreter_version(prefix / "pyvenv.cfg"),
            torch=_torch(site_packages(str(prefix))),
        )
    own = (entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
    return Environment(sys.executable, platform.python_version(), _torch(own))


def _interpreter_version(configuration: Path) -> str:
    for line in read(configuration).splitlines():
        key, _, value = line.partition("=")
        # venv writes `version`; uv and virtualenv write the other key.
        if key.strip() in ("version", "version_info"):
            return ".".join(value.strip().split(".")[:3])
    return ""


def _torch(folders: Iterable[str]) -> Wheel | None:
    for folder in folders:
        text = read(Path(folder, "torch", "version.py"))
        if text:
            said = version_facts(text)
            return Wheel(*(str(said.get(key) or "") for key in ("__version__", "cuda")))
    return None
