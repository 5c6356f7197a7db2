"""Find the tools of a native build, and check what the CUDA compiler supports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fdl.base.errors import BuildError
from fdl.libtorch.architectures import Architecture, parse

NEEDS = {
    "nvcc": ("nvcc",),
    "cmake": ("cmake",),
    "python3": ("python3",),
    "git": ("git",),
    "gcc or cc": ("gcc", "cc"),
}
"""The tools of a native build, and the programs that provide each. Ninja is not listed: if the
machine has none, it comes with the Python packages."""

_PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that a native build finds.

    Attributes:
        path: ``PATH``, followed by the CUDA toolkit of ``CUDA_HOME`` or ``CUDA_PATH``.
        missing: The missing tools.
        has_ninja: Whether ninja is available.
    """

    path: str
    missing: tuple[str, ...]
    has_ninja: bool


def find_tools(environ: Mapping[str, str]) -> Tools:
    """Look for the tools of a native build."""
    homes = [environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    toolkits = (os.path.join(home, "bin") for home in homes)  # noqa: PTH118
    path = os.pathsep.join(filter(None, (environ.get("PATH", ""), *toolkits)))
    missing = [
        tool
        for tool, names in NEEDS.items()
        if not any(shutil.which(name, path=path) for name in names)
    ]
    return Tools(path, tuple(missing), has_ninja=shutil.which("ninja", path=path) is not None)


def nvcc_version(found: Tools, archs: Sequence[Architecture]) -> str:
    """The CUDA version of the native compiler, after a check that it supports the architectures.

    Raises:
        BuildError: It does not support them, or does not work. A build would fail only after hours.
    """
    release = re.search(r"release (\d+\.\d+)", _ask_nvcc(found, "--version"))
    if release is None:
        raise BuildError(
            "`nvcc --version` names no CUDA release", hint="reinstall the CUDA toolkit"
        )
    listed = re.findall(r"compute_(\d+)(\d[af]?)\b", _ask_nvcc(found, "--list-gpu-arch"))
    known = {f"{major}.{minor}" for major, minor in listed}
    unknown = [str(one) for one in archs if str(one).removesuffix("+PTX").rstrip("af") not in known]
    if known and unknown:
        spelled = " ".join(map(str, parse(" ".join(known))))
        raise BuildError(
            f"nvcc of CUDA {release[1]} ({shutil.which('nvcc', path=found.path)}) cannot compile "
            f"for {', '.join(unknown)}; it knows {spelled}",
            hint="build in a container: fdl libtorch build --docker; or put another CUDA toolkit "
            "first on PATH",
        )
    return release[1]


def _ask_nvcc(found: Tools, question: str) -> str:
    program = shutil.which("nvcc", path=found.path) or "nvcc"
    try:
        answer = subprocess.run(
            [program, question],
            env={**os.environ, "PATH": found.path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as problem:
        raise BuildError(
            f"`{program} {question}` failed: {problem}", hint="reinstall the CUDA toolkit"
        ) from None
    return answer.stdout
