"""What must never be printed: telling secrets by their names, and blanking them out.

A value is secret when its YAML carries ``!secret`` or when its name says so. Text is secret if the
last word of its name is ``token``, ``key``, ``credentials`` …. Any value is secret if a word of its
name is ``password``, ``secret`` ….
Imported on the warm path: nothing at module top.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

REDACTED = "<secret>"
"""Stands in print where a secret would."""

_ALWAYS = frozenset(
    ("password", "passwords", "passwd", "passphrase", "pwd", "secret", "secrets", "apikey",
     "apitoken", "authtoken", "accesstoken", "accesskey", "secretkey", "privatekey")
)  # fmt: skip
_AT_THE_END = frozenset(
    ("token", "tokens", "key", "keys", "credential", "credentials", "auth", "pat", "cookie")
)
# A value this short would blank out half of every text it is looked for in.
_SHORTEST = 4


def is_secret_name(name: str) -> bool:
    """Whether what bears this name is kept from print: ``HF_TOKEN``, ``api-key``, ``dbPassword``.

    ``max_tokens`` and ``sort_key`` look alike: numbers under such names are shown, see
    :func:`is_secret`.
    """
    words = _words(name)
    return bool(words) and (words[-1] in _AT_THE_END or any(word in _ALWAYS for word in words))


def is_secret(name: str, value: object) -> bool:
    """Whether the name of a value makes it secret; ``max_tokens: 128`` is not secret."""
    if value is None or isinstance(value, bool) or not is_secret_name(name):
        return False
    if isinstance(value, int | float) and not any(word in _ALWAYS for word in _words(name)):
        return False
    return value not in ("", [], {})


def redact_tokens(argv: Sequence[str]) -> list[str]:
    """An argument vector to print: the values of ``--api-key VALUE`` and ``--token=VALUE`` gone."""
    shown = []
    flag = ""
    for token in argv:
        name, equals, value = token.partition("=")
        if flag and not token.startswith("--"):
            shown.append(REDACTED if is_secret(flag, _typed(token)) else token)
            flag = ""
            continue
        # An assignment as in `env A_TOKEN=x` hides its value just as `--a-token=x` does.
        names = name.startswith("-") or name.isidentifier()
        if equals and names and is_secret(name, _typed(value)):
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(token)
        flag = name if not equals and name.startswith("-") and is_secret_name(name) else ""
    return shown


def redact_text(text: str, values: Iterable[str]) -> str:
    """A text without any of the given secret values, longest first."""
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, REDACTED)
        elif text == value and value:
            text = REDACTED
    return text


def _typed(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _words(name: str) -> list[str]:
    """The lower-case words of ``api-key``, ``API_KEY`` and ``apiKey``."""
    words, word, before = [], "", ""
    for char in name:
        if not char.isalnum() or (char.isupper() and before.islower()):
            words.append(word)
            word = ""
        if char.isalnum():
            word += char.lower()
        before = char
    return [word for word in (*words, word) if word]
