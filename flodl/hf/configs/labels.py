"""The names of the classes of a head, as a ``config.json`` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from flodl.hf.configs.fields import Refused
from flodl.hf.errors import ConfigError

Labels = Sequence[str] | Mapping[int, str]

ALLOWED: Final = "an object with contiguous ids 0 to N-1 as keys and texts as values, or null"
LABEL_FIELDS: Final = ("num_labels", "id2label", "label2id")
DEFAULT_WIDTH: Final = 2
"""The default of transformers if it writes no labels: two, with the default names."""

_ID = re.compile(r"0|[1-9][0-9]{0,8}")


def default_labels(width: int) -> tuple[str, ...]:
    """``LABEL_0``, ``LABEL_1`` and so on."""
    return tuple(f"LABEL_{index}" for index in range(width))


def names_from_ids(value: Any) -> tuple[str, ...] | None:
    """Read ``id2label``; an empty object means the same as null."""
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        raise Refused
    return _in_order(value.items())


def names_from_names(value: Any) -> tuple[str, ...] | None:
    """Read ``label2id``, the other direction."""
    if value is None or value == {}:
        return None
    if not isinstance(value, dict):
        raise Refused
    return _in_order((index, name) for name, index in value.items())


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
    written = data.get("id2label")
    known = names_from_ids(written) if isinstance(written, dict) else None
    return resolve_labels(number, names, None, known, None)


def resolve_labels(
    asked: int | None,
    asked_names: Labels | None,
    written: int | None,
    written_names: tuple[str, ...] | None,
    checkpoint_rows: int | None,
) -> tuple[str, ...]:
    """Determine the number of classes and their names.

    The number is the first of these that is known: the caller's number, the names in the file, the
    number in the file, the rows of the checkpoint's classifier, two. If the names and the number
    in the file disagree, the checkpoint's classifier decides. Names come from the caller. Names of
    the file are used if there are as many as classes.

    Args:
        asked: The caller's number of classes.
        asked_names: The caller's names.
        written: ``num_labels`` of the file.
        written_names: The names of the file.
        checkpoint_rows: Rows of the classifier in the checkpoint; None if it has none.

    Raises:
        ConfigError: A number is below 1, the caller's two arguments contradict each other, or the
            file contradicts itself and the checkpoint agrees with neither value.
    """
    if asked is not None and (type(asked) is not int or asked < 1):
        raise ConfigError(f"num_labels is {asked!r}; it must be a whole number of at least 1")
    if asked_names is not None:
        names = checked_labels(asked_names)
        if asked not in (None, len(names)):
            raise ConfigError(f"num_labels is {asked}, but id2label has {len(names)} names")
        return names
    width = asked or _width_of_file(written, written_names, checkpoint_rows)
    if written_names is not None and len(written_names) == width:
        return written_names
    return default_labels(width)


def _width_of_file(
    written: int | None, names: tuple[str, ...] | None, checkpoint_rows: int | None
) -> int:
    if names is None or written in (None, len(names)):
        return len(names or ()) or written or checkpoint_rows or DEFAULT_WIDTH
    if checkpoint_rows is not None and checkpoint_rows in (written, len(names)):
        return checkpoint_rows
    found = (
        "the checkpoint has no classifier to decide it"
        if checkpoint_rows is None
        else f"the classifier in the checkpoint has {checkpoint_rows} rows"
    )
    raise ConfigError(
        f"config.json: 'num_labels' is {written}, 'id2label' has {len(names)} names, and {found}; "
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
    return tuple(by_id[index] for index in range(count))


def _id(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and _ID.fullmatch(value):
        return int(value)
    raise Refused(f"contiguous ids 0 to N-1 with their names; {value!r} is not an id")
