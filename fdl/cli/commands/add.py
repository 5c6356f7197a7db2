"""``fdl add flodl-hf`` and ``fdl adopt SCRIPT``: what fdl adds to a project that exists already."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fdl.base import output
from fdl.base.errors import UsageError
from fdl.base.units import counted
from fdl.cli.commands.verb import Context, DryRun, Group, Verb
from fdl.manifest.source import shown
from fdl.scaffold.add import (
    FOLDER,
    Installation,
    Playground,
    choose,
    installation,
    playground as make_playground,
)
from fdl.scaffold.add_requirement import EXTRAS
from fdl.scaffold.adopt import adopted

if TYPE_CHECKING:
    from collections.abc import Sequence

verbs = Group()

STEPS = (
    (f"fdl {FOLDER} build", "installs what it needs"),
    (f"fdl {FOLDER} classify", "labels three sentences; says first what it downloads"),
    (f"fdl {FOLDER} classify -- tiny", "the same without a network, by a random model"),
)
"""What to do with a playground, and why."""


@verbs.command("add", cls=Verb)
def add(
    ctx: Context,
    target: Annotated[  # noqa: ARG001
        Literal["flodl-hf", "hf"], typer.Argument(help="What to add; both names mean the same")
    ],
    playground: Annotated[
        bool,
        typer.Option(
            "--playground", help="Create flodl-hf/ with models to try, and a command for it"
        ),
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="Add flodl with its extra `hf` to the requirements")
    ] = False,
    flavor: Annotated[
        Literal["full", "vision", "offline"] | None,
        typer.Option(
            help="With --install: full (default), vision (no tokenizers), offline (no network)"
        ),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Add support for Hugging Face models to a project.

    Without --playground and --install, fdl asks. The version is the one that the project uses. For
    a range it is the locked or installed version.

    Returns:
        0; 1 where the answer is to add nothing.

    Raises:
        FdlError: Nobody says what to add, or the project cannot have it.
    """
    parts = choose(playground=playground, install=install, yes=ctx.obj.yes)
    if parts is None:
        output.note("nothing was added")
        return 1
    if flavor is not None and not parts.install:
        raise UsageError(
            "`--flavor` says what `--install` demands; the playground needs everything",
            hint=f"fdl add {FOLDER} --install --flavor {flavor}",
        )
    root = Path.cwd()
    extra = EXTRAS[flavor or "full"]
    demand = installation(root, extra, os.environ) if parts.install else None
    folder = make_playground(root, os.environ) if parts.playground else None
    unpinned = {one.host for one in (demand, folder) if one and one.host}
    for host in unpinned:
        if not host.can_be_had:
            # No index has it.
            output.note(f"flodl {host.version} is a development version, so it is not pinned")
    if demand is not None:
        _install(demand, extra, dry_run=dry_run)
    if folder is not None:
        _play(folder, dry_run=dry_run)
    return 0


def report(verb: str, folder: Playground, files: Sequence[str], prefix: str = "") -> None:
    """Print what a playground consists of.

    Args:
        verb: ``Created`` or ``Would create``.
        folder: The playground.
        files: Its files.
        prefix: What leads to the project, with a slash; empty where one is in it.
    """
    sys.stdout.write(f"{verb} {prefix}{FOLDER}/ with {len(files)} files:\n")
    sys.stdout.writelines(f"  {prefix}{FOLDER}/{file}\n" for file in files)
    verb = "Would add" if verb.startswith("Would") else "Added"
    if folder.new:
        sys.stdout.write(f"{verb} the command `{FOLDER}` to {prefix}fdl.yml, a new file\n")
    for change in folder.manifests:
        sys.stdout.write(f"{verb} the command `{FOLDER}` to {prefix}{change.file.name}\n")


def _install(demand: Installation, extra: str, *, dry_run: bool) -> None:
    change = demand.change
    name = change.file.name
    if change.before == change.after:
        output.note(f"{name} demands `{demand.requirement}` already, which has `{extra}`")
        return
    if not dry_run:
        change.write()
    sys.stdout.write(f"{'Would change' if dry_run else 'Changed'} {name}: {demand.requirement}\n")
    if not dry_run:
        sys.stdout.write("Next: install the project again, as by `fdl build`\n")


def _play(folder: Playground, *, dry_run: bool) -> None:
    if dry_run:
        report("Would create", folder, folder.files)
        return
    report("Created", folder, folder.write())
    print_next("", STEPS)


def print_next(folder: str, steps: Sequence[tuple[str, str]]) -> None:
    """Print what to type next, and why; in a folder, unless it is empty."""
    width = max(len(command) for command, _ in steps)
    change = f"  cd {folder}\n" if folder else ""
    sys.stdout.write(f"\nNext:\n{change}")
    sys.stdout.writelines(f"  {command:<{width}}  # {why}\n" for command, why in steps)


@verbs.command("adopt", cls=Verb)
def adopt(
    script: Annotated[Path, typer.Argument(help="The program, such as train.py")],
    dry_run: DryRun = False,
) -> int:
    """Write fdl.yml for an existing script. The script does not change and does not run.

    The manifest goes into the working directory if the script lies in it or below: it will run
    there, as before. Otherwise it goes beside the script. fdl reads the options from the source.
    The manifest lists them, has a first preset, and suggests patterns for metrics. An existing
    manifest is never changed.

    Raises:
        ScaffoldError: The script does not exist, or a manifest exists already.
    """
    made = adopted(script)
    if dry_run:
        output.write(sys.stdout, made.text)
        return 0
    made.write()
    options = counted(made.options, "option")
    sys.stdout.write(f"Created {shown(str(made.file))} for {script} ({options} read from it)\n")
    if not output.is_quiet():
        folder = "" if made.file.parent == Path.cwd() else shown(str(made.file.parent))
        steps = (
            (f"fdl {made.command} --help", "show its options and presets"),
            (f"fdl -n {made.command} {made.preset}", "show what would run"),
            (f"fdl {made.command} {made.preset}", "run it"),
        )
        print_next(folder, steps)
    return 0
