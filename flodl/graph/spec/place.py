"""Read untrusted JSON: every value knows its place and is checked when it is read."""

from __future__ import annotations

from dataclasses import dataclass

from flodl.errors import BuildError

LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Place:
    """A value of a description.

    Attributes:
        value: A JSON value, or an unexpected Python object.
        path: Its place: ``modules[3].arguments.in_features``.
    """

    value: object
    path: str

    def wrong(self, reason: str) -> BuildError:
        """The error for a wrong value here, with its place."""
        return BuildError(f"graph description, {self.path or 'top level'}: {reason}")

    def fields(self, *required: str, optional: tuple[str, ...] = ()) -> dict[str, Place]:
        """The fields of a mapping; all of ``required`` must exist and none may be unknown.

        Raises:
            BuildError: The value is not such a mapping.
        """
        entries = self.mapping()
        missing = [name for name in required if name not in entries]
        if missing:
            raise self.wrong(f"lacks {', '.join(missing)}")
        unknown = [name for name in entries if name not in required and name not in optional]
        if unknown:
            known = ", ".join([*required, *optional])
            raise self.wrong(f"has an unknown field {unknown[0]!r}; there may be {known}")
        return entries

    def mapping(self) -> dict[str, Place]:
        """The entries of a mapping with any keys.

        Raises:
            BuildError: The value is not a mapping with string keys.
        """
        if not isinstance(self.value, dict):
            raise self.wrong(f"must be a mapping, not {type(self.value).__name__}")
        before = f"{self.path}." if self.path else ""
        for key in self.value:
            if not isinstance(key, str):
                raise self.wrong(f"has a key that is not a string: {key!r:.50}")
        return {key: Place(value, f"{before}{key}") for key, value in self.value.items()}

    def items(self) -> list[Place]:
        """The entries of a list.

        Raises:
            BuildError: The value is not a list.
        """
        if not isinstance(self.value, list):
            raise self.wrong(f"must be a list, not {type(self.value).__name__}")
        return [Place(value, f"{self.path}[{index}]") for index, value in enumerate(self.value)]

    def pair(self) -> tuple[Place, Place]:
        """The two entries of a list of two.

        Raises:
            BuildError: The value is not a list of two.
        """
        items = self.items()
        if len(items) != 2:
            raise self.wrong(f"must have two entries, not {len(items)}")
        return items[0], items[1]

    def text(self) -> str:
        """A string without control characters.

        Raises:
            BuildError: The value is something else, or empty.
        """
        if not isinstance(self.value, str) or not self.value or not self.value.isprintable():
            raise self.wrong(f"must be a printable text, not {self.value!r:.50}")
        return self.value

    def name(self) -> str:
        """A string that can be a registry key: without dots and slashes.

        Raises:
            BuildError: The value is something else.
        """
        text = self.text()
        if "." in text or "/" in text:
            raise self.wrong(f"must have no dots and slashes: {text!r:.50}")
        return text

    def integer(self, low: int = 0, high: int = LARGEST) -> int:
        """An integer between two bounds, inclusive.

        Raises:
            BuildError: The value is something else.
        """
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.wrong(f"must be an integer, not {self.value!r:.50}")
        if not low <= self.value <= high:
            raise self.wrong(f"must be from {low} to {high}")
        return self.value

    def flag(self) -> bool:
        """True or false.

        Raises:
            BuildError: The value is something else.
        """
        if not isinstance(self.value, bool):
            raise self.wrong(f"must be true or false, not {self.value!r:.50}")
        return self.value

    def choice(self, known: tuple[str, ...]) -> str:
        """One of several strings.

        Raises:
            BuildError: The value is something else.
        """
        if not isinstance(self.value, str) or self.value not in known:
            raise self.wrong(f"must be one of {', '.join(known)}, not {self.value!r:.50}")
        return self.value
