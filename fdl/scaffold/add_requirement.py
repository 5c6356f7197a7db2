"""Read and change one requirement of a project on flodl: its extras, version and source.

Written as in a list of dependencies (PEP 508): ``flodl[train]>=0.1; python_version < "3.14"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fdl.update.versions import release

EXTRAS = {"full": "hf", "vision": "hf-vision", "offline": "hf-offline"}
"""Flavour -> the extra that provides it; each extra includes those after it."""

NAME = "flodl"

_HEAD = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*")
_EXACT = re.compile(r"===?\s*([0-9A-Za-z.!+_-]+)\Z")
_CLAUSE = re.compile(r"(~=|===?|!=|<=|>=|<|>)\s*([0-9A-Za-z.!+_-]+?)(\.\*)?\Z")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement on flodl.

    Attributes:
        text: The text of the requirement.
        extras: Their names, normalised as by pip.
        at: Offset in ``text`` where an extra's name can be added.
        brackets: Whether the extras have brackets already.
        specifier: The range of versions; empty for any.
        url: The source instead of an index; empty for an index.
    """

    text: str
    extras: tuple[str, ...]
    at: int
    brackets: bool
    specifier: str
    url: str

    @property
    def pin(self) -> str | None:
        """The one allowed version; None for a range."""
        found = _EXACT.match(self.specifier)
        return found[1] if found else None

    def has(self, extra: str) -> bool:
        """Whether its extras include an extra."""
        names = list(EXTRAS.values())
        return any(one in self.extras for one in names[: names.index(extra) + 1])

    def with_extra(self, extra: str) -> str:
        """The text with one more extra and no other change."""
        if not self.brackets:
            return f"{self.text[: self.at]}[{extra}]{self.text[self.at :]}"
        comma = ", " if ", " in self.text[: self.at] else ","
        lead = comma if self.extras else ""
        return f"{self.text[: self.at]}{lead}{extra}{self.text[self.at :]}"

    def allows(self, version: str) -> bool:
        """Whether a version is within the range; True if that cannot be decided."""
        return all(_holds(one, version) for one in self.specifier.split(",") if one.strip())


def parse(text: str) -> Requirement | None:
    """Read one requirement; None if it is on another package or is not a requirement."""
    head = _HEAD.match(text)
    if head is None or normalized(head[1]) != NAME:
        return None
    rest = text[head.end() :]
    at, extras, brackets = len(text[: head.end()].rstrip()), "", rest.startswith("[")
    if brackets:
        extras, closed, rest = rest[1:].partition("]")
        if not closed:
            return None
        at = head.end() + 1 + len(extras.rstrip(" \t,"))
    if rest and rest.lstrip()[:1] not in ("", "@", ";", "(", "=", "<", ">", "!", "~"):
        return None
    demand = rest.strip()
    if demand.startswith("@"):
        # A URL may contain a semicolon; one that begins a marker has a blank before it.
        url = re.split(r"\s;", demand[1:].strip(), maxsplit=1)[0].strip()
        specifier = ""
    else:
        url, specifier = "", demand.partition(";")[0].strip().removeprefix("(").removesuffix(")")
    names = tuple(normalized(one) for one in extras.split(",") if one.strip())
    return Requirement(text, names, at, brackets, specifier.strip(), url)


def parse_all(texts: Iterable[str]) -> list[Requirement]:
    """The requirements on flodl among some texts."""
    return [found for text in texts if (found := parse(text)) is not None]


def normalized(name: str) -> str:
    """A package's or extra's name, normalised as by pip."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _holds(clause: str, version: str) -> bool:
    parts = _CLAUSE.match(clause.strip())
    if parts is None:
        return True
    operator, wanted, any_below = parts.groups()
    have, bound = release(version), release(wanted)
    if any_below or operator == "~=":
        width = len(re.split(r"[.]", wanted)) - (operator == "~=")
        prefix = (*release(wanted), *[0] * width)[:width]
        within = (*have, *[0] * width)[:width] == prefix
        return not within if operator == "!=" else within and (bool(any_below) or have >= bound)
    return {
        "==": have == bound,
        "===": version == wanted,
        "!=": have != bound,
        "<": have < bound,
        "<=": have <= bound,
        ">": have > bound,
        ">=": have >= bound,
    }[operator]
