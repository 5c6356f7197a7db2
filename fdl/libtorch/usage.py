"""Let programs outside of fdl use a libtorch: variables, and files of CMake and Cargo."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fdl.base.files import text_of
from fdl.base.output import json_text
from fdl.libtorch.active import Variant

SCHEMA_VERSION = 1

_FOUND_BY_CMAKE = ("Torch_DIR", "Caffe2_DIR", "TORCH_LIBRARY", "c10_LIBRARY")
_FOUND_WITH_CUDA = ("C10_CUDA_LIBRARY",)
"""Entries of CMake's cache that Torch's CMake files make."""

_OLD_ABI = "_GLIBCXX_USE_CXX11_ABI=0"
"""Torch's CMake files tell it to the compiler."""

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

    ``LIBTORCH`` is read by tch-rs, and so is ``LIBTORCH_CXX11_ABI``, which is ``0`` for a libtorch
    of the old ABI of C++. ``CMAKE_PREFIX_PATH`` is searched by CMake. The folder of the
    libraries is added to the search path of the system's loader.
    """
    libraries = _LIBRARY_PATHS.get(system, "LD_LIBRARY_PATH")
    return Variables(
        values=_values(folder),
        folders={libraries: str(Path(folder, "lib")), "CMAKE_PREFIX_PATH": folder},
    )


def _values(folder: str) -> dict[str, str]:
    values = {"LIBTORCH": folder, "LIBTORCH_PATH": folder}
    # torch-sys compiles its own code for the new ABI, unless it is told otherwise.
    config = Path(folder, "share", "cmake", "Torch", "TorchConfig.cmake")
    if _OLD_ABI in text_of(config):
        values["LIBTORCH_CXX11_ABI"] = "0"
    return values


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
        # The whole value of each variable that differs; lists of folders included.
        whole = variables(variant.path, system).applied_to(environ)
        return json_text({name: one for name, one in whole.items() if environ.get(name) != one})
    shell = "fish" if Path(environ.get("SHELL", "")).name == "fish" else "posix"
    if format == "direnv":
        shell = "posix"
    elif system == "win32":
        shell = "powershell"
    return _commands(variables(variant.path, system), shell)


def _commands(found: Variables, shell: str) -> str:
    """The lines of a shell that set the variables."""
    quote, assign, prepend, end = _SHELLS[shell]
    lines = [assign.format(name, quote(value)) for name, value in found.values.items()]
    lines += [prepend.format(name, quote(folder + end)) for name, folder in found.folders.items()]
    return "".join(f"{line}\n" for line in lines)


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _powershell_quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# Shell -> how it quotes, sets a variable, and puts a folder before a list of folders. In the list
# of a POSIX shell, an empty element would mean the working directory.
_SHELLS: dict[str, tuple[Callable[[str], str], str, str, str]] = {
    "posix": (shlex.quote, "export {0}={1}", 'export {0}={1}"${{{0}:+:${0}}}"', ""),
    "fish": (_fish_quoted, "set -gx {0} {1}", "set -gx {0} {1} ${0}", ""),
    "powershell": (_powershell_quoted, "$env:{0} = {1}", "$env:{0} = {1} + $env:{0}", ";"),
}


def _cmake(variant: Variant) -> str:
    """A ``CMakePresets.json``: its preset finds Torch, and programs find its libraries.

    While building, CMake puts the folder of a linked library into the run path. It removes the
    folder on installation, unless told otherwise. What CMake has found stays in its cache, so that
    a build folder would mix two variants after a change: the preset makes it search again.
    """
    folder = _escaped(Path(variant.path).as_posix())
    found = [*_FOUND_BY_CMAKE, *(_FOUND_WITH_CUDA if variant.cuda else ())]
    title = " ".join(filter(None, ("libtorch", variant.facts.get("torch"), variant.id)))
    preset = {
        "name": "libtorch",
        "displayName": title,
        "binaryDir": "${sourceDir}/build",
        "cacheVariables": {
            "CMAKE_PREFIX_PATH": {"type": "PATH", "value": folder},
            "CMAKE_BUILD_RPATH": {"type": "PATH", "value": f"{folder}/lib"},
            "CMAKE_INSTALL_RPATH": {"type": "PATH", "value": f"{folder}/lib"},
            **{name: f"{name}-NOTFOUND" for name in found},
        },
    }
    document = {
        "version": 3,
        "cmakeMinimumRequired": {"major": 3, "minor": 21, "patch": 0},
        "configurePresets": [preset],
        "buildPresets": [{"name": "libtorch", "configurePreset": "libtorch"}],
    }
    return json_text(document)


def _escaped(path: str) -> str:
    """A path for a preset, in which ``$`` begins a macro and ``;`` separates list items."""
    return path.replace("$", "${dollar}").replace(";", "\\;")


def _cargo(variant: Variant, system: str) -> str:
    """A ``.cargo/config.toml``: build scripts see ``LIBTORCH``, programs find its libraries."""
    # A JSON string is also a valid TOML string.
    values = _values(variant.path).items()
    lines = ["[env]", *(f"{key} = {json.dumps(one, ensure_ascii=False)}" for key, one in values)]
    if system != "win32":
        # `-Wl,-rpath,…` would split a path at its commas.
        words = ["-Xlinker", "-rpath", "-Xlinker", str(Path(variant.path, "lib"))]
        lines += ["", "[build]", "rustflags = ["]
        lines += [
            f'  "-C", {json.dumps(f"link-arg={word}", ensure_ascii=False)},' for word in words
        ]
        lines += ["]"]
    return "".join(f"{line}\n" for line in lines)
