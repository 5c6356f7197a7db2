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
    source = templates_dir() / skeleton
    if os.path.lexists(target):
        raise ScaffoldError(
            f"{target} exists already; nothing was written",
            hint="choose another name, or remove it first",
        )
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


def _fill(source: Path, staging: Path, values: Mapping[str, str]) -> list[str]:
    engine = Environment(  # noqa: S701 - the output is source code, not HTML
        undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    written = []
    for path in sorted(source.rglob("*")):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        name = "/".join(
            "." + part.removeprefix("dot-") if part.startswith("dot-") else part
            for part in path.relative_to(source).parts
        )
        text = path.read_text(encoding="utf-8")
        if name.endswith(".j2"):
            name = name.removesuffix(".j2")
            text = engine.from_string(text).render(values)
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        (staging / name).write_text(text, encoding="utf-8")
        written.append(name)
    return written


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
