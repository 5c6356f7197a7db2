"""``python -m flodl.hf COMMAND``: the program behind ``fdl flodl-hf``.

:mod:`flodl.hf.commands` has a class of FdlArgs and a function for each command. The manifest beside
this file describes each command in one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fdl.base import output
from fdl.base.errors import reason_of
from fdl.base.layout import Page, Row, terminal_width
from fdl.base.suggest import nearest
from fdl.programs.bundled import descriptions
from flodl.errors import FlodlError
from flodl.hf.ready import plain

SUCCESS, FAILED, REFUSED = 0, 1, 2
_USAGE = "python -m flodl.hf COMMAND [ARGS]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Name and arguments of the command; by default those of the process.

    Returns:
        0 for success, 1 for a failure, 2 for invalid arguments.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of the pipe has gone; the interpreter must not write again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return SUCCESS
    except (FlodlError, OSError, ValueError) as problem:
        output.error(plain(reason_of(problem)))
        return FAILED
    except KeyboardInterrupt:
        return 130


def _run(words: Sequence[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        output.write(sys.stdout, _page())
        return SUCCESS
    if name not in commands():
        return _refuse(name)
    # Imported here, because the list of commands must not wait for their arguments.
    from flodl.hf.commands import COMMANDS

    arguments, command = COMMANDS[name]
    return command(arguments.parse_or_schema(words[1:]))


def commands() -> dict[str, str]:
    """The name of each command -> what it does, in one line."""
    return descriptions(str(Path(__file__).parent))


def _refuse(name: str) -> int:
    close = nearest(name, commands())
    output.error(f"unknown command: {name}", f"did you mean `{close}`?" if close else "")
    output.see(_USAGE, "python -m flodl.hf")
    return REFUSED


def _page() -> str:
    page = Page(output.palette(sys.stdout), terminal_width(sys.stdout))
    page.usage(_USAGE)
    page.table("Commands", (Row(name, text) for name, text in commands().items()))
    page.table("Options", [Row("-h, --help", "Behind a command: what it takes")])
    return page.render()


if __name__ == "__main__":
    sys.exit(main())
