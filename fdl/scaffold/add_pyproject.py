"""Edit the requirements in ``pyproject.toml`` and ``requirements.txt``, and nothing else.

A changed ``pyproject.toml`` is read again: it must have the same content, plus the change.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from fdl.errors import ScaffoldError
from fdl.scaffold import add_requirement
from fdl.scaffold.add_toml import Table, Value, find, layout, text_of

PROJECT = ("project",)
LIST = ("project", "dependencies")

_COMMENT = re.compile(r"(?:^|\s)#.*\Z")


def parse(text: str) -> dict[str, Any]:
    """Read ``pyproject.toml``.

    Raises:
        ScaffoldError: It is not valid TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ScaffoldError(
            f"pyproject.toml is not valid TOML: {problem}", hint="mend it, then try again"
        ) from None


def dependencies(document: dict[str, Any]) -> list[str] | None:
    """The list ``[project].dependencies``; None if there is none.

    Raises:
        ScaffoldError: It exists, but is not a list of strings.
    """
    project = document.get("project", {})
    found = project.get("dependencies") if isinstance(project, dict) else {}
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ScaffoldError(
            "`[project].dependencies` in pyproject.toml is no list of texts",
            hint='write it as dependencies = ["flodl"]',
        )
    return found


def with_extra(text: str, extra: str) -> str:
    """``pyproject.toml`` with an extra added to every requirement on flodl in its list.

    Raises:
        ScaffoldError: It cannot be changed without changing anything else.
    """
    document = parse(text)
    wanted = copy.deepcopy(document)
    names: list[str] = wanted["project"]["dependencies"]
    array = find(layout(text), LIST)
    edits: list[tuple[int, int, str]] = []
    for place, item in enumerate(array.items if array else []):
        requirement = add_requirement.parse(names[place])
        if requirement is not None and not requirement.has(extra):
            names[place] = requirement.with_extra(extra)
            edits.append((item.start, item.end, _respelled(text, item, names[place])))
    for start, end, new in reversed(edits):
        text = text[:start] + new + text[end:]
    return _proven(text, wanted)


def with_requirement(text: str, requirement: str, folder: str) -> str:
    """``pyproject.toml`` with one more requirement in its list; a missing list is created.

    Args:
        text: The file.
        requirement: The requirement to add.
        folder: Name for the project if the file gives none.

    Raises:
        ScaffoldError: It cannot be changed without changing anything else.
    """
    document = parse(text)
    wanted = copy.deepcopy(document)
    tables = layout(text)
    array = find(tables, LIST)
    newline = "\r\n" if "\r\n" in text else "\n"
    if array is not None:
        wanted["project"]["dependencies"].append(requirement)
        return _proven(_appended(text, array, json.dumps(requirement), newline), wanted)
    line = f"dependencies = [{json.dumps(requirement)}]"
    there = _in_project(text, tables, line, newline)
    if there is not None:
        wanted["project"]["dependencies"] = [requirement]
        return _proven(there, wanted)
    # Tools require a name and a version of a project.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder).strip("-_.") or "project"
    made = {"name": name, "version": "0.1.0", "dependencies": [requirement]}
    wanted["project"] = {**wanted.get("project", {}), **made}
    start = "" if not text or text.endswith("\n") else newline
    gap = newline if text.strip() else ""
    lines = ("[project]", f"name = {json.dumps(name)}", 'version = "0.1.0"', line, "")
    return _proven(f"{text}{start}{gap}{newline.join(lines)}", wanted)


def _in_project(text: str, tables: list[Table], line: str, newline: str) -> str | None:
    """The text with one more line in the table of the project; None if it has no such table."""
    for table in tables:
        if table.path == PROJECT:
            return _line_after(text, table.end, line, newline)
        for key, value in table.entries:
            if not table.path and key == PROJECT and value.entries:
                last = value.entries[-1][1].end
                return f"{text[:last]}, {line}{text[last:]}"
    dotted = [value.end for key, value in tables[0].entries if key[:1] == PROJECT]
    if dotted:
        return _line_after(text, dotted[-1], f"project.{line}", newline)
    return None


def _line_after(text: str, end: int, line: str, newline: str) -> str:
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop - (text[stop - 1] == "\r")
    return f"{text[:stop]}{newline}{line}{text[stop:]}"


def _appended(text: str, array: Value, item: str, newline: str) -> str:
    """The text with one more item in an array, in the layout of its last item."""
    if not array.items:
        return f"{text[: array.start + 1]}{item}{text[array.start + 1 :]}"
    last = array.items[-1]
    if text[last.start] == "'" and "'" not in item:
        item = f"'{json.loads(item)}'"
    comma = _comma(text, last.end, array.end - 1)
    line_start = text.rfind("\n", 0, last.start) + 1
    indent = text[line_start : last.start]
    on_own_line = line_start > array.start and not indent.strip()
    separator = f"{newline}{indent}" if on_own_line else " "
    at = last.end if comma is None else comma + 1
    head = text[:at] + ("," if comma is None else "")
    rest = text[at : array.end - 1]
    closing = "" if comma is None else ","
    if on_own_line and "\n" in rest:
        # Text after the last item on its line, such as a comment, belongs to that item.
        kept, _, below = rest.partition("\n")
        kept = kept.removesuffix("\r")
        return f"{head}{kept}{separator}{item}{closing}{newline}{below}{text[array.end - 1 :]}"
    return f"{head}{separator}{item}{closing}{text[at:]}"


def _comma(text: str, start: int, end: int) -> int | None:
    """Offset of the comma between an item and the closing bracket, not in comments."""
    blank = re.sub(r"#[^\n]*", lambda found: " " * len(found[0]), text[start:end])
    place = blank.find(",")
    return None if place < 0 else start + place


def _respelled(text: str, item: Value, new: str) -> str:
    """A string with another content, in its own quotes if possible."""
    raw = text[item.start : item.end]
    old = text_of(item, text)
    for width in (3, 1):
        if raw[:width] == raw[0] * width and raw[width:-width] == old:
            return f"{raw[:width]}{new}{raw[-width:]}"
    return json.dumps(new, ensure_ascii=False)


def _proven(text: str, wanted: dict[str, Any]) -> str:
    try:
        made = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        made = {}
    # Compare as text, because the number `nan` does not equal itself.
    if _said(made) != _said(wanted):
        raise ScaffoldError(
            "`[project].dependencies` in pyproject.toml cannot be changed without touching what "
            "is around it; nothing was written",
            hint="add the requirement by hand",
        )
    return text


def _said(value: Any) -> Any:
    """A value with mappings in a fixed order, and every leaf as text with its type."""
    if isinstance(value, dict):
        return {key: _said(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_said(one) for one in value]
    return repr(value)


# requirements.txt -----------------------------------------------------------------------------


def lines(text: str) -> Iterator[tuple[int, str]]:
    """The requirements in a ``requirements.txt``, each with its offset.

    Options, comments and checks after a requirement (``--hash``) are left out.
    """
    at = 0
    for line in text.splitlines(keepends=True):
        found = line.rstrip("\r\n")
        found = re.split(r"\s(?:--|\\)", _COMMENT.sub("", found), maxsplit=1)[0].rstrip(" \t\\")
        if found.strip() and not found.lstrip().startswith("-"):
            yield at, found
        at += len(line)


def lines_with_extra(text: str, extra: str) -> str:
    """``requirements.txt`` with an extra added to every requirement on flodl."""
    for at, line in reversed(list(lines(text))):
        requirement = add_requirement.parse(line)
        if requirement is not None and not requirement.has(extra):
            text = f"{text[:at]}{requirement.with_extra(extra)}{text[at + len(line) :]}"
    return text


def lines_with_requirement(text: str, requirement: str) -> str:
    """``requirements.txt`` with one more line."""
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text or text.endswith("\n") else newline
    return f"{text}{gap}{requirement}{newline}"
