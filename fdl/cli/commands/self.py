"""``fdl self``: fdl on the PATH, completion in the user's shell, and texts about fdl and flodl."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.shell_words import quote
from fdl.cli.commands.verb import DryRun, Group, Json, Verb
from fdl.machine.completion import (
    Shell,
    block,
    read,
    replace,
    script,
    shell_of,
    start_file,
    with_block,
)
from fdl.machine.self_install import install as put, upgrade_command
from fdl.scaffold.api_ref.scan import scan
from fdl.scaffold.api_ref.select import as_json, as_list, as_text, public, select
from fdl.scaffold.api_ref.source import find

verbs = Group(
    "self",
    "Install fdl and its completion; print references, skills and schemas.",
    {"skill": "skill", "schema": "schema"},
)


@verbs.command("install", cls=Verb)
def install(dry_run: DryRun = False) -> int:
    """Put fdl on your PATH, and print the command that upgrades it.

    Raises:
        FdlError: What stands there is not ours, or cannot be replaced.
    """
    said = put(os.environ, dry_run=dry_run)
    output.write(sys.stdout, f"{said}To upgrade: {upgrade_command()}\n")
    return 0


@verbs.command("completions", cls=Verb)
def completions(
    shell: Annotated[Shell, typer.Argument(help="Shell that will run the script")] = "bash",
) -> int:
    """Print the completion script of a shell."""
    output.write(sys.stdout, script(shell))
    return 0


@verbs.command("autocomplete", cls=Verb)
def autocomplete(dry_run: DryRun = False) -> int:
    """Set up completion in the start-up file of your shell.

    The shell is the one in $SHELL. A second call replaces what the first one wrote.

    Raises:
        FdlError: The shell is not supported, or the file cannot be read or written, or holds half
            a block.
    """
    shell = shell_of(os.environ)
    if not shell:
        other = os.environ.get("SHELL")
        problem = f"completion does not work in {other}" if other else "SHELL is not set"
        raise FdlError(
            f"{problem}; it works in bash, zsh and fish; nothing was written",
            hint="for bash, type: SHELL=bash fdl self autocomplete",
        )
    file = start_file(shell, os.environ)
    before = read(file)
    lines = block(shell)
    after = with_block(before, lines, file)
    if dry_run:
        output.write(sys.stdout, f"Would write to {file}:\n\n{lines}")
        return 0
    if after == before:
        output.write(sys.stdout, f"{file} has completion for {shell} already.\n")
    else:
        replace(file, after)
        output.write(sys.stdout, f"Completion for {shell} is set up in {file}.\n")
    output.write(
        sys.stdout, f"Open a new shell, or load it in this one:\n  source {quote(str(file))}\n"
    )
    return 0


@verbs.command("api-ref", cls=Verb)
def api_ref(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Class, function, method or module to show: `Trainer`, `Trainer.builder`, "
            "`flodl.nn` (default: list the public names)"
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(help="Project folder or package to read, instead of the nearest flodl"),
    ] = None,
    json: Json = False,
) -> int:
    """List flodl's public classes and functions, or show one of them.

    Files that cannot be read are left out. It needs griffe: `pip install 'flodl[api-ref]'`.

    Raises:
        FdlError: The source was not found, or it has no class, function or module of this name.
    """
    package = find(path, Path.cwd(), os.environ)
    reference = scan(package)
    output.warnings(reference.problems)
    names = select(reference, name) if name else public(reference)
    if json:
        text = as_json(reference, names if name else None)
    else:
        palette = output.palette(sys.stdout)
        if name and len({one.path for one in names}) == 1:
            text = "\n".join(as_text(one, palette) for one in names)
        else:
            title = f"{package.name} {reference.version}, read from {package}"
            text = f"{palette.bold(title)}\n{as_list(names, palette)}"
    output.write(sys.stdout, text)
    return 0
