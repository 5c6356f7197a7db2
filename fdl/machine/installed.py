"""Which of our packages are installed where, and what upgrades fdl.

Read off the file names of ``site-packages``: ``importlib.metadata`` would cost every command its
start-up time.
"""

# pathlib as well.
# ruff: noqa: PTH100, PTH113, PTH118, PTH119, PTH120, PTH123
from __future__ import annotations

import os
import sys

from fdl.base.light_record import Record
from fdl.base.shell_words import join
from fdl.base.venv import listed, project_prefix, site_packages
from fdl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OWN_NAME = "flodl"
"""The distribution that brings ``fdl``."""

_SUFFIX = ".dist-info"
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


class Package(Record):
    """One installed distribution.

    Attributes:
        name: Normalised name: ``flodl-hf``.
        version: Installed version.
        prefix: Folder of the environment that holds it.
        is_own: Whether it is the one that this process runs from.
    """

    name: str
    version: str
    prefix: str
    is_own: bool = False


def packages(directory: str, variables: Mapping[str, str]) -> list[Package]:
    """Our own distribution, then what the project's environment holds of the family.

    That environment is looked for from the directory of the command up.
    """
    own = Package(OWN_NAME, __version__, sys.prefix, is_own=True)
    prefix = project_prefix(directory, variables)
    same_place = os.path.realpath(prefix) == os.path.realpath(sys.prefix)
    others = [
        Package(name, version, prefix)
        for name, version in _distributions(prefix)
        if not (same_place and name == OWN_NAME)
    ]
    return [own, *others]


def upgrade_command() -> str:
    """What to type to upgrade this fdl: the command of the tool that installed it."""
    code = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.basename(code) not in ("site-packages", "dist-packages"):
        return join(["git", "-C", code, "pull"])
    if os.path.isfile(os.path.join(sys.prefix, "uv-receipt.toml")):
        return f"uv tool upgrade {OWN_NAME}"
    if os.path.isfile(os.path.join(sys.prefix, "pipx_metadata.json")):
        return f"pipx upgrade {OWN_NAME}"
    if _made_by_uv(sys.prefix):
        return join(["uv", "pip", "install", "--python", sys.prefix, "--upgrade", OWN_NAME])
    return join([sys.executable, "-m", "pip", "install", "--upgrade", OWN_NAME])


def _distributions(prefix: str) -> Iterator[tuple[str, str]]:
    """Name and version of the installed packages whose name is ours or begins with it."""
    for folder in site_packages(prefix):
        for entry in listed(folder):
            if not entry.endswith(_SUFFIX):
                continue
            stem, _, version = entry.removesuffix(_SUFFIX).partition("-")
            name = stem.lower().replace("_", "-").replace(".", "-")
            ours = name == OWN_NAME or name.startswith(f"{OWN_NAME}-")
            if ours and _LETTERS.issuperset(name) and version[:1].isdigit():
                yield name, version


def _made_by_uv(prefix: str) -> bool:
    """Environments of uv say so in their configuration, and hold no pip."""
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8") as stream:
            return any(line.partition("=")[0].strip() == "uv" for line in stream)
    except (OSError, ValueError):
        return False
