"""A schema in the making: takes what a parser declares and keeps what the contract can say.

Some things are left out, and then the schema is not strict: a flag without a long name, a name of
fdl's own flags, positionals in an order that only the parser understands. Allowed values are in the
schema only if the word cannot mean anything else.
"""

from __future__ import annotations

import enum
import itertools
from typing import TYPE_CHECKING, Any

from fdl.manifest.words import RESERVED_LONG, RESERVED_SHORT
from fdl.programs.parameters.document import document
from fdl.programs.parameters.parameter import UNSET, Parameter, choice_text, is_flag_name, is_letter

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

# What every program is taken to understand, whatever its schema says.
_ALWAYS_KNOWN = frozenset(("-h", "--help", "-V", "--version", "--fdl-schema", "--refresh-schema"))
_MOST_CHOICES = 256
# The usual heading of options without a group.
_GENERAL = "options"


class Draft:
    """The schema of one program.

    Attributes:
        description: What the program is for.
        strict: Whether everything the program takes is in the schema.
        certain: Whether a declared option always means what is declared; a subcommand may have
            one of the same name, and a file of arguments stands for anything.
        aligned: Whether it is known which word fills which positional.
        foreign: Option strings that subcommands understand in their own way.
    """

    def __init__(self) -> None:
        self.description = ""
        self.strict = True
        self.certain = True
        self.aligned = True
        self.foreign: Collection[str] = ()
        self._options: dict[str, Parameter] = {}
        self._shorts: set[str] = set()
        self._doubtful: set[str] = set()
        self._arguments: list[Parameter] = []
        self._opaque: set[int] = set()
        self._commands: dict[str, Draft] = {}

    def option(
        self,
        strings: Sequence[str],
        *,
        type: str = "string",
        many: bool = False,
        default: Any = UNSET,
        choices: Sequence[Any] = (),
        env: str | None = None,
        completer: str | None = None,
        help: str = "",
        group: str = "",
        negatives: Sequence[str] = (),
        nargs: Any = None,
        counted: bool = False,
        required: bool = False,
        ignore_case: bool = False,
        words: Mapping[str, str] | None = None,
    ) -> None:
        """Add an option that ``strings`` (``-x``, ``--example``) name; see :class:`Parameter`.

        A ``type`` of ``bool`` is a flag, and ``many`` allows several values.
        """
        if all(string in _ALWAYS_KNOWN for string in strings):
            return
        name, short = self._names(strings)
        self._take_note(strings)
        if name is None:
            self.strict = False
            return
        if short:
            self._shorts.add(short)
        if any(string in self.foreign for string in strings):
            self._doubtful.add(name)
        usual = (f"--{name}", f"-{short}") if short else (f"--{name}",)
        self._options[name] = Parameter(
            name,
            type=type,
            shape="flag" if type == "bool" else "list" if many else "value",
            default=default,
            short=short,
            choices=choices,
            env=env,
            commas=False,
            completer=completer,
            help=help,
            group="" if group.lower() == _GENERAL else " ".join(group.split()),
            flags=() if set(strings) == set(usual) else strings,
            negatives=negatives,
            nargs=nargs,
            counted=counted,
            required=required,
            ignore_case=ignore_case,
            words=words,
        )

    def flag(self, strings: Sequence[str], off: Sequence[str], default: Any, **said: Any) -> None:
        """Add an option without a value; ``off`` are the spellings that turn it off."""
        known = default_of(default, "bool") if off else UNSET
        if strings:
            self.option(strings, type="bool", default=known, negatives=off, **said)
        elif off:
            self.option(off, type="bool", **said)

    def command(self, name: str) -> Draft:
        """Add a subcommand; returns its draft."""
        return self._commands.setdefault(name, Draft())

    def leave_out(self, strings: Sequence[str]) -> None:
        """Take note of an option that is not in the schema."""
        self.strict = False
        self._take_note(strings)

    def _take_note(self, strings: Sequence[str]) -> None:
        """Take note of spellings that make other words ambiguous."""
        if any(_is_long_with_one_dash(string) for string in strings):
            # `-foo` might as well be `-f -o -o`.
            self.aligned = self.certain = False
        if any(string[1:2].isdigit() for string in strings):
            self.aligned = False

    def _names(self, strings: Sequence[str]) -> tuple[str | None, str | None]:
        """The name and the letter to declare, the first of each. A long spelling gives the name."""
        longs = sorted(strings, key=lambda string: not string.startswith("--"))
        shorts = (string[1:] for string in strings if string[1:2] != "-")
        taken, used = {*RESERVED_LONG, *self._options}, {*RESERVED_SHORT, *self._shorts}
        names = (string.lstrip("-") for string in longs)
        name = next((one for one in names if is_flag_name(one) and one not in taken), None)
        if name is None:
            return None, None
        letters = (one for one in shorts if is_letter(one) and not one.isdigit())
        return name, next((one for one in letters if one not in used), None)

    def argument(
        self,
        name: str,
        *,
        type: str = "string",
        required: bool = True,
        variadic: bool = False,
        opaque: bool = False,
        default: Any = UNSET,
        choices: Sequence[Any] = (),
        completer: str | None = None,
        help: str = "",
        ignore_case: bool = False,
    ) -> None:
        """Add a positional argument; see :class:`Parameter`.

        An ``opaque`` one takes words in a way that no schema can say.
        """
        if opaque:
            self._opaque.add(len(self._arguments))
        shape = "list" if variadic else "value" if required else "optional"
        self._arguments.append(
            Parameter(
                name,
                kind="arg",
                type=type,
                shape=shape,  # type: ignore[arg-type]
                default=UNSET if required else default,
                choices=choices,
                variadic=variadic,
                required=required,
                completer=completer,
                help=help,
                ignore_case=ignore_case,
            )
        )

    def document(self) -> dict[str, Any]:
        """The document so far."""
        arguments = self._orderly()
        if not (self.aligned and self.certain):
            for one in arguments:
                one.choices = ()
        for name, option in self._options.items():
            if not self.certain or name in self._doubtful:
                option.choices = ()
        parameters = (*arguments, *self._options.values())
        commands = {name: draft.document() for name, draft in self._commands.items()}
        return document(self.description, parameters, strict=self.strict, commands=commands)

    def _orderly(self) -> list[Parameter]:
        """The positionals, or as many from the first on as fill up one by one."""
        names = [one.name for one in self._arguments]
        required = [one.required for one in self._arguments]
        if (
            not self._opaque
            and all(names)
            and len(set(names)) == len(names)
            and not any(one.variadic for one in self._arguments[:-1])
            and required == sorted(required, reverse=True)
        ):
            return self._arguments
        leading = itertools.takewhile(
            lambda place: (
                place not in self._opaque
                and names[place]
                and names[place] not in names[:place]
                and required[place]
                and not self._arguments[place].variadic
            ),
            range(len(names)),
        )
        return [self._arguments[place] for place in leading]


def _is_long_with_one_dash(string: str) -> bool:
    return string[:1] == "-" and string[:2] != "--" and len(string) > 2


def default_of(value: Any, type_: str, *, many: bool = False) -> Any:
    """A parser's default as the schema can say it, ``UNSET`` where it cannot."""
    if many:
        if not isinstance(value, list | tuple):
            return UNSET
        items = [default_of(item, type_) for item in value]
        return UNSET if any(item is UNSET for item in items) else items
    if isinstance(value, enum.Enum):
        value = value.value
    if type_ == "bool":
        return value if isinstance(value, bool) else UNSET
    if type_ in ("int", "float"):
        return _number(value, type_)
    if type_ == "path":
        fits = isinstance(value, str) or hasattr(value, "__fspath__")
        return str(value) if fits and not isinstance(value, bytes) else UNSET
    return str(value) if isinstance(value, str | int | float) else UNSET


def _number(value: Any, type_: str) -> Any:
    """A number of the type; a text counts as what the parser would make of it."""
    try:
        if isinstance(value, str):
            return int(value) if type_ == "int" else float(value)
    except ValueError:
        return UNSET
    kinds = int if type_ == "int" else (int, float)
    return value if isinstance(value, kinds) and not isinstance(value, bool) else UNSET


def allowed(values: Any, type_: str, *, many: bool = False) -> list[Any]:
    """The values among some choices that can be typed; nothing where that cannot be told.

    Args:
        values: What the parser compares the converted word with; any container.
        type_: What it converts to.
        many: Whether there are several words, which are then looked at one by one.
    """
    # Of a text, every part is "in" it; a path has many spellings.
    if values is None or isinstance(values, str) or type_ not in ("string", "int", "float"):
        return []
    try:
        listed = list(itertools.islice(values, _MOST_CHOICES + 1))
    except TypeError:
        return []
    found: list[Any] = []
    for value in listed:
        if isinstance(value, str) == (type_ == "string") and isinstance(value, str | int | float):
            found.append(_choice(value, type_))
        elif not isinstance(value, str | int | float | None):
            return []
    found = [value for value in dict.fromkeys(found) if value is not None]
    texts = [choice_text(value) for value in found]
    if len(listed) > _MOST_CHOICES or (many and any(text != text.strip() for text in texts)):
        return []
    return found


def _choice(value: Any, type_: str) -> Any:
    """One choice as the schema can say it, None for one that no word is converted to."""
    if type_ == "string":
        return str(getattr(value, "value", value))
    if value != value or value in (float("inf"), float("-inf")):
        return None
    if type_ == "int":
        return int(value) if value == int(value) else None
    return int(value) if isinstance(value, bool) else value
