"""``fdl list``: every command of the project."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from fdl.base import output
from fdl.base.shell_words import join
from fdl.base.units import printable
from fdl.cli.commands.verb import Context, Group, Json, Verb, print_json
from fdl.cli.help import first_line
from fdl.manifest.builtins import RESERVED
from fdl.manifest.node import relative, texts
from fdl.manifest.select.level import RUN
from fdl.manifest.select.walk import BROKEN, Entry, survey

if TYPE_CHECKING:
    from rich.table import Table

verbs = Group()

# Folders that name each other in many ways multiply; nobody reads a list that long.
_LIMIT = 10_000


@verbs.command("list", cls=Verb)
def list_(ctx: Context, json: Json = False) -> int:
    """List every command of the project, one per line.

    Raises:
        ManifestError: There is no manifest, or the project's own is broken.
    """
    project = ctx.obj.project()
    walk = survey(project.level(), project.child, RESERVED)
    entries = list(islice(walk, _LIMIT))
    output.warnings(project.warnings)
    if next(walk, None):
        output.warning(f"the list ends after {_LIMIT} commands; folders name each other in circles")
    if json:
        return print_json(_as_json(entries, project.directory, project.env))
    if entries:
        output.show(_as_table(entries, project.directory))
    return 0


def _as_table(entries: list[Entry], root: str) -> Table:
    """One row per command."""
    from rich.text import Text

    from fdl.base.tables import TROUBLE, table

    rows = [
        (
            _printable(join(entry.names)),
            Text(entry.kind, style=TROUBLE if entry.kind == BROKEN else ""),
            _printable(_place(entry, root)),
            _words(entry),
        )
        for entry in entries
    ]
    return table(rows, styles=("cyan", "", "dim"))


def _as_json(entries: list[Entry], root: str, env: str | None) -> dict[str, object]:
    commands = [
        {
            "command": list(entry.names),
            "kind": entry.kind,
            "description": entry.description,
            "needs": texts(entry.spec, "needs"),
            "origin": _place(entry, root),
            "reason": entry.reason or None,
        }
        for entry in entries
    ]
    return {"env": env, "commands": commands}


def _place(entry: Entry, root: str) -> str:
    """Where the command's name stands; the entry itself may be an empty one."""
    spec = entry.spec
    return f"{relative(spec.file, root)}:{spec.key_line}:{spec.key_column}"


def _words(entry: Entry) -> str:
    """What a line ends in: the reason, the description, or the script that speaks for itself."""
    if entry.reason:
        return _printable(entry.reason.splitlines()[0])
    words = entry.description or (first_line(entry.spec.get("run")) if entry.kind == RUN else "")
    needs = ", ".join(texts(entry.spec, "needs"))
    return _printable(f"{words} (needs {needs})" if needs else words)


def _printable(text: str) -> str:
    """One line, in which nothing steers the terminal."""
    return printable(" ".join(text.split()))
