"""One mask for everything that ``fdl`` and ``flodl`` print or record.

:data:`KNOWN` holds the secrets of this process. ``fdl`` adds those of the manifests, and hands them
to the program in ``FDL_PLAN``. No secret is written to disk for that.

Imported on the warm path: nothing at module top.
"""

from __future__ import annotations

import os
import sys

from fdl.base.secrets import (
    HINTS,
    REDACTED,
    SHORTEST,
    SHORTEST_WHOLE,
    behind_flags,
    is_distinct,
    is_secret,
    is_secret_name,
    masked,
    plain_name,
    redact_tokens,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeVar

    Data = TypeVar("Data")

PLAN_VARIABLE = "FDL_PLAN"
"""Carries the plan of ``fdl`` to the started program, as JSON."""


class Mask:
    """Replaces known secrets wherever their text occurs.

    - A secret of at least :data:`SHORTEST` characters is masked anywhere, also within a longer
      text. With letters and digits, :data:`SHORTEST_MIXED` characters suffice.
    - A shorter one is masked where it is a whole value, from :data:`SHORTEST_WHOLE` on.
    - The spellings of JSON, HTML, URLs, the shell and Python count as well, and each line of a
      secret with several lines.
    - Secrets with a known format are masked without being known.

    Args:
        texts: The secrets.

    """

    __slots__ = ("_anywhere", "_fresh", "_marked", "_public", "_whole")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._anywhere: tuple[str, ...] = ()
        self._whole: frozenset[str] = frozenset()
        self._fresh = False
        # Names of settings, as `plain_name` writes them.
        self._marked: frozenset[str] = frozenset()
        self._public: frozenset[str] = frozenset()
        self.add(texts)

    def add(self, texts: Iterable[str]) -> None:
        """Know further secrets."""
        forms, whole = set(self._anywhere), set(self._whole)
        for text in texts:
            parts = [text, *text.splitlines()] if "\n" in text else [text]
            for part in parts:
                if is_distinct(part):
                    forms.update(_spellings(part))
                elif len(part) >= SHORTEST_WHOLE:
                    whole.add(part)
        if len(forms) > len(self._anywhere):
            self._anywhere = tuple(sorted(forms, key=len, reverse=True))
        self._whole = frozenset(whole)

    def forget(self) -> None:
        """Know only the secrets of this process again."""
        self._anywhere, self._whole = (), frozenset()
        self._marked, self._public = frozenset(), frozenset()
        self._fresh = True

    def text(self, text: str) -> str:
        """A text without secrets."""
        self._settle()
        if text in self._whole:
            return REDACTED
        for form in self._anywhere:
            if form in text:
                text = text.replace(form, REDACTED)
        return masked(text)

    def data(self, value: Data) -> Data:
        """The same for every text of JSON data; values under secret names are masked, too.

        A value is known from then on, so its copies in other places are masked.
        """
        self._settle()
        named: list[str] = []

        def learned(leaf: Any, name: str) -> Any:
            if isinstance(leaf, str) and leaf != REDACTED and self._hides(name, leaf):
                named.append(leaf)
            return leaf

        def shown(leaf: Any, name: str) -> Any:
            if self._hides(name, leaf):
                return REDACTED
            return self.text(leaf) if isinstance(leaf, str) else leaf

        _mapped(value, learned, str)
        self.add(named)
        return _mapped(value, shown, self.text)  # type: ignore[no-any-return]

    def texts(self, value: Data) -> Data:
        """The same for every text of JSON data or of a record, whatever it is called."""
        return self._texts(value)  # type: ignore[no-any-return]

    def stream(self) -> Stream:
        """Masks what arrives piece by piece."""
        return Stream(self)

    def may_begin(self, text: str) -> bool:
        """Whether a secret with blanks may begin at the end of a text and continue behind it."""
        self._settle()
        return any(
            text.endswith(form[: place + 1])
            for form in self._anywhere
            for place, char in enumerate(form[:-1])
            if char == " "
        )

    def _hides(self, name: str, value: Any) -> bool:
        plain = plain_name(name)
        if not name or plain in self._public or value in (None, ""):
            return False
        return plain in self._marked or is_secret(name, value)

    def _texts(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self._texts(key): self._texts(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self._texts, value))
        if not hasattr(value, "__dataclass_fields__"):
            return value
        from dataclasses import replace

        parts = {name: getattr(value, name) for name in value.__dataclass_fields__}
        shown = {name: self._texts(part) for name, part in parts.items()}
        changed = {name: part for name, part in shown.items() if part != parts[name]}
        return replace(value, **changed) if changed else value

    def _settle(self) -> None:
        if self._fresh:
            self._fresh = False
            self.add(self._of_process())

    def _of_process(self) -> list[str]:
        """The secrets in the variables and on the command line of this process."""
        plan = HandedDown(os.environ)
        self._marked |= plan.marked
        self._public |= plan.public
        found = [*plan.secrets]
        for name, value in os.environ.items():
            plain = plain_name(name)
            # An env file also holds ordinary words, and all of it is marked.
            marked = plain in plan.marked and len(value) >= SHORTEST
            if marked or (plain not in plan.public and is_secret(name, value)):
                found.append(value)
        return [*found, *(one for one in behind_flags(sys.argv) if one not in plan.public_words)]


class Stream:
    """Masks text that arrives piece by piece, such as the output of a program.

    A piece ends at a blank or at the end of a line, where no secret can be cut in two. What follows
    a mark of a known format waits for the end of its line.
    """

    _LONGEST = 1 << 16

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """What can be shown of the text so far."""
        self._rest += data
        end = max(self._rest.rfind(b"\n"), self._rest.rfind(b"\r")) + 1
        line = self._rest[end:].decode("utf-8", "surrogateescape")
        if not any(hint in line for hint in HINTS):
            end += self._rest[end:].rfind(b" ") + 1
        while end and self._mask.may_begin(self._rest[:end].decode("utf-8", "surrogateescape")):
            end = max(self._rest[: end - 1].rfind(mark) for mark in (b" ", b"\n", b"\r")) + 1
        if len(self._rest) - end > self._LONGEST:
            end = len(self._rest)
        whole, self._rest = self._rest[:end], self._rest[end:]
        return self._shown(whole)

    def rest(self) -> bytes:
        """What is left at the end of the text."""
        rest, self._rest = self._rest, b""
        return self._shown(rest)

    def _shown(self, data: bytes) -> bytes:
        if not data:
            return data
        text = self._mask.text(data.decode("utf-8", "surrogateescape"))
        return text.encode("utf-8", "surrogateescape")


def _mapped(value: Any, leaf: Callable[[Any, str], Any], key: Callable[[str], str]) -> Any:
    """JSON data with other leaves and keys; a leaf is given with the name that decides about it.

    It does not call itself, because data from elsewhere may be nested deeper than calls may be.
    """
    top: list[Any] = [value]
    waiting: list[tuple[Any, Any, str]] = [(top, 0, "")]
    while waiting:
        holder, place, name = waiting.pop()
        old = holder[place]
        made: Any = None
        if isinstance(old, dict):
            made = {}
            for word, item in old.items():
                shown = key(str(word))
                made[shown] = item
                waiting.append((made, shown, _below(str(word), name)))
        elif isinstance(old, list | tuple):
            made = list(old)
            waiting += [(made, number, name) for number in range(len(made))]
        holder[place] = leaf(old, name) if made is None else made
    return top[0]


def _below(key: str, name: str) -> str:
    """The name that decides about a value: the record of a setting keeps that of the setting."""
    if key in ("origin", "field"):
        return ""
    # What is below a secret name is secret, and `value` is a part of the record of a setting.
    return name if is_secret_name(name) or key in ("value", "overrides") else key


def _spellings(text: str) -> set[str]:
    """A text as JSON, HTML, URLs, the shell and Python write it."""
    if all(char.isalnum() or char in "-_." for char in text) and text.isascii():
        return {text}
    import json
    from html import escape
    from urllib.parse import quote, quote_plus

    urls = {quote(text, safe=""), quote(text), quote_plus(text)}
    as_json = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    return {
        text,
        repr(text)[1:-1],
        escape(text),
        escape(text, quote=False),
        text.replace("'", "'\"'\"'"),
        text.replace('"', '""'),
        *urls,
        *(url.replace("%", "%25") for url in urls),
        *(_lower_escapes(url) for url in urls),
        *as_json,
        *(one.replace("<", "\\u003c") for one in as_json),
        *(json.dumps(one)[1:-1] for one in as_json),
    }


def _lower_escapes(url: str) -> str:
    first, *others = url.split("%")
    return "%".join([first, *(one[:2].lower() + one[2:] for one in others)])


class HandedDown:
    """What the plan of ``fdl`` says about secrets; nothing for a program that was started by hand.

    Args:
        environ: The environment.

    Attributes:
        secrets: The texts that ``fdl`` knows, and the values of secret flags.
        marked: Names of the flags and variables that are secret.
        public: Names of those that the manifest declares public.
        public_words: The values of public flags.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.secrets: list[str] = []
        self.marked: frozenset[str] = frozenset()
        self.public: frozenset[str] = frozenset()
        self.public_words: list[str] = []
        if text := environ.get(PLAN_VARIABLE, ""):
            import json

            try:
                self._read(json.loads(text))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                # Another program may have written it.
                return

    def _read(self, plan: Mapping[str, Any]) -> None:
        self.secrets += map(str, plan.get("secrets", ()))
        for flag in plan["flags"]:
            words = plan["argv"][flag["index"] : flag["index"] + flag["count"]]
            values = [word.removeprefix(f"{flag['name']}=") for word in words]
            if flag["secret"] is None:
                self.public_words += values
            elif flag["secret"]:
                self.secrets += [value for value in values if value != flag["name"]]
        named = (*plan["flags"], *plan["variables"])
        self.marked = frozenset(plain_name(one["name"]) for one in named if one["secret"])
        self.public = frozenset(plain_name(one["name"]) for one in named if one["secret"] is None)


KNOWN = Mask()
"""The secrets of this process: those of its variables and of its command line, and those that are
added. Everything that ``fdl`` or ``flodl`` prints or records passes through it."""
KNOWN.forget()


def redacted_script(script: str) -> str:
    """A shell text to print: without known secrets and without values behind secret flags."""
    KNOWN.add(secrets_of_script(script))
    return masked_script(script, ())


def secrets_of_script(script: str) -> list[str]:
    """The values behind secret flags in a shell text."""
    return behind_flags(_words(script))


def masked_script(script: str, typed: Sequence[str]) -> str:
    """A shell text without secrets: the typed words at its end, then known texts, then flags."""
    from fdl.base.shell_words import join  # reading a manifest needs none of it

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
