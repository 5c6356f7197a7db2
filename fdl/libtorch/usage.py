"""Let programs outside of fdl use a libtorch: variables, and files of CMake and Cargo."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fdl.libtorch.active import Variant

SCHEMA_VERSION = 1

_LIBRARY_PATHS = {"darwin": "DYLD_LIBRARY_PATH", "win32": "PATH"}


@dataclass(frozen=True, slots=True)
class Variables:
    """The variables with which a process builds and runs with a libtorch.

    Attributes:
        values: Variables to set.
        folders: Variables that list folders -> the folder to put first.
    """

    values: Mapping[str, str]
    folders: Mapping[str, str]

    def applied_to(self, environ: Mapping[str, str]) -> dict[str, str]:
        """A whole environment with these variables set."""
        lists = {
            name: os.pathsep.join(filter(None, (folder, environ.get(name))))
            for name, folder in self.folders.items()
        }
        return {**environ, **self.values, **lists}


def variables(folder: str, system: str = sys.platform) -> Variables:
    """The variables for the libtorch in a folder (absolute path), on a system of ``sys.platform``.

    ``LIBTORCH`` is read by tch-rs, ``CMAKE_PREFIX_PATH`` is searched by CMake. The folder of the
    libraries is added to the search path of the system's loader.
    """
    libraries = _LIBRARY_PATHS.get(system, "LD_LIBRARY_PATH")
    return Variables(
        values={"LIBTORCH": folder, "LIBTORCH_PATH": folder},
        folders={libraries: str(Path(folder, "lib")), "CMAKE_PREFIX_PATH": folder},
    )


def render(
    format: str, variant: Variant, environ: Mapping[str, str], system: str = sys.platform
) -> str:
    """The text to print for a format: ``shell``, ``cmake``, ``cargo``, ``json`` or ``direnv``.

    In the environment, ``SHELL`` decides the syntax of ``shell``. The system is named as in
    ``sys.platform``.
    """
    if format == "cmake":
        return _cmake(variant)
    if format == "cargo":
        return _cargo(variant, system)
    if format == "json":
        return _json(variant, environ, system)
    found = variables(variant.path, system)
    if format == "direnv":
        return _posix(found)
    if system == "win32":
        return _powershell(found)
    return _fish(found) if Path(environ.get("SHELL", "")).name == "fish" else _posix(found)


def exports(folder: str, environ: Mapping[str, str]) -> str:
    """The commands that make the user's shell use a libtorch."""
    return render("shell", Variant("", folder, {}), environ)


def _posix(found: Variables) -> str:
    text = ""
    for name, value in found.values.items():
        text += f"export {name}={shlex.quote(value)}\n"
    for name, folder in found.folders.items():
        # An empty element would mean the working directory.
        text += f'export {name}={shlex.quote(folder)}"${{{name}:+:${name}}}"\n'
    return text


def _fish(found: Variables) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    text = ""
    for name, value in found.values.items():
        text += f"set -gx {name} {quoted(value)}\n"
    for name, folder in found.folders.items():
        text += f"set -gx {name} {quoted(folder)} ${name}\n"
    return text


def _powershell(found: Variables) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    text = ""
    for name, value in found.values.items():
        text += f"$env:{name} = {quoted(value)}\n"
    for name, folder in found.folders.items():
        text += f"$env:{name} = {quoted(folder + ';')} + $env:{name}\n"
    return text


def _cmake(variant: Variant) -> str:
    """A ``CMakePresets.json``: its preset finds Torch, and programs find its libraries.

    While building, CMake puts the folder of a linked library into the run path. It removes the
    folder on installation, unless told otherwise.
    """
    folder = _escaped(Path(variant.path).as_posix())
    title = " ".join(filter(None, ("libtorch", variant.facts.get("torch"), variant.id)))
    preset = {
        "name": "libtorch",
        "displayName": title,
        "binaryDir": "${sourceDir}/build",
        "cacheVariables": {
            "CMAKE_PREFIX_PATH": {"type": "PATH", "value": folder},
            "CMAKE_BUILD_RPATH": {"type": "PATH", "value": f"{folder}/lib"},
            "CMAKE_INSTALL_RPATH": {"type": "PATH", "value": f"{folder}/lib"},
        },
    }
    document = {
        "version": 3,
        "cmakeMinimumRequired": {"major": 3, "minor": 21, "patch": 0},
        "configurePresets": [preset],
        "buildPresets": [{"name": "libtorch", "configurePreset": "libtorch"}],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _escaped(path: str) -> str:
    """A path for a preset, in which ``$`` begins a macro and ``;`` separates list items."""
    return path.replace("$", "${dollar}").replace(";", "\\;")


def _cargo(variant: Variant, system: str) -> str:
    """A ``.cargo/config.toml``: build scripts see ``LIBTORCH``, programs find its libraries."""
    # A JSON string is also a valid TOML string.
    folder = json.dumps(variant.path, ensure_ascii=False)
    lines = ["[env]", f"LIBTORCH = {folder}", f"LIBTORCH_PATH = {folder}"]
    if system != "win32":
        # `-Wl,-rpath,…` would split a path at its commas.
        words = ["-Xlinker", "-rpath", "-Xlinker", str(Path(variant.path, "lib"))]
        lines += ["", "[build]", "rustflags = ["]
        lines += [
            f'  "-C", {json.dumps(f"link-arg={word}", ensure_ascii=False)},' for word in words
        ]
        lines += ["]"]
    return "".join(f"{line}\n" for line in lines)


def _json(variant: Variant, environ: Mapping[str, str], system: str) -> str:
    """The variables with their whole values, and facts about the variant beside them."""
    found = variables(variant.path, system)
    own = {name: environ[name] for name in found.folders if name in environ}
    document = {
        **found.applied_to(own),
        "schema_version": SCHEMA_VERSION,
        "variant": variant.id,
        "path": variant.path,
        "torch": variant.facts.get("torch"),
        "cuda": variant.cuda,
        "include": [
            str(Path(variant.path, "include")),
            str(Path(variant.path, "include", "torch", "csrc", "api", "include")),
        ],
        "lib": str(Path(variant.path, "lib")),
        "variables": dict(found.values),
        "prepend": dict(found.folders),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
