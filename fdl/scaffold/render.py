"""Render a new project from ``templates/``, completely or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fdl.base.errors import ScaffoldError

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
    staging = None
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        written = _fill(layers, staging, values)
        staging.chmod(0o777 & ~_umask())
        staging.rename(target)
    except BaseException as error:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
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
            parts = engine.from_string(path.removesuffix(".j2")).render(values).split("/")
            yield "/".join(_plain(part) for part in parts), template


def _plain(part: str) -> str:
    return "." + part.removeprefix("dot-") if part.startswith("dot-") else part


def _fill(layers: Sequence[str], staging: Path, values: Values) -> list[str]:
    engine = _engine()
    written = []
    for name, template in _files(engine, layers, values):
        if template.endswith(".j2"):
            text = engine.get_template(template).render(values)
        else:
            text = (templates_dir() / template).read_text(encoding="utf-8")
        file = staging / name
        file.parent.mkdir(parents=True, exist_ok=True)
        # Shells and containers need these line ends, on whatever system the files were written.
        file.write_text(text, encoding="utf-8", newline="\n")
        if text.startswith("#!"):
            file.chmod(0o777 & ~_umask())
        written.append(name)
    return sorted(written)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
