"""What ranks compare before the first step: settings, model, data, source code and packages.

A signature is JSON, so that ranks can exchange it in any way.
"""

from __future__ import annotations

import platform
import sys
import sysconfig
from contextlib import suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flodl.errors import DistributedError
from flodl.ranks.group import host_name
from flodl.ranks.launch.launcher import detect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType

    from flodl.ranks.group import Group

Signature: TypeAlias = "dict[str, Any]"
"""``host``, ``settings``, ``code`` and ``packages``; the last three are mappings by name."""

_AGAIN = "start the same program with the same arguments everywhere"


def signature(facts: Mapping[str, object], *, files: bool = True) -> Signature:
    """Make the signature of this rank.

    Args:
        facts: JSON values by name that must be equal on all ranks: settings, model, data.
        files: Whether to read the source code and the versions of the packages as well.
    """
    return {
        "host": host_name(),
        "settings": dict(facts),
        "code": _code() if files else {},
        "packages": _packages() if files else {},
    }


def reads_files(environ: Mapping[str, str]) -> bool:
    """Whether this rank compares files: the first rank of each of several hosts does."""
    launched = detect(environ)
    if launched is None or launched.local_world_size == launched.world_size:
        return False
    return launched.local_rank == 0


def check_same(group: Group, mine: Signature) -> None:
    """Check that all ranks describe the same training; collective.

    Ranks that join later compare themselves with what the group keeps.

    Raises:
        DistributedError: Something differs; the message names it on both ranks.
    """
    group.signature = mine
    first, *others = group.gather_objects(mine)
    for rank, other in enumerate(others, 1):
        if told := difference(first, other, ("rank 0", f"rank {rank}")):
            raise DistributedError(told)


def difference(first: Signature, other: Signature, names: tuple[str, str]) -> str:
    """Name the first setting, file or package that differs, and what to do; empty if none does.

    Files and packages count only if both ranks have loaded them.

    Args:
        first: The signature of a rank.
        other: The signature of another one.
        names: Both ranks, for people.
    """
    apart = first["host"] != other["host"]
    one, two = (
        f"{rank} ({it['host']})" if apart else rank
        for rank, it in zip(names, (first, other), strict=True)
    )
    for name, version in first["packages"].items():
        found = other["packages"].get(name, version)
        if found != version:
            remedy = f"pip install {name}=={version}"
            if name == "python":
                remedy = f"make its virtual environment with Python {version}"
            return (
                f"the ranks use different packages: {name} is {version} on {one} and {found} on "
                f"{two}; on {other['host']}: {remedy}"
            )
    for name, (path, digest) in first["code"].items():
        if other["code"].get(name, (path, digest))[1] != digest:
            return (
                f"the ranks run different code: {path} on {one} and {other['code'][name][0]} on "
                f"{two} differ; bring both to the same revision: git pull, or fdl --sync"
            )
    for name, value in first["settings"].items():
        if other["settings"].get(name) != value:
            return (
                f"the ranks were started with different settings: {name} is {value!r} on {one} and "
                f"{other['settings'].get(name)!r} on {two}; {_AGAIN}"
            )
    return ""


def _code() -> dict[str, tuple[str, str]]:
    """Module -> its file and the digest of it, without installed modules."""
    found = {}
    for name, file in _loaded():
        if file is not None:
            with suppress(OSError):
                found[name] = (str(file), sha256(file.read_bytes()).hexdigest()[:16])
    return found


def _packages() -> dict[str, str]:
    """Version of Python and of each installed package that is loaded, without its build."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name, file in _loaded():
        if file is not None or "." in name:
            continue
        version = vars(sys.modules[name]).get("__version__")
        if version is None:
            with suppress(metadata.PackageNotFoundError, ValueError):
                version = metadata.version(name)
        if isinstance(version, str):
            # torch for a GPU and torch for the CPU are of one version: 2.9.0+cu128, 2.9.0+cpu.
            found[name] = str(version).partition("+")[0]
    return found


def _loaded() -> Iterator[tuple[str, Path | None]]:
    """The modules that are loaded; with the file of those that are source code of the user."""
    paths = sysconfig.get_paths()
    standard = paths["stdlib"], paths["platstdlib"]
    installed = paths["purelib"], paths["platlib"]
    for name, module in sorted(sys.modules.items()):
        file = _file_of(module)
        if file is None:
            continue
        if str(file).startswith(installed) or "site-packages" in file.parts:
            yield name, None
        elif not str(file).startswith(standard):
            yield "__main__" if name == "__mp_main__" else name, file


def _file_of(module: ModuleType | None) -> Path | None:
    # Modules may answer any attribute; only their own dictionary says what they are.
    file = getattr(module, "__dict__", {}).get("__file__")
    if not isinstance(file, str) or not file:
        return None
    return Path(file) if Path(file).suffix in (".py", ".so", ".pyd") else None
