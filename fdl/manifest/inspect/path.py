"""Dotted paths as users type them: ``training.lr``, ``commands."a.b".run``, ``args[0]``."""

from __future__ import annotations

from fdl.base.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.inspect.field import Path


def parse(text: str) -> Path:
    """The keys and indices of a path. Reverses :func:`fdl.manifest.node.dotted`.

    Raises:
        UsageError: The text is not a path.
    """
    steps: list[str | int] = []
    rest = text
    while True:
        key, rest = _quoted(rest, text) if rest.startswith('"') else _plain(rest)
        if not key:
            raise _refused(text)
        steps.append(key)
        while rest.startswith("["):
            digits, closing, rest = rest[1:].partition("]")
            if not closing or not digits.isdecimal():
                raise _refused(text)
            steps.append(int(digits))
        if not rest:
            return tuple(steps)
        if not rest.startswith("."):
            raise _refused(text)
        rest = rest[1:]


def _plain(text: str) -> tuple[str, str]:
    end = min((text.index(char) for char in ".[" if char in text), default=len(text))
    return text[:end], text[end:]


def _quoted(text: str, whole: str) -> tuple[str, str]:
    """The key between double quotes, where a backslash keeps the next character."""
    key, place = "", 1
    while place < len(text):
        if text[place] == '"':
            return key, text[place + 1 :]
        place += text[place] == "\\"
        key += text[place : place + 1]
        place += 1
    raise _refused(whole)


def _refused(text: str) -> UsageError:
    return UsageError(
        f"`{text}` is not a path of a manifest",
        hint='write `training.lr`, or `commands."a.b".run` for a key that holds a dot',
    )
