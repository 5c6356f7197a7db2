"""What a program declares, as rows of a schema document."""

from __future__ import annotations

from fdl.base.light_record import Record
from fdl.base.secrets import is_secret_name
from fdl.programs.parameters.parameter import is_flag_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Final


class _Computed:
    def __repr__(self) -> str:
        return "<computed>"


COMPUTED: Final = _Computed()
"""The value of an expression that only the running program knows."""

_MOST_CHOICES = 256
_UNCHANGED = ("counted", "ignore_case", "once", "literal", "mapping", "words", "env")
"""What a document has as a row says it, if there is anything to say."""


class Program:
    """A program, or a subcommand: its rows so far.

    Attributes:
        description: What it is for.
        strict: Whether everything it takes is known.
        options: Name -> row.
        arguments: Rows of the positional arguments.
        commands: Name -> subcommand.
        style: How it takes settings, if not as flags.
        fields: Name of an option -> the name of its parameter, if that has another.
    """

    def __init__(self, description: object = "") -> None:
        self.description = " ".join(description.split()) if isinstance(description, str) else ""
        self.strict = True
        self.options: dict[str, dict[str, Any]] = {}
        self.arguments: list[dict[str, Any]] = []
        self.commands: dict[str, Program] = {}
        self.style = ""
        self.fields: dict[str, str] = {}
        self._aligned = True

    @property
    def declares(self) -> bool:
        """Whether it declares anything, or says how it takes settings."""
        return bool(self.options or self.arguments or self.commands or self.style)

    def option(self, flags: Sequence[str], row: Row) -> str:
        """Add an option with all its spellings; returns its name, empty if there is none."""
        longest = sorted(flags, key=lambda flag: not flag.startswith("--"))
        names = (flag.lstrip("-+") for flag in longest)
        name = next((one for one in names if is_flag_name(one)), "")
        if not name:
            self.strict = False
        else:
            self.options[name] = {**row.document(name), "flags": list(flags)}
        return name

    def setting(self, name: str, row: Row) -> None:
        """Add an option without dashes: ``optimizer.lr``."""
        if is_flag_name(name):
            self.options[name] = row.document(name)

    def argument(self, name: str, row: Row, *, required: bool, variadic: bool = False) -> None:
        """Add a positional argument; one that cannot be in a schema ends the list."""
        before = self.arguments[-1] if self.arguments else None
        misplaced = before is not None and (
            before.get("variadic") or (required and not before["required"])
        )
        if misplaced or any(one["name"] == name for one in self.arguments) or not name:
            self._aligned = False
        if not self._aligned:
            return
        made = {**row.document(name), "name": name, "required": required}
        for key in (
            "nargs",
            "counted",
            "negatives",
            "group",
            "commas",
            "separator",
            "env",
            *(["default"] * required),
        ):
            made.pop(key, None)
        made["type"] = made["type"].removeprefix("list[").removesuffix("]")
        self.arguments.append({**made, **({"variadic": True} if variadic else {})})

    def document(self) -> dict[str, Any]:
        """The document, as ``--fdl-schema`` would print it."""
        commands = {name: one.document() for name, one in self.commands.items()}
        return {
            "description": self.description,
            "args": self.arguments,
            "options": self.options,
            **({"commands": commands} if commands else {}),
            **({"style": self.style} if self.style else {}),
            "strict": self.strict and not commands,
        }


class Row(Record):
    """One argument, as it is declared. ``COMPUTED`` stands for what is not literal.

    Attributes:
        type: ``string``, ``int``, ``float``, ``bool`` or ``path``.
        default: The default; None for none.
        choices: The allowed values.
        help: One sentence.
        many: Whether it takes several values.
        nargs: Words after one flag.
        counted: Whether its number counts.
        required: Whether it must be given.
        negatives: Spellings that turn it off.
        group: Heading of the option.
        place: ``file:line`` of the declaration.
        doubtful: Whether the type is the program's own.
        separator: What joins the values of a list, if one word must hold all of them.
        ignore_case: Whether choices may be typed in upper and lower case.
        once: Whether only the last occurrence of a list counts.
        literal: How the program evaluates values, as in the schema; empty if it does not.
        mapping: How a mapping is written: ``literal``, or ``words``: keys and values in turn.
        env: The variable that it reads.
        words: How ``true``, ``false`` and ``null`` are written, if not as these words.
    """

    type: str = "string"
    default: object = None
    choices: object = ()
    help: object = ""
    many: bool = False
    nargs: object = None
    counted: bool = False
    required: object = False
    negatives: Sequence[str] = ()
    group: object = ""
    place: str = ""
    doubtful: bool = False
    separator: str = ""
    ignore_case: bool = False
    once: bool = False
    literal: str = ""
    mapping: str = ""
    env: str = ""
    words: Mapping[str, str] = {}

    def document(self, name: str) -> dict[str, Any]:
        """The row of the argument with this name."""
        computed = ["type"] if self.doubtful else []
        made: dict[str, Any] = {"type": f"list[{self.type}]" if self.many else self.type}
        if isinstance(self.help, str) and self.help:
            made["description"] = " ".join(self.help.split())
        default = fitting(self.default, self.type, many=self.many)
        if default is COMPUTED:
            computed.append("default")
        elif default is not None and default != [] and not is_secret_name(name):
            made["default"] = default
        choices = self._choices()
        if choices is COMPUTED:
            computed.append("choices")
        elif choices:
            made["choices"] = choices
        if self.separator:
            made["separator"] = self.separator
        elif self.many and self.nargs is None:
            made["commas"] = False
        if self.nargs is COMPUTED:
            computed.append("nargs")
        elif self.nargs is not None:
            made.update(nargs=self.nargs, commas=False)
        said = {
            **{key: getattr(self, key) for key in _UNCHANGED},
            "required": self.required is True,
            "negatives": list(self.negatives),
            "group": " ".join(self.group.split()) if isinstance(self.group, str) else "",
            "place": self.place,
            "computed": computed,
        }
        return {**made, **{key: value for key, value in said.items() if value}}

    def _choices(self) -> Any:
        if self.choices is COMPUTED or self.doubtful or self.type in ("bool", "path"):
            return COMPUTED if self.choices else []
        listed = (
            list(self.choices)
            if isinstance(self.choices, list | tuple | dict | range | set)
            else []
        )
        if any(one is COMPUTED for one in listed) or len(listed) > _MOST_CHOICES:
            return COMPUTED
        return [one for one in listed if fitting(one, self.type) is one]


def fitting(value: object, type_: str, *, many: bool = False) -> Any:
    """A default of the declared type; COMPUTED for what a schema cannot say, None for none."""
    if value is None or value is COMPUTED:
        return value
    if many:
        listed = list(value) if isinstance(value, list | tuple | range) else [value]
        items = [fitting(one, type_) for one in listed]
        return COMPUTED if any(one is COMPUTED or one is None for one in items) else items
    if type_ == "bool":
        return value if isinstance(value, bool) else COMPUTED
    if type_ == "int":
        return value if isinstance(value, int) and not isinstance(value, bool) else COMPUTED
    if type_ == "float":
        return value if isinstance(value, int | float) and not isinstance(value, bool) else COMPUTED
    if isinstance(value, bool | int | float):
        return str(value)
    return value if isinstance(value, str) else COMPUTED
