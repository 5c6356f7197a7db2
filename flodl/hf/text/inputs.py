"""Check what a tokenizer gets: options, pairs of texts, and texts that UTF-8 can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def check_options(
    options: Mapping[str, object], known: Any, method: str, otherwise: str = ""
) -> None:
    """Refuse unknown keyword arguments.

    Args:
        options: The given arguments.
        known: A typed dictionary of the allowed arguments.
        method: The method that takes them, for the message.
        otherwise: What to do for other arguments.

    Raises:
        TypeError: An argument is unknown; lists the known ones.
    """
    allowed = sorted(known.__optional_keys__)
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise TypeError(
            f"{method}() takes no argument {unknown[0]!r}; it takes {', '.join(allowed)}"
            + (f". {otherwise[0].upper()}{otherwise[1:]}" if otherwise else "")
        )


def broken_text(inputs: Sequence[Any]) -> ValueError | None:
    """An error that names the first input that UTF-8 cannot encode; None if there is none.

    Args:
        inputs: Texts, or pairs; each text may be a list of words.
    """
    for row, entry in enumerate(inputs):
        for text in _flat(entry):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                return ValueError(
                    f"{'pair' if isinstance(entry, tuple) else 'text'} {row} holds half of a "
                    f"surrogate pair at character {error.start}; decode it with errors='replace' "
                    "first"
                )
    return None


def _flat(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, (list, tuple)):
        for part in entry:
            yield from _flat(part)


def checked_pair(row: int, value: object) -> tuple[str, str]:
    """A pair of texts as a tuple.

    Raises:
        TypeError: It is something else; names its row.
    """
    if isinstance(value, (tuple, list)) and len(value) == 2:
        first, second = value
        if isinstance(first, str) and isinstance(second, str):
            return first, second
    raise TypeError(f"pair {row} must be two texts, got {value!r:.80}")
