"""``fdl init NAME``: a new project that trains, in containers or without."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl import __version__, output, scaffold
from fdl.scaffold import Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.app import Call

_HOW = {
    Mode.MOUNTED: "Docker, libtorch mounted from this machine",
    Mode.DOCKER: "Docker, libtorch in the image",
    Mode.NATIVE: "no containers",
}

_FIRST = {
    Mode.MOUNTED: ("fdl setup", "libtorch for this machine, and the images"),
    Mode.DOCKER: ("docker compose build dev", "the image; else the first command makes it"),
    Mode.NATIVE: ("fdl setup", "torch for this machine, where there is none yet"),
}

_THEN = (
    ("fdl train quick", "a few epochs"),
    ("fdl train", "the whole training; then change train/main.py"),
    ("fdl --help", "the project's other commands"),
)


def init(call: Call) -> int:
    """Scaffold a project: a model to edit, manifests, a test, what runs it.

    Raises:
        FdlError: The name cannot be a folder's, the folder exists, or the flags contradict.
    """
    name: str = call.args.name
    scaffold.check_name(name)
    mode = scaffold.from_flags(docker=call.args.docker, native=call.args.native)
    target = Path.cwd() / name
    scaffold.refuse_existing(target)
    if mode is None:
        mode = Mode.MOUNTED if call.dry_run else scaffold.ask()
    told = scaffold.values(name, mode, __version__)
    if call.dry_run:
        _print("Would create", name, mode, scaffold.list_files(mode.layers, told))
        return 0
    written = scaffold.render(mode.layers, target, told)
    if not scaffold.is_released(__version__):
        output.note(f"flodl {__version__} is a development version, so nothing is pinned")
    _print("Created", name, mode, written)
    steps = (_FIRST[mode], *_THEN)
    width = max(len(command) for command, _ in steps)
    sys.stdout.write(f"\nNext:\n  cd {name}\n")
    sys.stdout.writelines(f"  {command:<{width}}  # {why}\n" for command, why in steps)
    return 0


def _print(verb: str, name: str, mode: Mode, files: Sequence[str]) -> None:
    sys.stdout.write(f"{verb} {name}/ ({_HOW[mode]}) with {len(files)} files:\n")
    sys.stdout.writelines(f"  {name}/{file}\n" for file in files)
