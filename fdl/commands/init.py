"""``fdl init NAME --native``: a new project that trains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl import __version__, output
from fdl.errors import UsageError
from fdl.scaffold import check_name, list_files, render

if TYPE_CHECKING:
    from fdl.app import Call


def init(call: Call) -> int:
    """Scaffold a project: a model to edit, a manifest, a test.

    Raises:
        FdlError: The name cannot be a folder's, the folder exists, or no mode was chosen.
    """
    name: str = call.args.name
    check_name(name)
    if not call.args.native:
        raise UsageError(
            "choose how the project runs; this version knows native projects",
            hint=f"fdl init {name} --native",
        )
    target = Path.cwd() / name
    requirement, remark = _requirement()
    if call.dry_run:
        files = list_files("native", target)
        sys.stdout.write(f"Would create {name}/ with {len(files)} files:\n")
        sys.stdout.writelines(f"  {name}/{file}\n" for file in files)
        return 0
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
    return 0


def _requirement() -> tuple[str, str]:
    """The project's requirement on flodl, and a remark when it is not pinned."""
    if "dev" in __version__ or "+" in __version__:
        return "flodl[train]", f"flodl {__version__} is a development version, so nothing is pinned"
    return f"flodl[train]=={__version__}", ""
