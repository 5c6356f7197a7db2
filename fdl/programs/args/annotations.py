"""Reading type annotations: what a field of a class or a function's parameter may hold."""

from __future__ import annotations

import enum
import types
import typing
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

if typing.TYPE_CHECKING:
    from fdl.programs.parameters.parameter import Shape

SCALARS: Final[dict[type, str]] = {
    str: "string",
    int: "int",
    float: "float",
    bool: "bool",
    Path: "path",
}
"""Python type -> the schema's word for it."""


class Complete(NamedTuple):
    """In ``Annotated[str, typer.Option(), Complete("…")]``: where the values of a parameter are.

    Attributes:
        completer: Shell snippet that prints one value per line. In a built-in command it is the
            name of a source in :mod:`fdl.cli.complete.sources` instead.
    """

    completer: str


class Described(NamedTuple):
    """What an annotation says.

    Attributes:
        type: The schema's word for one value.
        shape: See :class:`~fdl.programs.parameters.parameter.Parameter`.
        choices: The values of a ``Literal``, the members of an ``Enum``.
    """

    type: str
    shape: Shape
    choices: tuple[Any, ...]


def describe(annotation: Any) -> Described:
    """Read ``T``, ``T | None`` or ``list[T]``, with ``Annotated`` anywhere in it.

    Raises:
        TypeError: It is not one of these; the message is the rest of a sentence about the field.
    """
    annotation = _bare(annotation)
    shape: Shape = "value"
    if get_origin(annotation) in (types.UnionType, typing.Union):
        inner = [part for part in get_args(annotation) if part is not type(None)]
        if len(inner) != 1 or len(get_args(annotation)) != 2:
            raise TypeError("a union is only possible as `T | None`")
        annotation, shape = _bare(inner[0]), "optional"
        if annotation is list or get_origin(annotation) is list:
            raise TypeError("a list is empty when it is absent; write `list[T]` without `| None`")
    elif annotation is list:
        annotation, shape = str, "list"
    elif get_origin(annotation) is list:
        annotation, shape = _bare(get_args(annotation)[0]), "list"
    if annotation is bool:
        if shape != "value":
            raise TypeError("a bool is a plain flag; `bool | None` and lists of them are not")
        return Described("bool", "flag", ())
    scalar, choices = _scalar(annotation)
    return Described(scalar, shape, choices)


def _bare(annotation: Any) -> Any:
    """An annotation without ``Annotated`` and the names given to types."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            return annotation


def _scalar(annotation: Any) -> tuple[str, tuple[Any, ...]]:
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        common = _common(values)
        if common is None:
            raise TypeError("the values of a Literal must share one plain type")
        return common, values
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        members = tuple(annotation)
        return _common([member.value for member in members]) or "string", members
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return "path", ()
    if isinstance(annotation, str | typing.ForwardRef):
        name = getattr(annotation, "__forward_arg__", annotation)
        raise TypeError(f"the type `{name}` is not known where the class is made")
    if annotation not in SCALARS:
        shown = getattr(annotation, "__name__", str(annotation))
        raise TypeError(f"type `{shown}` is not one of str, int, float, bool, Path, Literal, Enum")
    return SCALARS[annotation], ()


def _common(values: typing.Iterable[object]) -> str | None:
    """The schema's word for the one type of all values, if there is one."""
    kinds = {type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    return None if kind is bool or kind not in SCALARS else SCALARS[kind]
