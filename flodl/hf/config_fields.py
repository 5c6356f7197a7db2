"""Declare, read and write the fields of a ``config.json``, and the names of classes in it.

A configuration class declares each field once, with one of the functions here: its name in the
file, its other names, its default and the allowed values. Reading, writing and all error messages
follow from that declaration.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, Final

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
        key, value, is_there = self.key, self.default, False
        for name in (self.key, *self.aliases):  # the first that is not null counts
            if name in data and (not is_there or value is None):
                if not is_there or data[name] is not None:
                    key, value = name, data[name]
                is_there = True
        if value is MISSING:
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
finite: Final = Plain(_NUMBER, -sys.float_info.max, sys.float_info.max)
"""Reads a finite number."""


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
    read = Plain((int,), least, most, nullable=nullable)
    allowed = f"a whole number from {least} to {most}"
    return _declare(read, allowed, default, key, aliases, inherits)


def rate(
    *, default: Any = MISSING, key: str = "", nullable: bool = False, inherits: str | None = None
) -> Any:
    """A dropout probability, 0 to 1."""
    read = Plain(_NUMBER, 0, 1, nullable=nullable)
    return _declare(read, "a number from 0 to 1", default, key, (), inherits, _as_float)


def amount(*, default: Any = MISSING, key: str = "", nullable: bool = False) -> Any:
    """A finite number that is not negative."""
    read = Plain(_NUMBER, 0, sys.float_info.max, nullable=nullable)
    return _declare(read, "a finite number of at least 0", default, key, write=_as_float)


def flag(*, default: Any = MISSING) -> Any:
    """True or false."""
    return _declare(Plain((bool,)), "true or false", default)


def one_of(
    choices: Sequence[str], *, default: Any = MISSING, key: str = "", nullable: bool = False
) -> Any:
    """One of some words, with exactly this spelling."""
    read = Plain((str,), choices=choices, nullable=nullable)
    return _declare(read, f"one of {', '.join(choices)}", default, key)


def activation_name(*, default: Any = MISSING, key: str = "") -> Any:
    """The name of an activation function; the text is kept exactly."""
    return one_of(tuple(ACTIVATIONS), default=default, key=key)


def text(*, default: Any = MISSING, key: str = "", aliases: tuple[str, ...] = ()) -> Any:
    """A text or null."""
    read = Plain((str,), nullable=True)
    return _declare(read, "a text", default, key, aliases, write=_type_name)


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
    """Read a list of texts; null is an empty one."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not {str}.issuperset(map(type, value)):
        raise Refused
    return tuple(value)


def _declare(
    read: Callable[[Any], Any],
    allowed: str,
    default: Any,
    key: str = "",
    aliases: tuple[str, ...] = (),
    inherits: str | None = None,
    write: Callable[[Any], Any] | None = None,
) -> Any:
    if isinstance(read, Plain) and read.nullable:
        allowed = f"{allowed}, or null"
    return FieldSpec(read, allowed, write or _plain, key, aliases, default, inherits)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _type_name(value: Any) -> Any:
    """A type of torch as its name; anything else as it is."""
    return str(value).removeprefix("torch.") if type(value).__module__ == "torch" else value


def _as_float(value: Any) -> Any:
    """A whole number as a float: transformers refuses integers for fractions."""
    return float(value) if type(value) is int and abs(value) <= _MOST else value


# --- The names of classes --------------------------------------------------------------------


Labels = Sequence[str] | Mapping[int, str]

_ALLOWED: Final = "an object with contiguous ids 0 to N-1 as keys and texts as values, or null"
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


def checked_labels(labels: Labels) -> tuple[str, ...]:
    """Names given by a caller, as a list or by id.

    Raises:
        ConfigError: There are no names, one is not a text, or ids are not 0 to N-1.
    """
    try:
        if isinstance(labels, str) or not isinstance(labels, Mapping | Sequence):
            raise Refused("a list of names, or names by id")
        names = _in_order(labels.items() if isinstance(labels, Mapping) else enumerate(labels))
    except Refused as refused:
        raise ConfigError(f"labels are {labels!r}; they must be {refused}") from None
    if not names:
        raise ConfigError("there are no labels; give at least one")
    return names


def names_by_id(numbers: Mapping[str, int]) -> tuple[str, ...]:
    """Names given by a caller in the other direction, ``label2id``, in order.

    Raises:
        ConfigError: It is not a mapping, or ids are not 0 to N-1.
    """
    try:
        names = names_from_names(numbers)
    except Refused as refused:
        raise ConfigError(
            f"label2id is {numbers!r}; it must be {str(refused) or 'ids by name'}"
        ) from None
    return checked_labels(names or ())


@dataclass(eq=False, slots=True)
class ClassNames(FieldSpec):
    """The names of the classes, which a file holds in both directions, with their number."""

    def put(self, data: dict[str, Any], value: Any) -> None:
        """Write the names in both directions, and their number."""
        put_labels(data, value)


def class_names() -> Any:
    """The names of the classes by their ids, or null."""
    return ClassNames(names_from_ids, _ALLOWED, _plain, "id2label", (), None, None)


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
    number, names = given.get("num_labels"), given.get("id2label")
    if given.get("label2id") is not None:
        inverted = names_by_id(given["label2id"])
        if names is not None and checked_labels(names) != inverted:
            raise ConfigError(
                f"id2label {names!r} and label2id {given['label2id']!r} contradict each other"
            )
        names = inverted
    if number is None and names is None:
        return None
    if number is not None and (type(number) is not int or number < 1):
        raise ConfigError(f"num_labels is {number!r}; it must be a whole number of at least 1")
    if names is not None:
        names = checked_labels(names)
        if number not in (None, len(names)):
            raise ConfigError(f"num_labels is {number}, but id2label has {len(names)} names")
        return names
    written = data.get("id2label")
    known = names_from_ids(written) if isinstance(written, dict) else None
    return known if known is not None and len(known) == number else default_labels(number or 0)


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
