"""The whole command line as a Typer application, ``app``, for programs and for ``CliRunner``.

Global flags and the commands of a manifest are included.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from fdl.cli.commands.application import Builtins
from fdl.cli.entry import main

if TYPE_CHECKING:
    from collections.abc import Sequence


class CommandLine(Builtins):
    """Runs a command line as the program ``fdl`` does."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,  # noqa: ARG002
        complete_var: str | None = None,  # noqa: ARG002
        standalone_mode: bool = True,
        windows_expand_args: bool = True,  # noqa: ARG002
        **extra: Any,  # noqa: ARG002
    ) -> Any:
        """Run a whole command line."""
        code = main(args)
        if standalone_mode:
            sys.exit(code)
        return code


app = typer.Typer(cls=CommandLine, add_completion=False)


@app.callback()
def fdl() -> None:
    """Run, track and resume deep-learning projects from one config file."""
