"""The built-in commands as one Typer application.

The module of a command is imported when its name is typed. So is that of a command of a group.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from fdl.base import output
from fdl.base.errors import UsageError
from fdl.base.layout import Row, terminal_width
from fdl.base.suggest import did_you_mean
from fdl.cli.builtins import children, document, find, is_open, schema, summary, usage
from fdl.cli.commands.verb import Call, Commands, in_module
from fdl.manifest.builtins import BUILTINS, PROGRAMS
from fdl.programs.parameters.document import is_asked
from fdl.programs.parameters.parser import RefusedError, argument_rows, option_tables, read_words

if TYPE_CHECKING:
    from fdl.cli.prepass import Invocation
    from fdl.plan.planner import Host
    from fdl.programs.parameters.contract import Schema

# What its parser refuses. Typer exports this class of click under no name of its own.
_Refused: type[Exception] = typer.BadParameter.__bases__[0]

_IN_A_MODULE_OF = {
    **dict.fromkeys(PROGRAMS, "bundled"),
    **dict.fromkeys(("setup", "diagnose"), "machine"),
    "adopt": "add",
}


class Builtins(TyperGroup):
    """The built-in commands. Naming one imports its module."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{**more, "commands": Commands(BUILTINS, _built)})


def _built(name: str) -> Any:
    return in_module(_IN_A_MODULE_OF.get(name, name.replace("-", "_")), name)


app = typer.Typer(cls=Builtins, add_completion=False)


@app.callback()
def fdl() -> None:
    """Run, track and resume deep-learning projects from one config file."""


def run(invocation: Invocation, host: Host | None = None) -> int:
    """Run one built-in command.

    Args:
        invocation: A command line whose first token names a built-in command.
        host: Where commands are taken to run; looked up when omitted.

    Returns:
        0 for success and requested help, 1 for an unknown command of a group, 2 for refused
        arguments.

    Raises:
        FdlError: Whatever the command raises.
    """
    names, tail = find(invocation.tokens)
    below, program = children(names), names[0] in PROGRAMS
    if not program and (invocation.help or (below and not tail)):
        return _print_page(names, schema(names), below)
    if not program and is_asked(tail):
        output.write(sys.stdout, json.dumps(document(names), indent=2) + "\n")
        return 0
    if below and not tail[0].startswith("-"):
        return _unknown(names, tail[0], below)
    group: Any = get_command(app)
    try:
        call = Call(invocation, host)
        with group.make_context("fdl", [*names, *tail], obj=call) as context:
            code: int = group.invoke(context)
    except RefusedError as problem:
        return _refuse(names, str(problem))
    except _Refused as problem:
        return _refuse(names, _message(names, tail, problem))
    except UsageError as problem:
        problem.exit_code = 2
        raise
    return code


def _print_page(names: list[str], known: Schema, below: list[str]) -> int:
    """Print a help page from the table; no module of a command is imported for it."""
    from fdl.base.tables import Page

    page = Page(output.palette(sys.stdout), terminal_width(sys.stdout))
    page.usage(usage(names))
    page.prose(known.description)
    page.table("Commands", [Row(name, summary(*names, name)) for name in below])
    page.table("Arguments", [] if below else argument_rows(known.parameters))
    for heading, rows in option_tables(known.parameters, {}, ()):
        page.table(heading, rows)
    output.write(sys.stdout, page.render())
    return 0


def _unknown(names: list[str], word: str, known: list[str]) -> int:
    typed = " ".join(names)
    hint = did_you_mean(word, known, f"it has {', '.join(known)}", typed=f"fdl {typed} {{}}")
    output.error(f"unknown command: {typed} {word}", hint)
    output.see(usage(names), f"fdl {typed}")
    return 1


def _message(names: list[str], tail: list[str], problem: Any) -> str:
    """What is wrong with some arguments, in the words of programs with ``FdlArgs``."""
    try:
        if not is_open(names):
            read_words(schema(names).parameters, tail, {})
    except RefusedError as refused:
        return str(refused)
    message = str(problem.format_message()).replace("'", "`").removesuffix(".")
    if message.startswith("Missing argument `"):
        return f"missing required argument <{message.split('`')[1]}>"
    return message[:1].lower() + message[1:]


def _refuse(names: list[str], message: str) -> int:
    output.error(message)
    output.see(usage(names), f"fdl {' '.join(names)}")
    return 2
