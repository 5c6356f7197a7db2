"""The kinds of values in a manifest: how each is checked, and its JSON Schema for editors.

A kind is strict and converts nothing: ``"5"`` is not a number and 5 is not text. Sections and
tables handle null: a key that is null counts as not given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from fdl.light_record import Record
from fdl.manifest.mistakes import Empty, Missing, Refused, Unknown, Unsuitable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeGuard

    from fdl.manifest.mistakes import Mistake, Path
    from fdl.node import Node

    Rule = dict[str, Any]

_INFINITY = float("inf")


class Kind(Record, ABC):
    """The kind of value that one place accepts."""

    @abstractmethod
    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Add to ``found`` what is wrong with the value ``node`` at ``path``."""

    @abstractmethod
    def rules(self) -> list[Rule]:
        """JSON Schemas; a value must fit at least one of them."""


class Text(Kind):
    """Text; a number or a boolean must be quoted."""

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Refuse everything but text."""
        if not isinstance(node.value, str):
            unquoted = isinstance(node.value, bool | int | float)
            remedy = "; put it between quotes" if unquoted else ""
            found.append(Unsuitable(node, path, "must be text", remedy))

    def rules(self) -> list[Rule]:
        """One type."""
        return [{"type": "string"}]


class Judged(Kind):
    """A value that one function judges.

    Attributes:
        demand: The demand that a value does not meet, ``must be …``; empty for one that meets all.
        schemas: JSON Schemas; a value must fit at least one of them.
        near: Values that the user may have meant.
        described: Whether messages repeat the value.
    """

    demand: Callable[[Any], str]
    schemas: list[Rule]
    near: Sequence[str] = ()
    described: bool = True

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Refuse values that do not meet the demand."""
        if not (demand := self.demand(node.value)):
            return
        if self.described:
            found.append(Unsuitable(node, path, demand, near=self.near))
        else:
            found.append(Refused(node, path, demand))

    def rules(self) -> list[Rule]:
        """The schemas."""
        return self.schemas


def one_of(*words: str) -> Judged:
    """The kind that accepts one of several words."""
    *others, last = (f"`{word}`" for word in words)
    demand = f"must be {', '.join(others)} or {last}"
    return Judged(
        lambda value: "" if value in words else demand, [{"enum": list(words), "type": "string"}]
    )


SWITCH = Judged(
    lambda value: "" if isinstance(value, bool) else "must be true or false", [{"type": "boolean"}]
)
"""True or false."""


class Whole(Kind):
    """A whole number, of any length.

    Args:
        least: The smallest one allowed, or None.
        most: The largest one allowed, or None.
    """

    least: int | None = None
    most: int | None = None

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Refuse other types (also ``5.0``) and numbers out of range."""
        value = node.value
        if not is_whole(value):
            found.append(Unsuitable(node, path, "must be a whole number", _unquote(value)))
        elif self.most is not None and value > self.most:
            found.append(Unsuitable(node, path, f"must be at most {self.most}"))
        elif self.least is not None and value < self.least:
            found.append(Unsuitable(node, path, f"must be at least {self.least}"))

    def rules(self) -> list[Rule]:
        """One type, with its range."""
        rule: Rule = {} if self.most is None else {"maximum": self.most}
        if self.least is not None:
            rule["minimum"] = self.least
        return [{**rule, "type": "integer"}]


class Number(Kind):
    """A finite number that a program can hold as a float.

    Args:
        above: The number it must exceed, or None.
        least: The smallest number allowed, or None.
    """

    above: int | None = None
    least: int | None = None

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Refuse other types, infinities, NaN, and numbers that are too small."""
        value = node.value
        number = _as_float(value)
        if number is None:
            found.append(Unsuitable(node, path, "must be a number", _unquote(value)))
        elif not -_INFINITY < number < _INFINITY:
            found.append(Unsuitable(node, path, "must be a finite number"))
        elif self.above is not None and not number > self.above:
            found.append(Unsuitable(node, path, f"must be greater than {self.above}"))
        elif self.least is not None and number < self.least:
            found.append(Unsuitable(node, path, f"must be at least {self.least}"))

    def rules(self) -> list[Rule]:
        """One type, with its limit."""
        rule: Rule = {} if self.above is None else {"exclusiveMinimum": self.above}
        if self.least is not None:
            rule["minimum"] = self.least
        return [{**rule, "type": "number"}]


class Referring(Kind):
    """A value of another kind, or text with ``${VAR}``, which is checked when it has a value."""

    kind: Kind

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Leave text with a reference for later."""
        if not (isinstance(node.value, str) and "${" in node.value):
            self.kind.judge(node, path, found)

    def rules(self) -> list[Rule]:
        """The kind's own, and text with a reference."""
        return [*self.kind.rules(), {"pattern": "\\$\\{", "type": "string"}]


class ListOf(Kind):
    """A list of items of one kind; no item is null."""

    item: Kind

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Refuse everything but lists, then check every item."""
        if not isinstance(node.value, list):
            found.append(Unsuitable(node, path, "must be a list"))
            return
        for index, item in enumerate(node.value):
            self.item.judge(item, (*path, index), found)

    def rules(self) -> list[Rule]:
        """An array of the item's kind."""
        (item,) = self.item.rules()
        return [{"items": item, "type": "array"}]


class Table(Kind):
    """A mapping from names that the user chooses to values of one kind or null.

    Args:
        value: The kind of the values; None for any.
        settings: Whether a name without a value is a slip. It may be null.
    """

    value: Kind | None = None
    settings: bool = False

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Refuse everything but mappings, then check every name and value."""
        if not isinstance(node.value, dict):
            found.append(Unsuitable(node, path, "must be a mapping"))
            return
        for name, child in node.value.items():
            if problem := self.name_problem(name):
                found.append(Refused(child, (*path, name), problem))
            if child.empty and self.settings:
                found.append(Empty(child, (*path, name)))
            if self.value is not None and child.value is not None:
                self.value.judge(child, (*path, name), found)

    def name_problem(self, name: str) -> str:  # noqa: ARG002
        """Why a name is not allowed, as the rest of a sentence; empty if it is allowed."""
        return ""

    def rules(self) -> list[Rule]:
        """An object with values of the kind."""
        if self.value is None:
            return [{"type": "object"}]
        return [{"additionalProperties": _or_null(self.value), "type": "object"}]


class Key(Record):
    """One key of a section.

    Attributes:
        name: The name as it is written.
        kind: The kind of its value.
        about: One line for editors and for the reference.
        required: Whether it must be there, and not null.
        excluded_by: A key of the same section that excludes this one; empty for none.
    """

    name: str
    kind: Kind
    about: str
    required: bool = False
    excluded_by: str = ""

    def rule(self) -> Rule:
        """The JSON Schema of the value, with its description."""
        (rule,) = self.kind.rules() if self.required else (_or_null(self.kind),)
        return dict(sorted({**rule, "description": self.about}.items()))


class Section(Kind):
    """A mapping that holds certain keys and no others.

    Args:
        name: Its name among the definitions of the JSON Schema.
        about: One line for editors.
        keys: The keys it may hold, in the order in which they are listed and checked.
        others: The kind of a mapping under any other key; None refuses other keys.
        settings: Whether a key without a value is a slip. It may be null.

    Attributes:
        keys: Name -> key.
    """

    def __init__(
        self,
        name: str,
        about: str,
        *keys: Key,
        others: Kind | None = None,
        settings: bool = True,
    ) -> None:
        self.name = name
        self.about = about
        self.keys = {key.name: key for key in keys}
        self.others = others
        self.settings = settings

    def judge(self, node: Node, path: Path, found: list[Mistake]) -> None:
        """Refuse everything but mappings, then check every key."""
        children = node.value
        if not isinstance(children, dict):
            found.append(Unsuitable(node, path, "must be a mapping"))
            return
        sound: set[str] = set()
        for name, key in self.keys.items():
            child = children.get(name)
            if child is None:
                if key.required:
                    found.append(Missing(node, (*path, name)))
                continue
            if child.value is None and not key.required:
                if child.empty and self.settings:
                    found.append(Empty(child, (*path, name)))
                continue
            before = len(found)
            key.kind.judge(child, (*path, name), found)
            if len(found) > before:
                continue
            sound.add(name)
            if key.excluded_by in sound:
                problem = f"cannot stand beside `{key.excluded_by}`, which says the same"
                found.append(Refused(child, (*path, name), f"{problem}; keep one of them"))
        for name, child in children.items():
            if name in self.keys:
                continue
            if self.others is not None and isinstance(child.value, dict):
                self.others.judge(child, (*path, name), found)
            else:
                found.append(Unknown(child, (*path, name), tuple(self.keys)))

    def rules(self) -> list[Rule]:
        """A reference to the definition."""
        return [{"$ref": f"#/$defs/{self.name}"}]

    def definition(self) -> Rule:
        """The JSON Schema itself. It requires no key, because another layer may hold it."""
        others = False if self.others is None else self.others.rules()[0]
        rule: Rule = {
            "additionalProperties": others,
            "description": self.about,
            "properties": {name: key.rule() for name, key in self.keys.items()},
            "type": "object",
        }
        pairs = [_both(key.excluded_by, name) for name, key in self.keys.items() if key.excluded_by]
        return {**rule, "not": {"anyOf": pairs}} if pairs else rule


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _as_float(value: object) -> float | None:
    """A number as a float; None if it is not a number or too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _unquote(value: object) -> str:
    """The remedy for a number between quotes; empty for every other value."""
    if not isinstance(value, str):
        return ""
    try:
        float(value)
    except ValueError:
        return ""
    return "; remove the quotes"


def _or_null(kind: Kind) -> Rule:
    return {"anyOf": [*kind.rules(), {"type": "null"}]}


def _both(one: str, other: str) -> Rule:
    """The rule that matches if both keys are given."""
    given = {"not": {"type": "null"}}
    return {"required": [one, other], "properties": {one: given, other: given}}
