"""The help page of a program that declares its arguments."""

from __future__ import annotations

import re

from fdl.base.layout import Page, Row
from fdl.manifest.words import ALL_GROUPS
from fdl.programs.parameters.layout import argument_rows, option_tables, slots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.base.output import Palette
    from fdl.programs.parameters.parameter import Parameter


def usage(program: str, parameters: Sequence[Parameter]) -> str:
    """How a program is called: ``python main.py [OPTIONS] <data>``."""
    return " ".join([program, "[OPTIONS]", *slots(parameters)])


def render(
    program: str,
    description: str,
    parameters: Sequence[Parameter],
    collapsed: Mapping[str, str],
    group: str = "",
    *,
    version: bool,
    palette: Palette,
    width: int,
) -> str:
    """One page: usage, description, arguments, options.

    A group is shown alone; ``all`` shows every group in full.

    Raises:
        UsageError: No option has this group.
    """
    page = Page(palette, width)
    page.usage(usage(program, parameters))
    if group in ("", ALL_GROUPS):
        for paragraph in filter(str.strip, re.split(r"\n\s*\n", description)):
            page.prose(paragraph)
        page.table("Arguments", argument_rows(parameters))
    common = [Row("-V, --version", "Show the version")] if version else []
    for heading, rows in option_tables(parameters, collapsed, common, group):
        page.table(heading, rows)
    return page.render()
