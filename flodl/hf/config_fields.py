"""Declare, read and write the fields of a ``config.json``, and the names of classes in it.

A configuration class declares each field once, with one of the functions here: its name in the
file, its other names, its default and the allowed values. Reading, writing and all error messages
follow from that declaration.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from flodl.hf.errors import ConfigError
from flodl.hf.layers.activations import ACTIVATIONS

if TYPE_CHECKING:
    from flodl.hf.config import EncoderConfig


_MOST: Final = 2**31 - 1  # no dimension of a model is larger, and every larger one breaks torch
# Far above every existing model. With more layers, a file of a hundred bytes would take hours to
# build, or the number of bytes of a tensor would not fit into 63 bits.
MOST_LAYERS: Final = 4096
MOST_LABELS: Final = 2**20
WIDEST: Final = 2**20
_SHOWN: Final = 80  # characters of a refused value


class Refused(Exception):  # noqa: N818 - it never leaves this package
    """A value is not allowed in a field; the text may say what is allowed."""


REQUIRED: Final = object()
"""The default of a field that every file must have."""


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(eq=False, slots=True)
class FieldSpec:
    """One field of a file, and the attribute of a configuration that reads and sets it.

    Attributes:
        read: Turns the JSON value into the attribute, or raises ``Refused``.
        allowed: The values that ``read`` accepts, for messages.
        write: Turns an attribute into the JSON value.
        default: The JSON value if no name is present.
        key: The name in the file; that of the attribute if it is empty.
        aliases: Other names, used if ``key`` is absent or null.
        inherits: The attribute whose value is used for null.
        name: The attribute.
    """

    read: Callable[[Any], Any]
    allowed: str
    write: Callable[[Any], Any] = _plain
    default: Any = REQUIRED
    key: str = ""
    aliases: tuple[str, ...] = ()
    inherits: str | None = None
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.key = self.key or name

    def __get__(self, config: EncoderConfig | None, owner: type) -> Any:
        return self if config is None else config._values[self.name]

    def __set__(self, config: EncoderConfig, value: Any) -> None:
        config.update({self.name: value})

    def value_in(self, data: Mapping[str, Any], origin: str) -> Any:
        """The attribute, read from the file.

        Raises:
            ConfigError: The field is absent without a default, or ``read`` refuses it.
        """
        key, value, is_there = self.key, self.default, False
        for name in (self.key, *self.aliases):  # the first that is not null counts
            if name in data and (not is_there or value is None):
                if not is_there or data[name] is not None:
                    key, value = name, data[name]
                is_there = True
        if value is REQUIRED:
            raise ConfigError(f"{origin}: {key!r} is missing; it must be {self.allowed}")
        try:
            return self.read(value)
        except Refused as refused:
            raise refusal(origin, key, value, str(refused) or self.allowed) from None

    def put(self, data: dict[str, Any], value: Any) -> None:
        """Write the attribute under every name that is present, or else under ``key``."""
        written = self.write(value)
        for key in self.aliases:
            if key in data:
                data[key] = written
        if self.key in data or data.keys().isdisjoint(self.aliases):
            data[self.key] = written


def refusal(origin: str, key: str, value: object, allowed: str) -> ConfigError:
    """The error for a value that is not allowed in a field."""
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = shown[:_SHOWN] + "…"
    return ConfigError(f"{origin}: {key!r} is {shown}; it must be {allowed}")


@dataclass(frozen=True, slots=True)
class Plain:
    """Reads a plain value: a number in a range, a word, or true or false.

    Attributes:
        types: The types that a value may have; numbers become fractions if ``float`` is among them.
        least: The smallest number.
        most: The largest number; None if values are not numbers.
        choices: The only words; None for any.
        nullable: Whether null is read as None.
    """

    types: tuple[type, ...]
    least: float = 0
    most: float | None = None
    choices: Sequence[str] | None = None
    nullable: bool = False

    def __call__(self, value: Any) -> Any:
        """Return the value of the attribute, or raise ``Refused``."""
        if value is None and self.nullable:
            return None
        # To Python, true is a number.
        fits = isinstance(value, self.types) and (type(value) is not bool or bool in self.types)
        if not fits or (self.choices is not None and value not in self.choices):
            raise Refused
        if self.most is not None and not self.least <= value <= self.most:
            raise Refused
        return float(value) if float in self.types else value


_NUMBER: Final = (int, float)


class Told(TypedDict, total=False):
    """What a declaration may say of every field; see :class:`FieldSpec`."""

    default: Any
    key: str
    aliases: tuple[str, ...]
    inherits: str | None


def whole(
    *, least: int = 1, most: int = _MOST, nullable: bool = False, **told: Unpack[Told]
) -> Any:
    """A whole number from ``least`` to ``most``; JSON ``true`` and ``8.0`` are refused."""
    read = Plain((int,), least, most, nullable=nullable)
    return _declare(read, f"a whole number from {least} to {most}", **told)


def rate(*, nullable: bool = False, **told: Unpack[Told]) -> Any:
    """A dropout probability, 0 to 1."""
    read = Plain(_NUMBER, 0, 1, nullable=nullable)
    return _declare(read, "a number from 0 to 1", _as_float, **told)


def amount(*, nullable: bool = False, **told: Unpack[Told]) -> Any:
    """A finite number that is not negative."""
    read = Plain(_NUMBER, 0, sys.float_info.max, nullable=nullable)
    return _declare(read, "a finite number of at least 0", _as_float, **told)


def flag(**told: Unpack[Told]) -> Any:
    """True or false."""
    return _declare(Plain((bool,)), "true or false", **told)


def one_of(choices: Sequence[str], *, nullable: bool = False, **told: Unpack[Told]) -> Any:
    """One of some words, with exactly this spelling."""
    read = Plain((str,), choices=choices, nullable=nullable)
    return _declare(read, f"one of {', '.join(choices)}", **told)


def activation_name(**told: Unpack[Told]) -> Any:
    """The name of an activation function; the text is kept exactly."""
    return one_of(tuple(ACTIVATIONS), **told)


def text(**told: Unpack[Told]) -> Any:
    """A text or null."""
    return _declare(Plain((str,), nullable=True), "a text", _type_name, **told)


def parsed(
    read: Callable[[Any], Any],
    allowed: str,
    write: Callable[[Any], Any] = _plain,
    **told: Unpack[Told],
) -> Any:
    """A field with its own reader, which also gets null."""
    return FieldSpec(read, allowed, write, **told)


def _declare(
    read: Plain, allowed: str, write: Callable[[Any], Any] = _plain, **told: Unpack[Told]
) -> Any:
    return FieldSpec(read, f"{allowed}, or null" if read.nullable else allowed, write, **told)


def texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts; null is an empty one."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not {str}.issuperset(map(type, value)):
        raise Refused
    return tuple(value)


def _type_name(value: Any) -> Any:
    """A type of torch as its name; anything else as it is."""
    return str(value).removeprefix("torch.") if type(value).__module__ == "torch" else value


def _as_float(value: Any) -> Any:
    """A whole number as a float: transformers refuses integers for fractions."""
    return float(value) if type(value) is int and abs(value) <= _MOST else value


# --- The names of classes --------------------------------------------------------------------


Labels = Sequence[str] | Mapping[int, str]

LABEL_FIELDS: Final = ("num_labels", "id2label", "label2id")
DEFAULT_WIDTH: Final = 2
"""The default of transformers if it writes no labels: two, with the default names."""

_ID = re.compile(r"0|[1-9][0-9]{0,8}")


def default_labels(width: int) -> tuple[str, ...]:
    """``LABEL_0``, ``LABEL_1`` and so on."""
    return tuple(f"LABEL_{index}" for index in range(width))


def names_from_ids(value: Any) -> tuple[str, ...] | None:
    """Read ``id2label``; an empty object means the same as null."""
    if not isinstance(value, dict | None):
        raise Refused
    return _in_order(value.items()) if value else None


def names_from_names(value: Any) -> tuple[str, ...] | None:
    """Read ``label2id``, the other direction."""
    if not isinstance(value, dict | None):
        raise Refused
    return _in_order((index, name) for name, index in value.items()) if value else None


def put_labels(data: dict[str, Any], names: Sequence[str] | None) -> None:
    """Write the names in both directions and their number; for None, remove all three."""
    for key in ("id2label", "label2id", "num_labels"):
        data.pop(key, None)
    if names is not None:
        ids = range(len(names))
        data["id2label"] = dict(zip(map(str, ids), names, strict=True))
        data["label2id"] = dict(zip(names, ids, strict=True))
        data["num_labels"] = len(names)


def labels_of(given: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The names of classes that a caller sets; None for those of a file that says nothing.

    Args:
        given: Some of ``num_labels``, ``id2label`` and ``label2id``.
        data: The JSON object that they are set in. Its names stay if there are as many.

    Raises:
        ConfigError: A value is impossible, or they contradict each other.
    """
    number, names, numbers = map(given.get, LABEL_FIELDS)
    known = None if names is None else _asked(_names_given, names, "labels are {!r}; they")
    if numbers is not None:
        inverted = _asked(names_from_names, numbers, "label2id is {!r}; it")
        if known not in (None, inverted):
            raise ConfigError(f"id2label {names!r} and label2id {numbers!r} contradict each other")
        known = inverted
    if number is None:
        return known
    if type(number) is not int or number < 1:
        raise ConfigError(f"num_labels is {number!r}; it must be a whole number of at least 1")
    if known is None:
        written = data.get("id2label")
        present = names_from_ids(written) if isinstance(written, dict) else None
        return present if present and len(present) == number else default_labels(number)
    if len(known) != number:
        raise ConfigError(f"num_labels is {number}, but id2label has {len(known)} names")
    return known


def _names_given(labels: Labels) -> tuple[str, ...]:
    """Read names that a caller gives, as a list or by id."""
    if isinstance(labels, str) or not isinstance(labels, Mapping | Sequence):
        raise Refused("a list of names, or names by id")
    return _in_order(labels.items() if isinstance(labels, Mapping) else enumerate(labels))


def _asked(read: Callable[[Any], tuple[str, ...] | None], value: Any, told: str) -> tuple[str, ...]:
    """The names that a caller gives; the value is told of if it has none."""
    try:
        names = read(value)
    except Refused as refused:
        allowed = str(refused) or "ids by name"
        raise ConfigError(f"{told.format(value)} must be {allowed}") from None
    if not names:
        raise ConfigError("there are no labels; give at least one")
    return names


def contradiction(written: int | None, names: int, checkpoint_rows: int | None) -> ConfigError:
    """The error for a file that contradicts itself, where the checkpoint agrees with neither value.

    Args:
        written: ``num_labels`` of the file.
        names: How many names it has.
        checkpoint_rows: Rows of the classifier in the checkpoint; None if it has none.
    """
    found = (
        "the checkpoint has no classifier to decide it"
        if checkpoint_rows is None
        else f"the classifier in the checkpoint has {checkpoint_rows} rows"
    )
    return ConfigError(
        f"config.json: 'num_labels' is {written}, 'id2label' has {names} names, and {found}; "
        "say which is meant by num_labels= or id2label="
    )


def _in_order(pairs: Iterable[tuple[Any, Any]]) -> tuple[str, ...]:
    by_id = {}
    count = 0
    for index, name in pairs:
        if not isinstance(name, str):
            raise Refused(f"texts by contiguous ids 0 to N-1; {name!r} is not a string")
        by_id[_id(index)] = name
        count += 1
    if set(by_id) != set(range(count)):
        raise Refused(f"contiguous: each of the ids 0 to {count - 1} once for {count} labels")
    return tuple(map(by_id.__getitem__, range(count)))


def _id(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and _ID.fullmatch(value):
        return int(value)
    raise Refused(f"contiguous ids 0 to N-1 with their names; {value!r} is not an id")
