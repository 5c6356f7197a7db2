"""Read and change one requirement of a project on flodl: its extras, version and source.

Written as in a list of dependencies (PEP 508): ``flodl[train]>=0.1; python_version < "3.14"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement as Parsed
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

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
