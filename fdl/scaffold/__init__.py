"""Rendering a new project from ``templates/``, all of it or none of it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from fdl.errors import ScaffoldError

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")


def templates_dir() -> Path:
    """The folder of the project skeletons: the checkout's own, else the one packed in the wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parent.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "templates").is_dir():
        return checkout / "templates"
    return package / "templates"


def check_name(name: str) -> None:
    """Refuse a project name that would make a surprising folder or package name.

    Raises:
        ScaffoldError: The name is empty or has other than letters, digits, ``-`` and ``_``.
    """
    if not _NAME.match(name):
        raise ScaffoldError(
            f"`{name}` is no project name: use letters, digits, `-` and `_` only",
            hint="for example: fdl init my-model --native",
        )


def render(skeleton: str, target: Path, values: Mapping[str, str]) -> list[str]:
    """Write the project ``target`` from one folder of ``templates/``.

    The files are made in a temporary neighbour which is then renamed, so that an interrupted or
    failing call leaves nothing behind. ``dot-x`` becomes ``.x``; ``x.j2`` is rendered to ``x``.

    Returns:
        The written files, relative to ``target``, sorted.

    Raises:
        ScaffoldError: The target exists, or its parent cannot be written.
    """
    _refuse_existing(target)
    source = templates_dir() / skeleton
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ScaffoldError(
            f"cannot write in {target.parent}: {error.strerror}",
            hint="change to a folder you may write to",
        ) from None
    try:
        written = _fill(source, staging, values)
        staging.chmod(0o777 & ~_umask())
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return written


def list_files(skeleton: str, target: Path) -> list[str]:
    """What :func:`render` would write, writing nothing.

    Raises:
        ScaffoldError: The target exists.
    """
    _refuse_existing(target)
    source = templates_dir() / skeleton
    return sorted(_written_name(path.relative_to(source)) for path in _files(source))


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise ScaffoldError(
            f"{target} exists already; nothing was written",
            hint="choose another name, or remove it first",
        )


def _files(source: Path) -> list[Path]:
    return [
        path
        for path in sorted(source.rglob("*"))
        if not path.is_dir() and "__pycache__" not in path.parts
    ]


def _written_name(path: Path) -> str:
    """Where a template's file goes: ``dot-x`` is ``.x``, and a rendered one loses its suffix."""
    parts = (
        "." + part.removeprefix("dot-") if part.startswith("dot-") else part for part in path.parts
    )
    return "/".join(parts).removesuffix(".j2")


def _fill(source: Path, staging: Path, values: Mapping[str, str]) -> list[str]:
    engine = Environment(  # noqa: S701 - the output is source code, not HTML
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    written = []
    for path in _files(source):
        name = _written_name(path.relative_to(source))
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".j2":
            text = engine.from_string(text).render(values)
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_text(text, encoding="utf-8")
        written.append(name)
    return written


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
