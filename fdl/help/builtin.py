"""The help pages of built-in commands."""

from __future__ import annotations

from fdl.help.layout import Page, Row
from fdl.help.parameters import argument_rows, option_rows, slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.commands.registry import Builtin
    from fdl.output import Palette


def render(builtin: Builtin, names: tuple[str, ...], palette: Palette, width: int) -> str:
    """One page: usage, arguments, options, commands.

    Args:
        builtin: The command.
        names: The words that name it.
        palette: Styles of the stream the page goes to.
        width: Columns of that stream.
    """
    page = Page(palette, width)
    typed = " ".join(("fdl", *names))
    options = [one for one in builtin.parameters if one.kind == "option"]
    words = [typed, *(["[OPTIONS]"] if options else []), *slots(builtin.parameters)]
    if builtin.children:
        words.append("<command>")
    page.usage(" ".join(words))
    page.prose(f"{builtin.help}.")
    page.table("Arguments", argument_rows(builtin.parameters))
    page.table("Commands", [Row(name, child.help) for name, child in builtin.children.items()])
    page.table("Options", [*option_rows(options), Row("-h, --help", "Show this page")])
    if builtin.notes:
        page.prose(builtin.notes)
    return page.render()
