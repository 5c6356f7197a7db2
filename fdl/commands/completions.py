"""``fdl completions`` and ``fdl autocomplete``: completion in the user's shell."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from fdl import output
from fdl.complete.start_up import block, read, replace, script, shell_of, start_file, with_block
from fdl.dispatch.compose import quote

if TYPE_CHECKING:
    from fdl.app import Call


def completions(call: Call) -> int:
    """Print the completion script of a shell."""
    output.write(sys.stdout, script(call.args.shell))
    return 0


def autocomplete(call: Call) -> int:
    """Put the lines that turn completion on into the start-up file of the user's shell.

    Raises:
        FdlError: The file cannot be read or written, or holds half a block.
    """
    shell = shell_of(os.environ)
    file = start_file(shell, os.environ)
    before = read(file)
    lines = block(shell)
    after = with_block(before, lines, file)
    if call.dry_run:
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
