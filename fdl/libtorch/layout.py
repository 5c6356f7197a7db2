"""The layout of libtorch: which members of an archive or a wheel belong to it, and its version.

An official archive holds one folder ``libtorch``. The Python package holds the same libraries,
headers and CMake files below ``torch``. Its ``version.py`` gives the same facts as
``build-version`` and ``build-hash`` of an archive. On Linux, NVIDIA's libraries are in separate
packages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fdl.base.errors import LibtorchError
from fdl.base.files import text_of
from fdl.libtorch.active import is_id, read_facts

WHEELS = "https://download.pytorch.org/whl"
"""PyTorch's own index of packages; below it there is one for each variant."""

CPU = "cpu"

BUILD_VERSION = "build-version"
"""File with the version, in every libtorch: ``2.10.0+cu128``."""

VERSION_FILE = ".version.py"
"""Temporary name of the package's ``version.py`` until it is read."""

METADATA_FILE = ".metadata"
"""Temporary name of the package's list of requirements until it is read."""

_FOLDERS = ("lib", "include", "share", ".dylibs")
_FILES = (BUILD_VERSION, "build-hash")

# The other programs in `bin` are PyTorch's tests.
_PROGRAMS = ("torch_shm_manager", "protoc")

_CUDA_NAME = re.compile(r"cu(\d{2,3})\Z")


@dataclass(frozen=True, slots=True)
class Contents:
    """The version and variant of a libtorch.

    Attributes:
        torch: Version of torch without the part after ``+``: ``2.10.0``.
        variant: ``cpu``, ``cu128`` …
        cuda: CUDA version; None for CPU or if unknown.
        archs: GPU architectures as recorded in ``.arch``; empty if unknown.
    """

    torch: str
    variant: str
    cuda: str | None = None
    archs: str = ""

    @property
    def id(self) -> str:
        """The id of its variant in a store."""
        return f"precompiled/{self.variant}"

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"libtorch {self.torch} {self.variant}"

    @property
    def facts(self) -> dict[str, str]:
        """The entries of its ``.arch`` file."""
        cuda = self.cuda or ("none" if self.variant == CPU else "")
        known = {
            "cuda": cuda,
            "torch": self.torch,
            "archs": self.archs,
            "source": "precompiled",
            "variant": self.variant,
        }
        return {key: value for key, value in known.items() if value}

    def is_installed_in(self, folder: Path) -> bool:
        """Whether a folder holds exactly this libtorch."""
        torch, _, local = installed_version(folder).partition("+")
        variant = read_facts(str(folder)).get("variant") or local or self.variant
        return (folder / "lib").is_dir() and (torch, variant) == (self.torch, self.variant)


def cuda_variant(cuda: str) -> str:
    """``cu128`` for ``12.8``."""
    return f"cu{''.join(cuda.split('.')[:2])}"


def cuda_version(variant: str) -> str | None:
    """``12.8`` for ``cu128``; None for anything else."""
    match = _CUDA_NAME.match(variant)
    return f"{match[1][:-1]}.{match[1][-1]}" if match else None


def identify(
    version: str, *, cuda: object, has_cuda: bool, wanted: str | None, where: str
) -> Contents:
    """Determine the version and variant of a libtorch from its own files.

    Args:
        version: As in ``build-version``; the part after ``+`` may be missing.
        cuda: The CUDA version, if another file gives it, such as ``version.py``.
        has_cuda: Whether it contains libraries of CUDA.
        wanted: The requested variant; used if the libtorch does not name its variant.
        where: The name of the libtorch in messages.

    Raises:
        LibtorchError: The files do not give enough facts.
    """
    torch, _, local = version.partition("+")
    if local == CPU or cuda_version(local) or re.match(r"rocm|xpu", local):
        variant = local
    elif cuda:
        variant = cuda_variant(str(cuda))
    elif not has_cuda:
        variant = CPU
    elif wanted and cuda_version(wanted):
        variant = wanted
    else:
        raise LibtorchError(
            f"{where} has code for CUDA but does not say of which version",
            hint="name the variant: fdl libtorch install cu128 --source …",
        )
    if not is_id(f"precompiled/{variant}"):
        raise LibtorchError(f"{where} calls its variant `{variant}`, which cannot be a folder")
    # The version it was built with is more precise than the name of the variant.
    exact = str(cuda) if cuda else cuda_version(variant)
    return Contents(torch, variant, exact, CPU if variant == CPU else "")


def version_facts(text: str) -> Mapping[str, object]:
    """The constants of a package's ``version.py``, which is read but never run."""
    found: dict[str, object] = {}
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError):
        return {}
    for one in statements:
        if isinstance(one, ast.AnnAssign):
            targets: list[ast.expr] = [one.target]
        elif isinstance(one, ast.Assign):
            targets = one.targets
        else:
            continue
        if isinstance(one.value, ast.Constant):
            names = (target.id for target in targets if isinstance(target, ast.Name))
            found.update(dict.fromkeys(names, one.value.value))
    return found


def installed_version(folder: Path) -> str:
    """The version in ``build-version`` of a folder; empty without the file."""
    return text_of(folder / BUILD_VERSION).strip()


def place(member: str) -> str | None:
    """The place of a member of an archive or a wheel in a libtorch folder; None for no place.

    The archive may hold ``libtorch/…``, the content of that folder, or a Python package.
    """
    root, _, inner = member.partition("/")
    if root == "libtorch":
        return _kept(inner)
    if root == "torch":
        return VERSION_FILE if inner == "version.py" else _kept(inner)
    if root == "torch.libs":
        return f"lib/{inner}" if inner else None
    if root.startswith("torch-") and root.endswith(".dist-info"):
        return METADATA_FILE if inner == "METADATA" else None
    return _kept(member)


def place_nvidia(member: str) -> str | None:
    """The place of a member of one of NVIDIA's packages: its libraries go beside torch's."""
    parts = PurePosixPath(member).parts
    is_library = len(parts) > 2 and parts[-2] == "lib" and ".so" in parts[-1]
    return f"lib/{parts[-1]}" if parts[:1] == ("nvidia",) and is_library else None


def _kept(inner: str) -> str | None:
    top, slash, rest = inner.partition("/")
    if not slash:
        return inner if inner in _FILES else None
    if top == "bin":
        return inner if rest.startswith(_PROGRAMS) else None
    return inner if top in _FOLDERS and rest else None


def settle(folder: Path, wanted: str | None, where: str) -> Contents:
    """Complete a folder that was filled with members, and determine its version and variant.

    ``build-version`` is written if only a package's files give the version. ``where`` names the
    origin in messages.

    Raises:
        LibtorchError: The files do not give the version or variant.
    """
    package = _take(folder / VERSION_FILE)
    facts = version_facts(package)
    version = installed_version(folder) or str(facts.get("__version__") or "")
    version = version or _cmake_version(folder)
    if not version:
        raise LibtorchError(
            f"{where} does not say which version of torch it is: there is no {BUILD_VERSION}",
            hint="take an archive from the PyTorch site, or let fdl choose: fdl libtorch install",
        )
    contents = identify(
        version,
        cuda=facts.get("cuda"),
        has_cuda=any((folder / "lib").glob("*torch_cuda*")),
        wanted=wanted,
        where=where,
    )
    for name, text in ((BUILD_VERSION, version), ("build-hash", facts.get("git_version"))):
        # An existing file may be a link to a file outside, so it is not overwritten.
        if text and not (folder / name).exists():
            (folder / name).write_text(f"{text}\n", encoding="utf-8")
    return contents


def nvidia_requirements(folder: Path) -> list[str]:
    """The NVIDIA packages that a package requires, as in its metadata, which is deleted then."""
    return nvidia_only(
        line.removeprefix("Requires-Dist:").strip()
        for line in _take(folder / METADATA_FILE).splitlines()
        if line.startswith("Requires-Dist:")
    )


def nvidia_only(requirements: Iterable[str]) -> list[str]:
    """The requirements that provide libraries of CUDA."""
    return [one for one in requirements if re.match(r"(nvidia-|cuda-toolkit\b)", one)]


def _take(file: Path) -> str:
    text = text_of(file)
    file.unlink(missing_ok=True)
    return text


def _cmake_version(folder: Path) -> str:
    """The version in the CMake files; the oldest archives have no ``build-version``."""
    file = folder / "share" / "cmake" / "Torch" / "TorchConfigVersion.cmake"
    match = re.search(r'PACKAGE_VERSION "([^"]+)"', text_of(file))
    return match[1] if match else ""
