"""Field markers, and the parameter each declared field becomes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from fdl.base.secrets import REDACTED
from fdl.manifest.words import IN_WORDS, RESERVED_LONG, RESERVED_SHORT
from fdl.programs.args.annotations import describe
from fdl.programs.parameters.parameter import UNSET, Parameter, is_letter, is_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_MARK = "fdl"


def option(
    *,
    default: Any = UNSET,
    short: str | None = None,
    help: str = "",
    choices: Sequence[Any] | None = None,
    env: str | None = None,
    completer: str | None = None,
    group: str = "",
) -> Any:
    """Declare a ``--flag`` of an :class:`~fdl.programs.args.FdlArgs` class.

    Args:
        default: Value of the absent flag; for ``T | None``, of the flag given without a value.
        short: One character for the ``-x`` form.
        help: One sentence for ``--help``; the attribute's docstring serves as well.
        choices: Allowed values; ``Literal`` and ``Enum`` types bring their own.
        env: Environment variable read when nobody typed the flag; empty counts as unset.
        completer: Shell snippet that prints one completion candidate per line.
        group: Heading of the flag on the help page. ``--help GROUP`` shows the group alone.
    """
    marks = {"short": short, "choices": choices, "env": env, "completer": completer, "group": group}
    return _mark("option", default, help, **marks)


def arg(
    *,
    default: Any = UNSET,
    help: str = "",
    choices: Sequence[Any] | None = None,
    variadic: bool = False,
    completer: str | None = None,
) -> Any:
    """Declare a positional argument of an :class:`~fdl.programs.args.FdlArgs` class.

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
    value = None if default is UNSET else default
    return Field(default=value, description=text, json_schema_extra=extra)


def is_marked(value: object) -> bool:
    """Whether a class attribute is what ``option(...)`` or ``arg(...)`` returned."""
    return _marks(value) is not None


def _marks(info: object) -> Any:
    extra = getattr(info, "json_schema_extra", None)
    return extra.get(_MARK) if isinstance(extra, dict) else None


def parameter(owner: str, name: str, info: FieldInfo) -> Parameter:
    """The parameter a declared field stands for.

    Raises:
        TypeError: The declaration cannot be an option or argument; names ``class.field``.
    """
    where = f"{owner}.{name}"
    marks = _marks(info)
    if marks is None:
        raise TypeError(f"{where}: declare the field with option(...) or arg(...)")
    try:
        type_, shape, own_choices = describe(info.annotation)
    except TypeError as problem:
        raise TypeError(f"{where}: {problem}") from None
    choices = marks["choices"]
    made = Parameter(
        name.replace("_", "-"),
        kind=marks["kind"],
        type=type_,
        shape=shape,
        default=marks["default"],
        short=marks.get("short"),
        choices=own_choices if choices is None else choices,
        env=marks.get("env"),
        variadic=bool(marks.get("variadic")),
        completer=marks["completer"],
        help=" ".join((info.description or "").split()),
        group=" ".join(marks.get("group", "").split()),
    )
    _check(where, made, no_choices=choices is not None and not choices)
    _check_default(where, made)
    made.default = _normal(made)
    return made


def _check(where: str, made: Parameter, *, no_choices: bool) -> None:
    flag, option_ = made.shape == "flag", made.kind == "option"
    problems = {
        "the long name is reserved": made.name in RESERVED_LONG,
        "the short name is reserved": made.short in RESERVED_SHORT,
        "the short name must be one character": made.short is not None
        and not is_letter(made.short),
        "a flag takes neither default nor env": flag
        and (made.default is not UNSET or made.env is not None),
        "a flag has no value to choose": flag and bool(made.choices),
        "`choices` must not be empty": no_choices,
        "a positional cannot be a bool": flag and not option_,
        "an option of a plain type needs a default": option_
        and made.shape == "value"
        and made.default is UNSET,
        "a list positional must be variadic, and only a list can be": not option_
        and made.variadic != (made.shape == "list"),
    }
    for problem, found in problems.items():
        if found:
            raise TypeError(f"{where}: {problem}")


def _check_default(where: str, made: Parameter) -> None:
    """Refuse a default that could not have been typed; None stands for an absent optional."""
    default = made.default
    if default is UNSET or (default is None and made.shape == "optional"):
        return
    if made.shape == "list" and not isinstance(default, list | tuple):
        raise TypeError(f"{where}: the default of a list must be a list")
    for item in default if made.shape == "list" else [default]:
        if made.choices and item not in made.choices:
            allowed = ", ".join(made.choice_texts())
            raise TypeError(f"{where}: the default {_shown(made, item)} is not one of {allowed}")
        is_path = made.type == "path" and hasattr(item, "__fspath__")
        if not made.choices and not is_path and not is_of(item, made.type):
            wanted = IN_WORDS[made.type]
            raise TypeError(f"{where}: the default {_shown(made, item)} is not {wanted}")


def _normal(made: Parameter) -> Any:
    """The default as a value of the field's type, which pydantic leaves as it was written."""
    if made.default is None or made.default is UNSET:
        # An optional value is absent anyway, and an option needs a value behind it.
        return UNSET
    kind: Any = {"path": Path, "float": float}.get(made.type)
    if kind is None or made.choices:
        return made.default
    if made.shape == "list":
        return [kind(item) for item in made.default]
    return kind(made.default)


def _shown(made: Parameter, value: Any) -> str:
    return REDACTED if made.hides(value) else repr(value)


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
        if one.name in longs:
            raise TypeError(f"{where}: `--{one.name}` is taken by {longs[one.name]}")
        longs[one.name] = one.field
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
