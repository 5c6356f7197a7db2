"""Write the folder ``flodl-hf/`` of a project and its command in the manifest: both, or neither."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fdl.base.errors import ScaffoldError
from fdl.base.rewrite import put
from fdl.manifest.source import shown
from fdl.scaffold.add_file import TextFile
from fdl.scaffold.add_manifest import manifests, with_command
from fdl.scaffold.add_requirement import EXTRAS
from fdl.scaffold.add_version import HostVersion, host_version
from fdl.scaffold.render import Values, list_files, render
from fdl.version import __version__

FOLDER = "flodl-hf"
"""The name of the playground's folder and of its command."""

_LAYERS = ("playground",)
_ENTRY = {"description": "Try models of the Hugging Face hub", "path": f"./{FOLDER}/"}
_COMPOSE = "docker-compose.yml"
_MANIFEST = "fdl.yml"


@dataclass(frozen=True, slots=True)
class Playground:
    """A playground that can be written.

    Attributes:
        root: The project.
        host: The version of flodl that it will require.
        manifests: The manifests to change, each with its new text.
        new: The text of a manifest for a folder that has none; empty if there is one.
    """

    root: Path
    host: HostVersion
    manifests: tuple[tuple[TextFile, str], ...]
    new: str = ""

    @property
    def files(self) -> list[str]:
        """Its files, relative to its folder and sorted."""
        return list_files(_LAYERS, self._values())

    def write(self) -> list[str]:
        """Write it; returns its files.

        Raises:
            ScaffoldError: A file cannot be written; everything is unchanged.
        """
        written = render(_LAYERS, self.root / FOLDER, self._values())
        replaced: list[tuple[TextFile, str]] = []
        try:
            if self.new:
                put(self.root / _MANIFEST, self.new.encode())
            # An example that is written after its copy would count as newer.
            for file, text in reversed(self.manifests):
                file.replace(text)
                replaced.append((file, text))
        except BaseException:
            shutil.rmtree(self.root / FOLDER, ignore_errors=True)
            for file, text in replaced:
                file.restore(text)
            raise
        return written

    def _values(self) -> Values:
        return {
            "requirement": self.host.requirement(EXTRAS["full"]),
            "containers": (self.root / _COMPOSE).is_file(),
        }


def playground(root: Path, variables: Mapping[str, str]) -> Playground:
    """Determine whether a project can have a playground; nothing is written.

    Raises:
        FdlError: The project lacks a file, has a playground, or does not say which flodl it uses.
            A folder with neither file gets a manifest, and the running version of flodl.
    """
    found = manifests(root)
    if not found and not (root / "pyproject.toml").exists():
        _refuse_to_replace(root / FOLDER)
        text = with_command("", root / _MANIFEST, FOLDER, _ENTRY)
        return Playground(root, HostVersion(__version__, is_pin=False), (), text)
    missing = "" if (root / "pyproject.toml").is_file() else "pyproject.toml"
    missing = missing or ("" if found else "fdl.yml")
    if missing:
        raise ScaffoldError(
            f"there is no {missing} in {root}, so it cannot have a playground",
            hint="go to the project's root, or start one: fdl init NAME --with-hf",
        )
    _refuse_to_replace(root / FOLDER)
    host = host_version(root, variables)
    files = [TextFile(one) for one in found]
    changes = [(one, with_command(one.text, one.path, FOLDER, _ENTRY)) for one in files]
    return Playground(root, host, tuple(one for one in changes if one[0].text != one[1]))


def _refuse_to_replace(target: Path) -> None:
    if os.path.lexists(target):
        raise ScaffoldError(
            f"{shown(str(target))} exists already; nothing was written",
            hint=f"`fdl {FOLDER} --help` lists its commands; remove it first to make it again",
        )
