"""Render a new project from ``templates/``, completely or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fdl.base.errors import ScaffoldError
from fdl.base.files import put, staging
from fdl.base.suggest import did_you_mean
from fdl.libtorch.catalog import artifacts, default_version
from fdl.libtorch.layout import WHEELS
from fdl.manifest.show import scalar


class Mode(Enum):
    """How a project runs."""

    MOUNTED = "mounted"
    """In containers that mount the libtorch of the project."""
    DOCKER = "docker"
    """In containers that contain everything."""
    NATIVE = "native"
    """With the Python and the torch of the machine."""

    @property
    def has_containers(self) -> bool:
        """Whether commands run in Docker."""
        return self is not Mode.NATIVE

    @property
    def layers(self) -> tuple[str, ...]:
        """The folders of ``templates/`` for such a project."""
        return ("project", "containers") if self.has_containers else ("project",)


def from_flags(*, docker: bool, native: bool, mounts_libtorch: bool) -> Mode:
    """The mode that the flags choose; without any it is native.

    Raises:
        ScaffoldError: The flags contradict each other.
    """
    if native and (docker or mounts_libtorch):
        flag = "--docker" if docker else "--mount-libtorch"
        raise ScaffoldError(
            f"`{flag}` and `--native` exclude each other; nothing was written",
            hint="leave out one of them",
        )
    if mounts_libtorch:
        return Mode.MOUNTED
    return Mode.DOCKER if docker else Mode.NATIVE


EXTRAS = ("actions", "pre-commit", "devcontainer")
"""Folders of ``templates/`` that ``fdl init --with`` adds."""


def extra_layers(names: str, mode: Mode) -> list[str]:
    """The folders of ``templates/`` that a list of names with commas asks for.

    Raises:
        ScaffoldError: There is no such name, or the project runs in containers of its own.
    """
    wanted = [one.strip() for one in names.split(",") if one.strip()]
    for one in wanted:
        if one not in EXTRAS:
            raise ScaffoldError(
                f"`--with {one}`: there are no such files; nothing was written",
                hint=did_you_mean(one, EXTRAS, f"use {', '.join(EXTRAS)}"),
            )
    if wanted and mode.has_containers:
        raise ScaffoldError(
            "`--with` adds files for a project without containers; nothing was written",
            hint="leave out --docker and --mount-libtorch",
        )
    return wanted


_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")
_NEEDED = ("flodl", "torch")

# Containers run Linux on every host.
_PLATFORM = "linux-x86_64"


def check_name(name: str) -> None:
    """Refuse a project name that is not suitable as a folder or package name.

    Raises:
        ScaffoldError: The name is empty, has characters other than letters, digits, ``-``, ``_``,
            or is that of a package that the project needs.
    """
    if not _NAME.match(name):
        raise ScaffoldError(
            f"`{name}` is not a project name: use letters, digits, `-` and `_` only",
            hint="for example: fdl init my-model",
        )
    if name.strip("-_").lower() in _NEEDED:
        raise ScaffoldError(
            f"`{name}` is the name of a package that the project needs",
            hint="for example: fdl init my-model",
        )


def is_released(version: str) -> bool:
    """Whether an index has a version of flodl, so that a project can be pinned to it."""
    return "dev" not in version and "+" not in version


def values(name: str, mode: Mode, version: str) -> Values:
    """All values that templates may use; a released ``version`` of flodl becomes a pin."""
    torch = default_version()
    cuda = artifacts(torch, _PLATFORM)[-1]
    # Package names begin and end with a letter or digit. Image names have no capitals and no two
    # signs in a row.
    distribution = name.strip("-_") or "project"
    return {
        "name": name,
        # `2024` and `true` are names, too.
        "description": scalar(name),
        "distribution": distribution,
        "image": re.sub(r"[-_]+", "-", distribution).lower(),
        "requirement": f"flodl[train]=={version}" if is_released(version) else "flodl[train]",
        "containers": mode.has_containers,
        "mounted": mode is Mode.MOUNTED,
        "baked": mode is Mode.DOCKER,
        "cpu_dockerfile": "Dockerfile.cpu" if mode is Mode.DOCKER else "Dockerfile",
        "torch": torch,
        "cuda_version": cuda.cuda or "",
        "cuda_variant": cuda.variant,
        "wheels": WHEELS,
    }


Values = Mapping[str, str | bool]
"""The values that templates may use."""


def templates_dir() -> Path:
    """The folder of the project skeletons: that of the checkout, else that in the wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parent.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "templates").is_dir():
        return checkout / "templates"
    return package / "templates"


def refuse_existing(target: Path) -> None:
    """Check that no file, folder or dangling link has the project's name.

    Raises:
        ScaffoldError: The name is taken.
    """
    if os.path.lexists(target):
        raise ScaffoldError(
            f"{target} exists already; nothing was written",
            hint="choose another name, or remove it first",
        )


def render(layers: Sequence[str], target: Path, values: Values) -> list[str]:
    """Write the project ``target`` from folders of ``templates/``; returns the files, sorted.

    The files are made in a temporary folder beside the target, which is then renamed. So an
    interrupted or failing call leaves nothing behind. ``dot-x`` becomes ``.x``; ``x.j2`` is
    rendered to ``x``, and names may contain ``{{ values }}`` too. Files that begin with ``#!``
    become executable.

    Raises:
        ScaffoldError: The target exists, or its parent cannot be written.
    """
    refuse_existing(target)
    try:
        with staging(target.parent) as folder:
            written = _fill(layers, folder, values)
            folder.rename(target)
    except OSError as error:
        # Another process may have created it meanwhile.
        refuse_existing(target)
        raise ScaffoldError(
            f"cannot write {target}: {error.strerror}",
            hint="change to a folder you may write to, with free space",
        ) from None
    return written


def list_files(layers: Sequence[str], values: Values) -> list[str]:
    """The files that :func:`render` would write, relative to its target and sorted."""
    engine = _engine()
    return sorted(name for name, _ in _files(engine, layers, values))


def _engine() -> Environment:
    return Environment(  # noqa: S701 - the output is source code, not HTML
        loader=FileSystemLoader(templates_dir()),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )


def _files(engine: Environment, layers: Sequence[str], values: Values) -> Iterator[tuple[str, str]]:
    """The name of every file to write, and that of its template."""
    for template in sorted(engine.list_templates()):
        layer, _, path = template.partition("/")
        if layer in layers and "__pycache__" not in path:
            name = engine.from_string(path.removesuffix(".j2")).render(values)
            yield re.sub(r"(^|/)dot-", r"\1.", name), template


def _fill(layers: Sequence[str], staging: Path, values: Values) -> list[str]:
    engine = _engine()
    written = []
    for name, template in _files(engine, layers, values):
        if template.endswith(".j2"):
            text = engine.get_template(template).render(values)
        else:
            text = (templates_dir() / template).read_text(encoding="utf-8")
        # As bytes: shells and containers need these line ends, on every system.
        put(staging / name, text.encode(), 0o777 if text.startswith("#!") else 0o666)
        written.append(name)
    return sorted(written)
