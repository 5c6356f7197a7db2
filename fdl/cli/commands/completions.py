"""``fdl completions`` and ``fdl autocomplete``: completion in the user's shell."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.shell_words import quote
from fdl.cli.commands.verb import DryRun, Group, Verb
from fdl.machine.self_install import (
    Shell,
    block,
    read,
    replace,
    script,
    shell_of,
    start_file,
    with_block,
)

verbs = Group()


@verbs.command("completions", cls=Verb)
def completions(
    shell: Annotated[Shell, typer.Argument(help="Shell that will run the script")] = Shell.BASH,
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
            hint="for bash, type: SHELL=bash fdl autocomplete",
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
