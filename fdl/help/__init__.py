"""Help pages: what ``--help`` shows for the project, a command, a preset and a run command."""

from fdl.help.pages import render
from fdl.layout.page import terminal_width

__all__ = ["render", "terminal_width"]
