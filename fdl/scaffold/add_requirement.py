"""The requirement on flodl in ``pyproject.toml`` or ``requirements.txt``: read and changed."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement as Parsed
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from fdl.base.errors import ScaffoldError

EXTRAS = {"full": "hf", "vision": "hf-vision", "offline": "hf-offline"}
"""Flavour -> the extra that provides it; each extra includes those after it."""

NAME = "flodl"

_HEAD = re.compile(r"\s*[\w.-]*\w(?:\s*(\[)[^\]]*?(?=[\s,]*\]))?")
"""The name and the extras, up to the place of one more extra."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement on flodl.

    Attributes:
        text: The text of the requirement.
        extras: Their names, normalised as by pip.
        specifier: The range of versions; empty for any.
        url: The source instead of an index; empty for an index.
    """

    text: str
    extras: tuple[str, ...]
    specifier: SpecifierSet
    url: str

    @property
    def pin(self) -> str | None:
        """The one allowed version; None for a range."""
        clauses = list(self.specifier)
        if len(clauses) != 1 or clauses[0].operator not in ("==", "==="):
            return None
        version = clauses[0].version
        return None if version.endswith(".*") else version

    def has(self, extra: str) -> bool:
        """Whether its extras include an extra."""
        names = list(EXTRAS.values())
        return any(one in self.extras for one in names[: names.index(extra) + 1])

    def with_extra(self, extra: str) -> str:
        """The text with one more extra and no other change."""

        def added(head: re.Match[str]) -> str:
            if head[1] is None:
                return f"{head[0]}[{extra}]"
            comma = ", " if ", " in head[0] else ","
            return f"{head[0]}{comma if self.extras else ''}{extra}"

        return _HEAD.sub(added, self.text, count=1)

    def allows(self, version: str) -> bool:
        """Whether a version is within the range; True if that cannot be decided."""
        try:
            # A checkout of the next version serves whoever asks for that version.
            both = (version, Version(version).base_version)
            return any(self.specifier.contains(one, prereleases=True) for one in both)
        except InvalidVersion:
            return True


def parse(text: str) -> Requirement | None:
    """Read one requirement; None if it is on another package or is not a requirement."""
    try:
        found = Parsed(text)
    except InvalidRequirement:
        return None
    if canonicalize_name(found.name) != NAME:
        return None
    extras = tuple(map(canonicalize_name, sorted(found.extras)))
    return Requirement(text, extras, found.specifier, found.url or "")


def parse_all(texts: Iterable[str]) -> list[Requirement]:
    """The requirements on flodl among some texts."""
    return [found for text in texts if (found := parse(text)) is not None]


_COMMENT = re.compile(r"(?:^|\s)#.*\Z")
_TOKEN = re.compile(
    r"#[^\n]*"
    r'|("""(?:[^"\\]|\\.|"(?!""))*"{3,5}'
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*')",
    re.DOTALL,
)
_TO_END_OF_LIST = re.compile(r"((?:[ \t\r\n]|#[^\n]*+|(,))*)\]")
_EMPTY_LIST = re.compile(r"\[(?=(?:[ \t\r\n]|#[^\n]*+)*\])")
_TABLE = re.compile(
    r"^[ \t]*\[[ \t]*(['\"]?)project\1[ \t]*\].*(?:\n(?![ \t]*\[).*)*", re.MULTILINE
)
_DOTTED = re.compile(r"^[ \t]*(['\"]?)project\1[ \t]*\..*", re.MULTILINE)
_ENTRY = re.compile(r"^[ \t]*[^#\s].*?(?=\r?$)", re.MULTILINE)
_END_OF_BRACES = re.compile(r"[ \t]*\}")


def parse_toml(text: str) -> dict[str, Any]:
    """Read ``pyproject.toml``.

    Raises:
        ScaffoldError: It is not valid TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ScaffoldError(
            f"pyproject.toml is not valid TOML: {problem}", hint="fix it, then try again"
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
            "`[project].dependencies` in pyproject.toml is not a list of texts",
            hint='write it as dependencies = ["flodl"]',
        )
    return found


def with_extra(text: str, extra: str) -> str:
    """``pyproject.toml`` with an extra added to every requirement on flodl in its list.

    Raises:
        ScaffoldError: It cannot be changed without changing anything else.
    """
    wanted = parse_toml(text)
    names: list[str] = wanted["project"]["dependencies"]
    for place, old in enumerate(names):
        requirement = parse(old)
        if requirement is not None and not requirement.has(extra):
            names[place] = requirement.with_extra(extra)
            text = _proven(_with_other_text(text, old, names[place]), wanted)
    return text


def with_requirement(text: str, requirement: str, folder: str) -> str:
    """``pyproject.toml`` with one more requirement in its list; a missing list is created.

    A project without a name gets that of its ``folder``.

    Raises:
        ScaffoldError: It cannot be changed without changing anything else.
    """
    wanted = parse_toml(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    listed = dependencies(wanted)
    if listed is not None:
        last = listed[-1] if listed else None
        listed.append(requirement)
        return _proven(_with_item(text, last, json.dumps(requirement), newline), wanted)
    line = f"dependencies = [{json.dumps(requirement)}]"
    project = wanted.get("project", {})
    wanted["project"] = {**project, "dependencies": [requirement]}
    for made in _with_line(text, line, newline):
        if _holds(made, wanted):
            return made
    # Tools require a name and a version of a project.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder).strip("-_.") or "project"
    wanted["project"] |= {"name": name, "version": "0.1.0"}
    start = "" if not text or text.endswith("\n") else newline
    gap = newline if text.strip() else ""
    lines = ("[project]", f"name = {json.dumps(name)}", 'version = "0.1.0"', line, "")
    return _proven([f"{text}{start}{gap}{newline.join(lines)}"], wanted)


def _with_line(text: str, line: str, newline: str) -> Iterator[str]:
    """The text with one more line in the table of the project, however it is written."""
    places = [
        (table.start() + entry.end(), f"{newline}{line}")
        for table in _TABLE.finditer(text)
        for entry in reversed(list(_ENTRY.finditer(table[0])))
    ]
    places += [(end.start(), f", {line}") for end in _END_OF_BRACES.finditer(text)]
    dotted = reversed(list(_DOTTED.finditer(text)))
    places += [(one.start() + len(one[0].rstrip()), f"{newline}project.{line}") for one in dotted]
    for at, added in places:
        yield f"{text[:at]}{added}{text[at:]}"


def _with_item(text: str, last: str | None, item: str, newline: str) -> Iterator[str]:
    """The text with one more item in a list, in the layout of the last one; None for no item."""
    if last is None:
        for found in _EMPTY_LIST.finditer(text):
            yield f"{text[: found.end()]}{item}{text[found.end() :]}"
        return
    for start, end in _strings(text, last):
        rest = _TO_END_OF_LIST.match(text, end)
        if rest is not None:
            yield _appended(text, start, rest, item, newline)


def _appended(text: str, start: int, rest: re.Match[str], item: str, newline: str) -> str:
    if text[start] == "'" and "'" not in item:
        item = f"'{json.loads(item)}'"
    indent = text[text.rfind("\n", 0, start) + 1 : start]
    on_own_line = not indent.strip()
    separator = f"{newline}{indent}" if on_own_line else " "
    has_comma = rest[2] is not None
    at = rest.end(2) if has_comma else rest.start()
    head = text[:at] + ("" if has_comma else ",")
    below = text[at : rest.end(1)]
    closing = "," if has_comma else ""
    if on_own_line and "\n" in below:
        # Text after the last item on its line, such as a comment, belongs to that item.
        kept, _, below = below.partition("\n")
        kept = kept.removesuffix("\r")
        return f"{head}{kept}{separator}{item}{closing}{newline}{below}{text[rest.end(1) :]}"
    return f"{head}{separator}{item}{closing}{text[at:]}"


def _with_other_text(text: str, old: str, new: str) -> Iterator[str]:
    """The text with another content of one string, in its own quotes if possible."""
    for start, end in _strings(text, old):
        raw, spelled = text[start:end], json.dumps(new, ensure_ascii=False)
        for width in (3, 1):
            if raw[:width] == raw[0] * width and raw[width:-width] == old:
                spelled = f"{raw[:width]}{new}{raw[-width:]}"
                break
        yield f"{text[:start]}{spelled}{text[end:]}"


def _strings(text: str, content: str) -> Iterator[tuple[int, int]]:
    """Where a string of this content stands."""
    for found in _TOKEN.finditer(text):
        if found[1] and tomllib.loads(f"x = {found[1]}")["x"] == content:
            yield found.span()


def _proven(candidates: Iterable[str], wanted: dict[str, Any]) -> str:
    for text in candidates:
        if _holds(text, wanted):
            return text
    raise ScaffoldError(
        "`[project].dependencies` in pyproject.toml cannot be changed without touching what "
        "is around it; nothing was written",
        hint="add the requirement by hand",
    )


def _holds(text: str, wanted: dict[str, Any]) -> bool:
    try:
        # Compare as text, because the number `nan` does not equal itself.
        return bool(_said(tomllib.loads(text)) == _said(wanted))
    except tomllib.TOMLDecodeError:
        return False


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
        requirement = parse(line)
        if requirement is not None and not requirement.has(extra):
            text = f"{text[:at]}{requirement.with_extra(extra)}{text[at + len(line) :]}"
    return text


def lines_with_requirement(text: str, requirement: str) -> str:
    """``requirements.txt`` with one more line."""
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text or text.endswith("\n") else newline
    return f"{text}{gap}{requirement}{newline}"
