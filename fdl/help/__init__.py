"""Help pages: what ``--help`` shows for the project, a command, a preset and a run command."""

from fdl.help.layout import terminal_width
from fdl.help.pages import render

__all__ = ["render", "terminal_width"]
