"""Declare, read and write the fields of a ``config.json``.

A configuration class declares each field once, with one of the functions here: its name in the
file, its other names, its default and the allowed values. Reading, writing and all error messages
follow from that declaration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flodl.hf.configs.base import EncoderConfig

from flodl.hf.errors import ConfigError
from flodl.hf.layers.activations import NAMES

_MOST: Final = 2**31 - 1  # no dimension of a model is larger, and every larger one breaks torch
# Far above every existing model. With more layers, a file of a hundred bytes would take hours to
# build, or the number of bytes of a tensor would not fit into 63 bits.
MOST_LAYERS: Final = 4096
MOST_LABELS: Final = 2**20
WIDEST: Final = 2**20
_SHOWN: Final = 80  # characters of a refused value


class Refused(Exception):  # noqa: N818 - it never leaves this package
    """A value is not allowed in a field; the text may say what is allowed."""


@dataclass(eq=False, slots=True)
class FieldSpec:
    """One field of a file, and the attribute of a configuration that reads and sets it.

    Attributes:
        read: Turns the JSON value into the attribute, or raises ``Refused``.
        allowed: The values that ``read`` accepts, for messages.
        write: Turns an attribute into the JSON value.
        key: The name in the file.
        aliases: Other names, used if ``key`` is absent or null.
        default: The JSON value if no name is present; ``MISSING`` if the field is required.
        inherits: The attribute whose value is used for null.
        name: The attribute; the name in the file too, if ``key`` is empty.
    """

    read: Callable[[Any], Any]
    allowed: str
    write: Callable[[Any], Any]
    key: str
    aliases: tuple[str, ...]
    default: Any
    inherits: str | None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.key = self.key or name

    def __get__(self, config: EncoderConfig | None, owner: type) -> Any:
        return self if config is None else config._values[self.name]

    def __set__(self, config: EncoderConfig, value: Any) -> None:
        config._put({self.name: value})

    def value_in(self, data: Mapping[str, Any], origin: str) -> Any:
        """The attribute, read from the file.

        Raises:
            ConfigError: The field is absent without a default, or ``read`` refuses it.
        """
        key, value = self._find(data)
        if value is MISSING:
            raise ConfigError(f"{origin}: {key!r} is missing; it must be {self.allowed}")
        try:
            return self.read(value)
        except Refused as refused:
            raise refusal(origin, key, value, str(refused) or self.allowed) from None

    def put(self, data: dict[str, Any], value: Any) -> None:
        """Write the attribute under every name that is present, or else under ``key``."""
        present = [key for key in (self.key, *self.aliases) if key in data]
        for key in present or [self.key]:
            data[key] = self.write(value)

    def _find(self, data: Mapping[str, Any]) -> tuple[str, Any]:
        present = [key for key in (self.key, *self.aliases) if key in data]
        for key in present:
            if data[key] is not None:
                return key, data[key]
        return (present[0], None) if present else (self.key, self.default)


def refusal(origin: str, key: str, value: object, allowed: str) -> ConfigError:
    """The error for a value that is not allowed in a field."""
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = shown[:_SHOWN] + "…"
    return ConfigError(f"{origin}: {key!r} is {shown}; it must be {allowed}")


def whole(
    *,
    default: Any = MISSING,
    key: str = "",
    aliases: tuple[str, ...] = (),
    least: int = 1,
    most: int = _MOST,
    nullable: bool = False,
    inherits: str | None = None,
) -> Any:
    """A whole number from ``least`` to ``most``; JSON ``true`` and ``8.0`` are refused."""

    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise Refused
        return value

    return _declare(
        read, f"a whole number from {least} to {most}", default, key, aliases, nullable, inherits
    )


def rate(
    *, default: Any = MISSING, key: str = "", nullable: bool = False, inherits: str | None = None
) -> Any:
    """A dropout probability, 0 to 1."""

    def read(value: Any) -> float:
        number = finite(value)
        if not 0.0 <= number <= 1.0:
            raise Refused
        return number

    allowed = "a number from 0 to 1"
    return _declare(read, allowed, default, key, (), nullable, inherits, write=_as_float)


def amount(*, default: Any = MISSING, key: str = "", nullable: bool = False) -> Any:
    """A finite number that is not negative."""

    def read(value: Any) -> float:
        number = finite(value)
        if number < 0.0:
            raise Refused
        return number

    allowed = "a finite number of at least 0"
    return _declare(read, allowed, default, key, nullable=nullable, write=_as_float)


def flag(*, default: Any = MISSING) -> Any:
    """True or false."""
    return _declare(_only(lambda value: isinstance(value, bool)), "true or false", default)


def one_of(
    choices: Sequence[str], *, default: Any = MISSING, key: str = "", nullable: bool = False
) -> Any:
    """One of some words, with exactly this spelling."""
    read = _only(lambda value: isinstance(value, str) and value in choices)
    allowed = f"one of {', '.join(choices)}"
    return _declare(read, allowed, default, key, nullable=nullable)


def activation_name(*, default: Any = MISSING, key: str = "") -> Any:
    """The name of an activation function; the text is kept exactly."""
    return one_of(NAMES, default=default, key=key)


def text(*, default: Any = MISSING, key: str = "", aliases: tuple[str, ...] = ()) -> Any:
    """A text or null."""
    read = _only(lambda value: isinstance(value, str))
    return _declare(read, "a text", default, key, aliases, nullable=True, write=_type_name)


def parsed(
    read: Callable[[Any], Any],
    allowed: str,
    *,
    default: Any = MISSING,
    key: str = "",
    write: Callable[[Any], Any] | None = None,
) -> Any:
    """A field with its own reader, which also gets null."""
    return _declare(read, allowed, default, key, write=write or _plain)


def texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts."""
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise Refused
    return tuple(value)


def _declare(
    read: Callable[[Any], Any],
    allowed: str,
    default: Any,
    key: str = "",
    aliases: tuple[str, ...] = (),
    nullable: bool = False,
    inherits: str | None = None,
    write: Callable[[Any], Any] | None = None,
) -> Any:
    if nullable:
        read, allowed = _or_null(read), f"{allowed}, or null"

    return FieldSpec(read, allowed, write or _plain, key, aliases, default, inherits)


def _only(accepts: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """A reader that keeps accepted values as they are."""

    def read(value: Any) -> Any:
        if not accepts(value):
            raise Refused
        return value

    return read


def _or_null(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _type_name(value: Any) -> Any:
    """A type of torch as its name; anything else as it is."""
    return str(value).removeprefix("torch.") if type(value).__module__ == "torch" else value


def _as_float(value: Any) -> Any:
    """A whole number as a float: transformers refuses integers for fractions."""
    return float(value) if type(value) is int and abs(value) <= _MOST else value


def finite(value: Any) -> float:
    """Read a finite number.

    Raises:
        Refused: It is something else.
    """
    if type(value) not in (int, float):
        raise Refused
    try:
        number = float(value)
    except OverflowError:
        raise Refused from None
    if not math.isfinite(number):
        raise Refused
    return number
