"""Help pages: what ``--help`` shows for the project, a command, a preset and a run command."""

from fdl.base.layout import terminal_width
from fdl.cli.help.pages import render

__all__ = ["render", "terminal_width"]
