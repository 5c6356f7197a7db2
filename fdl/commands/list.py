"""``fdl list``: every command of the project."""

from __future__ import annotations

import sys
from itertools import islice

from fdl import output
from fdl.commands import RESERVED
from fdl.dispatch.classify import RUN
from fdl.dispatch.compose import join
from fdl.dispatch.survey import BROKEN, Entry, survey
from fdl.help.layout import cells, columns, cut
from fdl.manifest.node import relative
from fdl.secrets import REDACTED, redact_tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.app import Call

SCHEMA_VERSION = 1

# Folders that name each other in many ways multiply; nobody reads a list that long.
_LIMIT = 10_000
_GAP = 2


def list_(call: Call) -> int:
    """Print one line per command: what to type, kind, place, description.

    Raises:
        ManifestError: There is no manifest, or the project's own is broken.
    """
    project = call.project()
    walk = survey(project.level(), project.child, RESERVED)
    entries = list(islice(walk, _LIMIT))
    for warning in project.warnings:
        output.warning(warning)
    if next(walk, None):
        output.warning(f"the list ends after {_LIMIT} commands; folders name each other in circles")
    if call.args.json:
        text = _as_json(entries, project.directory, project.env)
    else:
        width = columns(sys.stdout) if sys.stdout.isatty() else None
        text = _as_text(entries, project.directory, output.palette(sys.stdout), width)
    output.write(sys.stdout, project.without_secrets(text))
    return 0


def _as_text(entries: list[Entry], root: str, palette: output.Palette, width: int | None) -> str:
    """Aligned lines; on a terminal the last column ends at its edge, in a pipe it is whole."""
    rows = [
        (_printable(join(entry.names)), entry.kind, _printable(_place(entry, root)), _words(entry))
        for entry in entries
    ]
    wide = [max(cells(row[column]) for row in rows) for column in range(3)] if rows else []
    lines = []
    for name, kind, place, words in rows:
        styled = (
            palette.cyan(name),
            palette.red(kind) if kind == BROKEN else kind,
            palette.dim(place),
        )
        gaps = [
            " " * (most - cells(text) + _GAP)
            for text, most in zip((name, kind, place), wide, strict=True)
        ]
        line = "".join(text + gap for text, gap in zip(styled, gaps, strict=True))
        room = max(width - sum(wide) - _GAP * len(wide), _GAP) if width else cells(words)
        lines.append((line + cut(words, room)).rstrip())
    return "".join(f"{line}\n" for line in lines)


def _as_json(entries: list[Entry], root: str, env: str | None) -> str:
    import json

    document = {
        "schema_version": SCHEMA_VERSION,
        "env": env,
        "commands": [
            {
                "command": list(entry.names),
                "kind": entry.kind,
                "description": entry.description,
                "origin": _place(entry, root),
                "reason": entry.reason or None,
            }
            for entry in entries
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _place(entry: Entry, root: str) -> str:
    """Where the command's name stands; the entry itself may be an empty one."""
    spec = entry.spec
    return f"{relative(spec.file, root)}:{spec.key_line}:{spec.key_column}"


def _words(entry: Entry) -> str:
    """What a line ends in: the reason, the description, or the script that speaks for itself."""
    if entry.reason:
        return _printable(entry.reason.splitlines()[0])
    if entry.description:
        return _printable(entry.description)
    return _printable(_script(entry)) if entry.kind == RUN else ""


def _script(entry: Entry) -> str:
    run = entry.spec.get("run")
    lines = str(run.value).strip().splitlines() if run else []
    if run and run.secret:
        return REDACTED
    first = " ".join(redact_tokens(lines[0].split(" "))) if lines else ""
    return f"{first} ..." if len(lines) > 1 else first


def _printable(text: str) -> str:
    """One line, in which nothing steers the terminal."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in " ".join(text.split())
    )
