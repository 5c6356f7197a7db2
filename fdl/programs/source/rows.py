"""What a program declares: the parameters of its schema, as far as the source says them."""

from __future__ import annotations

from fdl.base.secrets import is_secret_name
from fdl.programs.parameters.document import document
from fdl.programs.parameters.parameter import UNSET, Parameter, is_flag_name, is_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final


class _Computed:
    def __repr__(self) -> str:
        return "<computed>"


COMPUTED: Final = _Computed()
"""The value of an expression that only the running program knows."""

_MOST_CHOICES = 256


class Program:
    """A program, or a subcommand: what it takes so far.

    What an option or argument is said to be are the arguments of :func:`declared`.

    Attributes:
        description: What it is for.
        strict: Whether everything it takes is known.
        options: Name -> option.
        arguments: The positional arguments.
        commands: Name -> subcommand.
        style: How it takes settings, if not as flags.
        fields: Name of an option -> the name of its parameter, if that has another.
        collapsed: Groups that a help page shows as one line.
        origins: Whether it tells typed arguments from generated ones.
    """

    def __init__(self, description: object = "") -> None:
        self.description = _one_line(description)
        self.strict = True
        self.options: dict[str, Parameter] = {}
        self.arguments: list[Parameter] = []
        self.commands: dict[str, Program] = {}
        self.style = ""
        self.fields: dict[str, str] = {}
        self.collapsed: dict[str, str] = {}
        self.origins = False
        self._aligned = True

    @property
    def declares(self) -> bool:
        """Whether it declares anything, or says how it takes settings."""
        return bool(self.options or self.arguments or self.commands or self.style)

    def option(self, flags: Sequence[str], **said: Any) -> str:
        """Add an option with all its spellings; returns its name, empty if there is none."""
        longest = sorted(flags, key=lambda flag: not flag.startswith("--"))
        names = (flag.lstrip("-+") for flag in longest)
        name = next((one for one in names if is_flag_name(one)), "")
        if not name:
            self.strict = False
        else:
            self.options[name] = declared(name, flags=flags, **said)
        return name

    def setting(self, name: str, **said: Any) -> None:
        """Add an option without dashes: ``optimizer.lr``."""
        if is_flag_name(name):
            self.options[name] = declared(name, **said)

    def argument(self, name: str, *, required: bool, variadic: bool = False, **said: Any) -> None:
        """Add a positional argument; one that cannot be in a schema ends the list."""
        before = self.arguments[-1] if self.arguments else None
        misplaced = before is not None and (before.variadic or (required and not before.required))
        if misplaced or any(one.name == name for one in self.arguments) or not name:
            self._aligned = False
        if self._aligned:
            made = declared(name, kind="arg", required=required, variadic=variadic, **said)
            made.shape = "value"
            made.default = UNSET if required else made.default
            self.arguments.append(made)

    def document(self) -> dict[str, Any]:
        """The document, as ``--fdl-schema`` would print it."""
        return document(
            self.description,
            [*self.arguments, *self.options.values()],
            collapsed=self.collapsed,
            commands={name: one.document() for name, one in self.commands.items()},
            style=self.style,
            strict=self.strict and not self.commands,
            origins=self.origins,
        )


def declared(
    name: str,
    *,
    type: str = "string",
    default: Any = None,
    choices: Any = (),
    help: object = "",
    group: object = "",
    nargs: Any = None,
    many: bool = False,
    doubtful: bool = False,
    required: object = False,
    separator: str = "",
    **said: Any,
) -> Parameter:
    """The parameter that a program declares.

    ``COMPUTED`` stands for a default, choices, a number of words or a text that is not literal.

    Args:
        name: Its name.
        type: Of one value.
        default: The default; None or ``...`` for none.
        choices: The allowed values.
        help: One sentence.
        group: Heading of the option.
        nargs: Words after one flag.
        many: Whether it takes several values.
        doubtful: Whether the type is the program's own.
        required: Whether it must be given.
        separator: What joins the values of a list, if one word must hold all of them.
        said: What a parameter has as the program says it.
    """
    fits = fitting(None if default is ... else default, type, many=many)
    allowed = _allowed(choices, type, doubtful)
    computed = {
        "type": doubtful,
        "default": fits is COMPUTED,
        "choices": allowed is COMPUTED,
        "nargs": nargs is COMPUTED,
    }
    has_default = fits not in (None, COMPUTED) and not is_secret_name(name)
    return Parameter(
        name,
        type=type,
        shape="list" if many else "value",
        default=fits if has_default else UNSET,
        choices=() if allowed is COMPUTED else allowed,
        help=_one_line(help),
        group=_one_line(group),
        nargs=None if nargs is COMPUTED else nargs,
        commas=bool(separator) or nargs is COMPUTED,
        required=required is True,
        separator=separator,
        computed=[key for key, is_open in computed.items() if is_open],
        **said,
    )


def _one_line(text: object) -> str:
    return " ".join(text.split()) if isinstance(text, str) else ""


def _allowed(choices: Any, type_: str, doubtful: bool) -> Any:
    if choices is COMPUTED or doubtful or type_ in ("bool", "path"):
        return COMPUTED if choices else []
    listed = list(choices) if isinstance(choices, list | tuple | dict | range | set) else []
    if any(one is COMPUTED for one in listed) or len(listed) > _MOST_CHOICES:
        return COMPUTED
    return [one for one in listed if fitting(one, type_) is one]


def fitting(value: object, type_: str, *, many: bool = False) -> Any:
    """A default of the declared type; COMPUTED for what a schema cannot say, None for none."""
    if value is None or value is COMPUTED:
        return value
    if many:
        listed = list(value) if isinstance(value, list | tuple | range) else [value]
        items = [fitting(one, type_) for one in listed]
        return COMPUTED if any(one is COMPUTED or one is None for one in items) else items
    if type_ in ("bool", "int", "float"):
        return value if is_of(value, type_) else COMPUTED
    if isinstance(value, bool | int | float):
        return str(value)
    return value if isinstance(value, str) else COMPUTED
