"""A shell text to print: without known secrets and without values behind secret flags."""

from __future__ import annotations

from fdl.base.masking import KNOWN
from fdl.base.secrets import behind_flags, redact_tokens
from fdl.base.shell_words import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def redacted_script(script: str) -> str:
    """A shell text to print: without known secrets and without values behind secret flags."""
    KNOWN.add(secrets_of_script(script))
    return masked_script(script, ())


def secrets_of_script(script: str) -> list[str]:
    """The values behind secret flags in a shell text."""
    return behind_flags(_words(script))


def masked_script(script: str, typed: Sequence[str]) -> str:
    """A shell text without secrets: the typed words at its end, then known texts, then flags."""
    cut = typed.index("--") if "--" in typed else len(typed)
    for part in (typed[:cut], typed[cut + 1 :]):
        if part:
            script = script.replace(join(part), join(redact_tokens(part)))
    script = KNOWN.text(script)
    words = script.split()
    shown, end = "", 0
    for word, instead in zip(words, redact_tokens(words), strict=True):
        start = script.index(word, end)
        shown += script[end:start] + instead
        end = start + len(word)
    return shown + script[end:]


def _words(script: str) -> list[str]:
    """The words of a shell text, as the program would get them."""
    if not any(mark in script for mark in "'\"\\"):
        return script.split()
    import shlex

    try:
        return shlex.split(script)
    except ValueError:
        # Shell syntax that is more than words; what stands behind flags is found word by word.
        return script.split()
