"""The ``--help`` page and the ``--fdl-schema`` document of an argument class."""

from __future__ import annotations

import enum
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdl.args._fields import UNSET, Parameter

_VALUE_WORDS = {str: "TEXT", int: "INT", float: "FLOAT", Path: "PATH"}


def schema(description: str, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The JSON document of ``--fdl-schema``: arguments, options, and nothing empty."""
    document: dict[str, Any] = {"description": description} if description else {}
    arguments = [one for one in parameters if one.kind == "arg"]
    options = [one for one in parameters if one.kind == "option"]
    if arguments:
        document["args"] = [
            {
                "name": one.long,
                **_described(one),
                "required": one.required,
                **({"variadic": True} if one.variadic else {}),
            }
            for one in arguments
        ]
    if options:
        document["options"] = {
            one.long: {
                **_described(one),
                **({"short": one.short} if one.short else {}),
                **({"env": one.env} if one.env else {}),
            }
            for one in options
        }
    document["strict"] = True
    return document


def _described(one: Parameter) -> dict[str, Any]:
    row: dict[str, Any] = {"type": one.type_name}
    if one.help:
        row["description"] = one.help
    if one.default is not UNSET and one.default is not None:
        row["default"] = _plain(one.default)
    if one.choices:
        row["choices"] = [_plain(choice) for choice in one.choices]
    if one.completer:
        row["completer"] = one.completer
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool) else str(value)


def render(program: str, description: str, parameters: Sequence[Parameter]) -> str:
    """The help page, wrapped to the terminal."""
    width = max(60, min(shutil.get_terminal_size((80, 24)).columns, 120))
    arguments = [one for one in parameters if one.kind == "arg"]
    options = [one for one in parameters if one.kind == "option"]
    blocks = [textwrap.fill(description, width)] if description else []
    blocks.append("Usage: " + " ".join([program, "[OPTIONS]", *map(_slot, arguments)]))
    if arguments:
        rows = [(f"<{one.long}>", _notes(one)) for one in arguments]
        blocks.append("Arguments:\n" + _table(rows, width))
    rows = [(_left(one), _notes(one)) for one in options]
    rows.append(("-h, --help", "Show this help"))
    blocks.append("Options:\n" + _table(rows, width))
    return "\n\n".join(blocks) + "\n"


def _slot(one: Parameter) -> str:
    name = f"<{one.long}>" if one.required else f"[<{one.long}>]"
    return name + "…" if one.variadic else name


def _left(one: Parameter) -> str:
    short = f"-{one.short}, " if one.short else "    "
    value = "" if one.shape == "flag" else f" {_VALUE_WORDS[one.type]}"
    return f"{short}--{one.long}{value}"


def _notes(one: Parameter) -> str:
    notes = [one.help]
    if one.default is not UNSET and one.default is not None and one.default != []:
        word = "bare" if one.shape == "optional" and one.kind == "option" else "default"
        default = one.default
        text = ",".join(map(str, default)) if isinstance(default, list) else str(_plain(default))
        notes.append(f"[{word}: {text}]")
    if one.choices:
        notes.append(f"[possible: {', '.join(one.choice_texts())}]")
    if one.env:
        notes.append(f"[env: {one.env}]")
    if one.shape == "list" and one.kind == "option":
        notes.append("[repeatable, or separated by commas]")
    return " ".join(note for note in notes if note)


def _table(rows: Sequence[tuple[str, str]], width: int) -> str:
    left = min(max(len(name) for name, _ in rows), 30) + 4
    lines = []
    for name, notes in rows:
        wrapped = textwrap.wrap(notes, width - left) or [""]
        if len(name) + 4 > left:
            lines.append("  " + name)
            lines += [" " * left + line for line in wrapped if line]
        else:
            lines.append(("  " + name).ljust(left) + wrapped[0])
            lines += [" " * left + line for line in wrapped[1:]]
    return "\n".join(line.rstrip() for line in lines)
