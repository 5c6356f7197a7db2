"""Check texts and pairs of texts before the tokenizer gets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

Pair: TypeAlias = tuple[str, str]


def checked_texts(texts: Sequence[str]) -> list[str]:
    """The texts as a list.

    Raises:
        ValueError: There are no texts.
        TypeError: It is a single text, or an entry is not a text.
    """
    _check_some(texts)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {row} is a {type(text).__name__}, not a str")
    return list(texts)


def checked_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs as a list of tuples.

    Raises:
        ValueError: There are no pairs.
        TypeError: It is a single text, or an entry is not two texts.
    """
    _check_some(pairs)
    for row, pair in enumerate(pairs):
        if not _is_pair(pair):
            raise TypeError(f"pair {row} must be two texts, got {pair!r:.80}")
    return [(first, second) for first, second in pairs]


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


def _check_some(inputs: Sequence[object]) -> None:
    if isinstance(inputs, (str, bytes)):
        raise TypeError("expected a list, got one text; put it into a list")
    if len(inputs) == 0:
        raise ValueError("empty batch")


def _is_pair(value: object) -> TypeGuard[Pair]:
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(isinstance(text, str) for text in value)
    )
