"""``fdl init NAME --native``: a new project that trains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fdl import __version__, output
from fdl.errors import UsageError
from fdl.scaffold import check_name, render


def init(
    name: Annotated[str, typer.Argument(help="Folder to create; also the project's name.")],
    native: Annotated[
        bool, typer.Option("--native", help="Python and torch of this machine, no containers.")
    ] = False,
) -> None:
    """Scaffold a project: a model to edit, a manifest, a test."""
    check_name(name)
    if not native:
        raise UsageError(
            "choose how the project runs; this version knows native projects",
            hint=f"fdl init {name} --native",
        )
    target = Path.cwd() / name
    requirement, remark = _requirement()
    written = render("native", target, {"name": name, "requirement": requirement})
    if remark:
        output.note(remark)
    sys.stdout.write(f"Created {name}/ with {len(written)} files:\n")
    sys.stdout.writelines(f"  {name}/{file}\n" for file in written)
    sys.stdout.write(
        f"\nNext:\n  cd {name}\n  fdl train quick    # a few epochs\n"
        "  fdl train          # the whole training; then change train/main.py\n"
        "  fdl --help         # the project's other commands\n"
    )


def _requirement() -> tuple[str, str]:
    """The project's requirement on flodl, and a remark when it is not pinned."""
    if "dev" in __version__ or "+" in __version__:
        return "flodl[train]", f"flodl {__version__} is a development version, so nothing is pinned"
    return f"flodl[train]=={__version__}", ""
