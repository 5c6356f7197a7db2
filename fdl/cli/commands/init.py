"""``fdl init NAME``: a new project that trains, without containers or in them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.cli.commands.add import STEPS, print_next, report
from fdl.cli.commands.verb import DryRun, Group, Verb
from fdl.machine import facts
from fdl.scaffold.add import FOLDER, playground
from fdl.scaffold.render import (
    Mode,
    check_name,
    extra_layers,
    from_flags,
    is_released,
    list_files,
    refuse_existing,
    render,
    values,
)
from fdl.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

verbs = Group()

_HOW = {
    Mode.MOUNTED: "Docker, libtorch mounted from this machine",
    Mode.DOCKER: "Docker, libtorch in the image",
    Mode.NATIVE: "no containers",
}

_FIRST = {
    Mode.MOUNTED: ("fdl setup", "install libtorch and build the images"),
    Mode.DOCKER: ("docker compose build dev", "build the image now, not at the first command"),
}
_TORCH = ("pip install 'flodl[train]'", "install PyTorch")

_THEN = (
    ("fdl train quick", "train for 3 epochs"),
    ("fdl train", "train for 10 epochs; then change train/main.py"),
    ("fdl --help", "list the project's commands"),
)


@verbs.command("init", cls=Verb)
def init(
    name: Annotated[str, typer.Argument(help="Folder to create; also the name of the project")],
    docker: Annotated[
        bool, typer.Option("--docker", help="Run in Docker, with torch in the image")
    ] = False,
    native: Annotated[
        bool, typer.Option("--native", help="Run on this machine, without containers (default)")
    ] = False,
    mount_libtorch: Annotated[
        bool,
        typer.Option(
            "--mount-libtorch", help="Run in Docker, with the libtorch of this machine mounted"
        ),
    ] = False,
    with_: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="NAMES",
            help="Add files for actions, pre-commit, devcontainer; separate names by commas",
        ),
    ] = "",
    with_hf: Annotated[
        bool, typer.Option("--with-hf", help="Add a playground for Hugging Face models")
    ] = False,
    dry_run: DryRun = False,
) -> int:
    """Create a project in a new folder. It runs on this machine, or in Docker with --docker.

    Raises:
        FdlError: The name cannot be a folder's, the folder exists, or the flags contradict.
    """
    check_name(name)
    mode = from_flags(docker=docker, native=native, mounts_libtorch=mount_libtorch)
    target = Path.cwd() / name
    refuse_existing(target)
    if mode.has_containers and shutil.which("docker") is None:
        output.warning(
            "docker is not found on this machine", f"without containers: fdl init {name}"
        )
    told = values(name, mode, __version__)
    layers = [*mode.layers, *extra_layers(with_, mode)]
    if dry_run:
        _print("Would create", name, mode, list_files(layers, told))
        if with_hf:
            sys.stdout.write(f"and {name}/{FOLDER}/, a playground for Hugging Face models\n")
        return 0
    written = render(layers, target, told)
    if not is_released(__version__):
        output.note(f"flodl {__version__} is a development version, so pyproject.toml has no pin")
    _print("Created", name, mode, written)
    has_hf = with_hf and _add_playground(target)
    if not output.is_quiet():
        print_next(name, [*_first(mode, target), *(STEPS if has_hf else ()), *_THEN])
    return 0


def _first(mode: Mode, target: Path) -> Iterator[tuple[str, str]]:
    """The step before the first training, with its purpose; none if torch is there."""
    if mode in _FIRST:
        yield _FIRST[mode]
    elif facts.find(target, os.environ).torch is None:
        yield _TORCH


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
    """Print what the project consists of; its files unless ``-q`` is given."""
    listed = [] if output.is_quiet() else [f"  {name}/{file}\n" for file in files]
    end = ":" if listed else ""
    sys.stdout.write(f"{verb} {name}/ ({_HOW[mode]}) with {len(files)} files{end}\n")
    sys.stdout.writelines(listed)
