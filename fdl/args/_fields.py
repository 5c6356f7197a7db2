"""Field markers, and the parameter each declared field becomes."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo

UNSET: Final = type("Unset", (), {"__repr__": lambda _: "<unset>"})()

RESERVED_LONG: Final = frozenset(
    {
        "help", "version", "quiet", "env",
        "ansi", "no-ansi", "no-append", "fdl-schema", "refresh-schema",
    }
)  # fmt: skip
RESERVED_SHORT: Final = frozenset("hVqve")

_MARK = "fdl"
_SCALARS: Final[dict[type, str]] = {
    str: "string",
    int: "int",
    float: "float",
    bool: "bool",
    Path: "path",
}


def option(
    *,
    default: Any = UNSET,
    short: str | None = None,
    help: str = "",
    choices: Sequence[Any] | None = None,
    env: str | None = None,
    completer: str | None = None,
) -> Any:
    """Declare a ``--flag`` of an :class:`~fdl.args.FdlArgs` class.

    Args:
        default: Value of the absent flag; for ``T | None``, of the flag given without a value.
        short: One character for the ``-x`` form.
        help: One sentence for ``--help``; the attribute's docstring serves as well.
        choices: Allowed values; ``Literal`` and ``Enum`` types bring their own.
        env: Environment variable read when the flag is absent; an empty variable counts as unset.
        completer: Shell snippet that prints one completion candidate per line.
    """
    return _mark(
        "option", default, help, short=short, choices=choices, env=env, completer=completer
    )


def arg(
    *,
    default: Any = UNSET,
    help: str = "",
    choices: Sequence[Any] | None = None,
    variadic: bool = False,
    completer: str | None = None,
) -> Any:
    """Declare a positional argument of an :class:`~fdl.args.FdlArgs` class.

    Args:
        default: Value when the argument is absent; without one it is required.
        help: One sentence for ``--help``.
        choices: Allowed values.
        variadic: Take all remaining positionals (``list[T]``, last argument only).
        completer: Shell snippet that prints one completion candidate per line.
    """
    return _mark("arg", default, help, choices=choices, variadic=variadic, completer=completer)


def _mark(kind: str, default: Any, description: str, **marks: Any) -> Any:
    extra: Any = {_MARK: {"kind": kind, "default": default, **marks}}
    # The attribute's docstring may fill an absent description, so None rather than "".
    text = " ".join(description.split()) or None
    if default is UNSET:
        return Field(default=None, description=text, json_schema_extra=extra)
    return Field(default=default, description=text, json_schema_extra=extra)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One option or positional, as the parser, the help and the schema see it."""

    field: str
    kind: Literal["option", "arg"]
    type: type
    """Scalar type: str, int, float, bool or Path."""
    shape: Literal["flag", "value", "optional", "list"]
    default: Any
    """Declared default or UNSET."""
    short: str | None
    choices: tuple[Any, ...]
    env: str | None
    variadic: bool
    completer: str | None
    help: str

    @property
    def long(self) -> str:
        """The name without dashes: ``batch_size`` is ``batch-size``."""
        return self.field.replace("_", "-")

    @property
    def display(self) -> str:
        """How messages name it: ``--batch-size`` or ``<data>``."""
        return f"--{self.long}" if self.kind == "option" else f"<{self.long}>"

    @property
    def type_name(self) -> str:
        """The schema's word for the type."""
        name = _SCALARS[self.type]
        return f"list[{name}]" if self.shape == "list" else name

    @property
    def required(self) -> bool:
        """Whether a positional must be given."""
        return self.kind == "arg" and self.shape == "value" and self.default is UNSET

    @property
    def numeric(self) -> bool:
        """Whether ``-1`` may be a value."""
        return self.type in (int, float)

    def absent(self) -> Any:
        """The value when neither argv nor the environment gives one."""
        if self.shape == "flag":
            return False
        if self.shape == "optional" and self.kind == "option":
            return None
        if self.shape == "list":
            return [] if self.default is UNSET else list(self.default)
        return None if self.default is UNSET else self.default

    def convert(self, text: str) -> Any:
        """Turn one word into a value.

        Raises:
            ValueError: The word is not of the type, or not among the choices; says which.
        """
        if self.choices:
            for choice in self.choices:
                if _choice_text(choice) == text:
                    return choice
            allowed = ", ".join(_choice_text(choice) for choice in self.choices)
            raise ValueError(f"invalid value `{text}` for `{self.display}` -- allowed: {allowed}")
        try:
            return self.type(text)
        except ValueError:
            raise ValueError(
                f"invalid value `{text}` for `{self.display}` -- expected {_SCALARS[self.type]}"
            ) from None

    def choice_texts(self) -> list[str]:
        """The allowed words, in declaration order."""
        return [_choice_text(choice) for choice in self.choices]


def _choice_text(choice: Any) -> str:
    return str(choice.value) if isinstance(choice, enum.Enum) else str(choice)


def parameter(owner: str, name: str, info: FieldInfo) -> Parameter:
    """The parameter a declared field stands for.

    Raises:
        TypeError: The declaration cannot be an option or argument; names ``class.field``.
    """
    where = f"{owner}.{name}"
    extra = info.json_schema_extra
    marks: Any = extra.get(_MARK) if isinstance(extra, dict) else None
    if marks is None:
        raise TypeError(f"{where}: declare the field with option(...) or arg(...)")
    kind, scalar, shape, own_choices = marks["kind"], *_shape(where, info.annotation)
    made = Parameter(
        field=name,
        kind=kind,
        type=scalar,
        shape=shape,
        default=marks["default"],
        short=marks.get("short"),
        choices=tuple(marks["choices"] or own_choices),
        env=marks.get("env"),
        variadic=bool(marks.get("variadic")),
        completer=marks["completer"],
        help=" ".join((info.description or "").split()),
    )
    _check(where, made)
    return made


def _shape(
    where: str, annotation: Any
) -> tuple[type, Literal["flag", "value", "optional", "list"], tuple[Any, ...]]:
    shape: Literal["flag", "value", "optional", "list"] = "value"
    if get_origin(annotation) in (types.UnionType, typing.Union):
        inner = [part for part in get_args(annotation) if part is not type(None)]
        if len(inner) != 1 or len(get_args(annotation)) != 2:
            raise TypeError(f"{where}: a union is only possible as `T | None`")
        annotation, shape = inner[0], "optional"
    elif get_origin(annotation) is list:
        annotation, shape = get_args(annotation)[0], "list"
    if annotation is bool:
        if shape != "value":
            raise TypeError(f"{where}: a bool is a plain flag; `bool | None` and lists are not")
        return bool, "flag", ()
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        kinds = {type(value) for value in values}
        if len(kinds) != 1 or (scalar := kinds.pop()) not in _SCALARS:
            raise TypeError(f"{where}: the values of a Literal must share one plain type")
        return scalar, shape, values
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return str, shape, tuple(annotation)
    if annotation not in _SCALARS:
        raise TypeError(
            f"{where}: type {annotation!r} is none of str, int, float, bool, Path, Literal, Enum"
        )
    return annotation, shape, ()


def _check(where: str, made: Parameter) -> None:
    problems = {
        "the long name is reserved": made.long in RESERVED_LONG,
        "the short name is reserved": made.short in RESERVED_SHORT,
        "the short name must be one character": made.short is not None and len(made.short) != 1,
        "a flag takes neither default nor env": made.shape == "flag"
        and (made.default is not UNSET or made.env is not None),
        "a positional cannot be a bool": made.shape == "flag" and made.kind == "arg",
        "an option of a plain type needs a default": made.kind == "option"
        and made.shape == "value"
        and made.default is UNSET,
        "a list positional must be variadic, and only a list can be": made.kind == "arg"
        and made.variadic != (made.shape == "list"),
    }
    for problem, found in problems.items():
        if found:
            raise TypeError(f"{where}: {problem}")


def check_together(owner: str, parameters: Sequence[Parameter]) -> None:
    """Check what only holds for a whole class.

    Raises:
        TypeError: Two parameters share a name, or positionals stand in an impossible order.
    """
    shorts: dict[str, str] = {}
    longs: dict[str, str] = {}
    optional_before = ""
    variadic_before = ""
    for one in parameters:
        where = f"{owner}.{one.field}"
        if one.long in longs:
            raise TypeError(f"{where}: `--{one.long}` is taken by {longs[one.long]}")
        longs[one.long] = one.field
        if one.short is not None:
            if one.short in shorts:
                raise TypeError(f"{where}: `-{one.short}` is taken by {shorts[one.short]}")
            shorts[one.short] = one.field
        if one.kind == "option":
            continue
        if variadic_before:
            raise TypeError(f"{where}: nothing may follow the variadic `{variadic_before}`")
        if one.required and optional_before:
            raise TypeError(f"{where}: a required positional cannot follow `{optional_before}`")
        if not one.required:
            optional_before = one.field
        if one.variadic:
            variadic_before = one.field
