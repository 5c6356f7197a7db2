"""Settings as data: a field of a dataclass knows its check, and how a builder's method sets it.

The text under a field says what it does. The documentation of the method and the reference are made
from it.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from inspect import Parameter, Signature
from operator import index
from pathlib import Path
from typing import Any, ClassVar

Check = Callable[[Any], Any]
"""Returns the value in the form that the field keeps; raises :class:`UnfitError` or another."""

_HOW = "how"


class UnfitError(ValueError):
    """A value that a check refuses; the message continues the name and the value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class How:
    """How a field is checked and set.

    Attributes:
        check: Checks the values; None for any value. It does not see a None that is the default.
        takes: Name of the argument of the method; empty if there is no such method.
        kind: Type of the argument, as text; empty for the type of the field.
        given: The value for a call without one.
        made: Makes the value: the method has the arguments of this function or class.
        switch: With ``made``, the method has a first argument ``on``; False sets None.
        method: Name of the method; empty for the name of the field.
        key: Name of the key in ``ddp:`` or ``guards:`` of a manifest, or ``training.NAME`` for a
            key of ``training:``; empty if there is none.
        auto: Whether this key may be ``auto``, which means the default.
        form: Type of this key in the model of the manifest, if the check does not say it.
        usual: What the default means, if that is None.
    """

    check: Check | None = None
    takes: str = ""
    kind: str = ""
    given: object = Parameter.empty
    made: Callable[..., Any] | None = None
    switch: bool = False
    method: str = ""
    key: str = ""
    auto: bool = False
    form: str = ""
    usual: str = ""

    @property
    def has_method(self) -> bool:
        """Whether a builder gets a method for the field."""
        return bool(self.takes or self.made)


def setting(default: Any = MISSING, check: Check | None = None, **how: Any) -> Any:
    """Return a field of a dataclass of settings; see :class:`How` for the further arguments."""
    return field(default=default, metadata={_HOW: How(check=check, **how)})


def switch(default: bool | None = False, **how: Any) -> Any:
    """Return a field that its method switches on, or off with False."""
    return setting(default, takes="on", given=Parameter.empty if default is None else True, **how)


def how(one: Field[Any]) -> How:
    """Return how a field is checked and set."""
    found: How = one.metadata.get(_HOW, _PLAIN)
    return found


_PLAIN = How()


class Settings:
    """Base of the dataclasses of settings: every value is checked when an object is made."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    spoken: ClassVar[str] = "{}={!r}"
    """How messages show the name and the value of a field."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if how(one).check is not None:
                found = checked(type(self), one.name, getattr(self, one.name))
                object.__setattr__(self, one.name, found)


def checked(part: type[Settings], name: str, value: Any) -> Any:
    """Return the value of a field in the form that the field keeps.

    Raises:
        ValueError: It is out of its range.
    """
    one = part.__dataclass_fields__[name]
    check = how(one).check
    if check is None or (value is None and one.default is None):
        return value
    return fitting(check, value, part.spoken.format(how(one).method or name, value))


def fitting(check: Check, value: Any, said: str) -> Any:
    """Return what a check makes of a value.

    Raises:
        ValueError: The value does not fit; ``said`` names it in the message.
    """
    try:
        return check(value)
    except UnfitError as error:
        raise ValueError(f"{said}: {error}") from None


# --- Checks --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of at least ``least``; NumPy's integers are such numbers, too."""

    least: int = 1
    word: str = "an integer"

    def __call__(self, value: Any) -> int:
        """Check a value."""
        try:
            number = index(value)
        except TypeError:
            number = self.least - 1
        if isinstance(value, bool) or number < self.least:
            raise UnfitError(f"it must be {self.word} of at least {self.least}")
        return number


def whole(name: str, value: Any, least: int = 1) -> int:
    """Return the value of an argument that counts something.

    Raises:
        ValueError: It is not an integer of at least ``least``.
    """
    number: int = fitting(Whole(least), value, f"{name}={value!r}")
    return number


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some values; of an enumeration also the text of a member."""

    choices: Any

    def __call__(self, value: Any) -> Any:
        """Check a value."""
        if isinstance(self.choices, type):
            try:
                return self.choices(value)
            except ValueError:
                known: Any = self.choices
                raise UnfitError(f"use one of {', '.join(known)}") from None
        if value not in self.choices:
            raise UnfitError(f"it must be one of {', '.join(map(repr, self.choices))}")
        return value


@dataclass(frozen=True, slots=True)
class Above:
    """A number above a limit, or also the limit itself."""

    limit: float = 0
    itself: bool = False

    def __call__(self, value: Any) -> float:
        """Check a value."""
        fits = value >= self.limit if self.itself else value > self.limit
        if isinstance(value, bool) or not fits:
            word = "at least" if self.itself else "greater than"
            raise UnfitError(f"it must be {word} {self.limit}")
        return float(value)


@dataclass(frozen=True, slots=True)
class Shares:
    """Numbers above 0, one for each rank; also as text with commas."""

    def __call__(self, value: Any) -> tuple[float, ...]:
        """Check the values."""
        try:
            numbers = tuple(map(float, value.split(",") if isinstance(value, str) else value))
        except (TypeError, ValueError):
            numbers = ()
        if not numbers or not all(math.isfinite(one) and one > 0 for one in numbers):
            raise UnfitError("it must be numbers above 0, one per rank")
        return numbers


def is_function(value: Any) -> Any:
    """Check something that will be called."""
    if not callable(value):
        raise UnfitError("it must be a function")
    return value


# --- Methods of a builder ------------------------------------------------------------------------


def with_methods(*parts: type[Settings]) -> Callable[[type], type]:
    """Return a decorator that gives a class a method for each field of some settings.

    A method calls ``self._set(name, value)`` with the checked value.
    """

    def decorated(builder: type) -> type:
        for name, made in methods(*parts):
            if not hasattr(builder, name):
                made.__qualname__ = f"{builder.__qualname__}.{name}"
                made.__module__ = builder.__module__
                setattr(builder, name, made)
        return builder

    return decorated


def methods(*parts: type[Settings]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the function of each method for the fields of some settings."""
    for part in parts:
        for one in fields(part):
            if how(one).has_method and one.name in part.__annotations__:
                yield how(one).method or one.name, _method(part, one)


def _method(part: type[Settings], one: Field[Any]) -> Any:
    about, name = how(one), one.name
    signature = Signature(
        [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *_parameters(one)],
        return_annotation="Self",
    )

    def method(*given: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*given, **named)
        except TypeError as error:
            raise TypeError(f"{method.__name__}(): {error}") from None
        bound.apply_defaults()
        builder, *values = bound.args
        if about.made is None:
            (value,) = values
        elif about.switch and not values.pop(0):
            value = None
        else:
            value = about.made(*values, **bound.kwargs)
        return builder._set(name, checked(part, name, value))

    method.__name__ = about.method or name
    method.__doc__ = documentation(part, one)
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def _parameters(one: Field[Any]) -> Iterator[Parameter]:
    about, simple = how(one), Parameter.POSITIONAL_OR_KEYWORD
    if about.switch:
        yield Parameter("on", simple, default=True, annotation="bool")
    if about.made is not None:
        yield from inspect.signature(about.made).parameters.values()
        return
    kind = about.kind or str(one.type)
    yield Parameter(about.takes, simple, default=about.given, annotation=kind)


# --- Texts ---------------------------------------------------------------------------------------


def usual(one: Field[Any]) -> str:
    """Return what holds if a field is not set, in words; empty if the text has to say it."""
    default = one.default
    if isinstance(default, bool) or not isinstance(default, str | int | float):
        return how(one).usual
    return str(default) if isinstance(default, str) else f"{default:g}"


def described(text: str, default: str) -> str:
    """Return the text of a field with its default behind the first sentence."""
    end = re.search(r"\.(?=\s|$)", text)
    if not default or end is None:
        return text
    return f"{text[: end.start()]} (default: {default}){text[end.start() :]}"


def documentation(part: type, one: Field[Any]) -> str:
    """Return the text of a field, and that of the arguments of what makes its value."""
    text = described(texts(part).get(one.name, ""), usual(one))
    made = how(one).made
    if not isinstance(made, type):
        return text
    said = texts(made)
    if issubclass(made, Settings):
        said = {one.name: described(said.get(one.name, ""), usual(one)) for one in fields(made)}
    if how(one).switch:
        said = {"on": "False switches it off, also if a manifest asks for it.", **said}
    rows = [
        textwrap.fill(f"{name}: {' '.join(row.split())}", 92, subsequent_indent="    ")
        for name, row in said.items()
    ]
    text, raises, rest = text.partition("\n\nRaises:")
    return "\n\nArgs:\n".join([text, textwrap.indent("\n".join(rows), "    ")]) + raises + rest


@cache
def texts(part: type) -> dict[str, str]:
    """Return the text under each field of a class; nothing if its source is not there."""
    file = getattr(sys.modules[part.__module__], "__file__", None) or ""
    try:
        source = Path(file).read_text(encoding="utf-8")
    except OSError:
        return {}
    # Every start of a program reads them. Parsing the source would take ten times as long.
    found = re.search(rf"^class {part.__name__}\b.*?(?=^\S|\Z)", source, re.MULTILINE | re.DOTALL)
    fields_of = _FIELD.findall(found[0]) if found is not None else []
    return {name: inspect.cleandoc(text) for name, text in fields_of}


_FIELD = re.compile(
    r'^ {4}(\w+): [^\n]*\n(?:(?: {5}[^\n]*| {4}\))\n)*? {4}"""(.*?)"""$', re.MULTILINE | re.DOTALL
)
"""A field of a class as ruff formats it, and the text under it."""
