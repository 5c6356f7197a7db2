"""``fdl init NAME``: a new project that trains, in containers or without."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl import __version__, output, scaffold
from fdl.commands.add import STEPS, report
from fdl.errors import FdlError
from fdl.scaffold import Mode
from fdl.scaffold.add_playground import FOLDER, playground

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
    with_hf: bool = call.args.with_hf
    if mode is None:
        asks = not call.dry_run
        mode = scaffold.ask() if asks else Mode.MOUNTED
        with_hf = with_hf or (asks and scaffold.ask_for_playground())
    told = scaffold.values(name, mode, __version__)
    if call.dry_run:
        _print("Would create", name, mode, scaffold.list_files(mode.layers, told))
        if with_hf:
            sys.stdout.write(f"and {name}/{FOLDER}/, a playground for Hugging Face models\n")
        return 0
    written = scaffold.render(mode.layers, target, told)
    if not scaffold.is_released(__version__):
        output.note(f"flodl {__version__} is a development version, so nothing is pinned")
    _print("Created", name, mode, written)
    has_hf = with_hf and _add_playground(target)
    steps = (_FIRST[mode], *(STEPS if has_hf else ()), *_THEN)
    width = max(len(command) for command, _ in steps)
    sys.stdout.write(f"\nNext:\n  cd {name}\n")
    sys.stdout.writelines(f"  {command:<{width}}  # {why}\n" for command, why in steps)
    return 0


def _add_playground(target: Path) -> bool:
    """Add the playground; where that fails, the project is whole without it."""
    try:
        folder = playground(target, os.environ)
        report("Created", folder, folder.write(), f"{target.name}/")
    except FdlError as problem:
        output.warning(f"the playground was not added: {problem.message}", problem.hint)
        return False
    return True


def _print(verb: str, name: str, mode: Mode, files: Sequence[str]) -> None:
    sys.stdout.write(f"{verb} {name}/ ({_HOW[mode]}) with {len(files)} files:\n")
    sys.stdout.writelines(f"  {name}/{file}\n" for file in files)
