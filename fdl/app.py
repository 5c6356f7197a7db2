"""The Typer application of the built-in commands; imported only when one of them runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from fdl import __version__
from fdl.commands import BUILTINS, config
from fdl.commands.init import init

# Plain help: the pages of manifest commands have the same look, and rich would cost start-up time.
app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

GROUPS = {"config": config.app}
"""Built-ins that are groups of sub-commands."""

app.command("init", help=BUILTINS["init"] + ".")(init)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name, help=BUILTINS[_name] + ".")


@app.callback()
def _fdl() -> None:
    """The command line for deep-learning projects."""


@app.command("version", hidden=True)
def _version() -> None:
    """Print the version, like ``fdl --version``."""
    sys.stdout.write(f"flodl-cli {__version__}\n")


def run(tokens: Sequence[str]) -> int:
    """Run one built-in.

    Args:
        tokens: The built-in's name and its arguments.

    Returns:
        0 for success and requested help, 1 for an unknown sub-command, 2 for refused arguments.

    Raises:
        FdlError: Whatever the command raises.
    """
    name, *tail = tokens
    group = GROUPS.get(name)
    if group is not None and not tail:
        return _call([name, "--help"])
    if group is not None and not tail[0].startswith("-") and tail[0] not in _subcommands(group):
        return _unknown_subcommand(name, tail[0])
    return _call(tokens)


def _call(tokens: Sequence[str]) -> int:
    try:
        app(list(tokens), prog_name="fdl")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def _subcommands(group: typer.Typer) -> set[str]:
    named = (
        command.name or _callback_name(command.callback) for command in group.registered_commands
    )
    return {name for name in named if name}


def _callback_name(callback: object) -> str:
    return getattr(callback, "__name__", "").strip("_").replace("_", "-")


def _unknown_subcommand(name: str, word: str) -> int:
    """The group's help on stderr, as for an unknown command of a manifest."""
    from contextlib import redirect_stdout

    from fdl import output
    from fdl.suggest import nearest

    close = nearest(word, _subcommands(GROUPS[name]))
    output.error(
        f"unknown command: {name} {word}", f"did you mean `fdl {name} {close}`?" if close else ""
    )
    sys.stderr.write("\n")
    with redirect_stdout(sys.stderr):
        _call([name, "--help"])
    return 1
