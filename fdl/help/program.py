"""The help page of a program that declares its arguments."""

from __future__ import annotations

from fdl.help.layout import Page, Row
from fdl.help.parameters import argument_rows, option_rows, slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.args.parameter import Parameter
    from fdl.output import Palette


def render(
    program: str,
    description: str,
    parameters: Sequence[Parameter],
    *,
    version: bool,
    palette: Palette,
    width: int,
) -> str:
    """One page: usage, description, arguments, options.

    Args:
        program: What to type to start it.
        description: What it is for; a blank line begins a new paragraph.
        parameters: What it takes.
        version: Whether it answers ``--version``.
        palette: Styles of the stream the page goes to.
        width: Columns of that stream.
    """
    page = Page(palette, width)
    page.usage(" ".join([program, "[OPTIONS]", *slots(parameters)]))
    for paragraph in _paragraphs(description):
        page.prose(paragraph)
    page.table("Arguments", argument_rows(parameters))
    common = [Row("-h, --help", "Show this page")]
    if version:
        common.append(Row("-V, --version", "Show the version"))
    page.table("Options", [*option_rows(parameters), *common])
    return page.render()


def _paragraphs(text: str) -> list[str]:
    """A docstring's paragraphs, each on one line."""
    paragraphs = [""]
    for line in text.splitlines():
        if line.strip():
            paragraphs[-1] += f" {line.strip()}"
        elif paragraphs[-1]:
            paragraphs.append("")
    return [paragraph.strip() for paragraph in paragraphs if paragraph]
