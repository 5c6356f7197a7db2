"""The language of ``--where``: conditions on runs, such as ``val_loss < 0.1 and lr >= 0.01``.

==============================  ==================================================================
``NAME < VALUE``                also ``<=``, ``>``, ``>=``, ``=``, ``==``, ``!=``
``NAME in (VALUE, VALUE)``      one of several values; ``not in`` is its opposite
``NAME ~ 'REGEX'``              a regular expression found anywhere in the text; ``!~``: not found
``NAME``                        the value is true
``and`` ``or`` ``not`` ``( )``  join conditions
==============================  ==================================================================

Names are those of :mod:`fdl.runs.quantity`; one with unusual characters stands in
backquotes. A value is a number, a time span (``30m``, ``7d``), a date (``2026-01-31``), ``true``,
``false``, text with or without quotes, or a quantity with its explicit name (``last:train_loss``).

A missing value never matches: a condition on it is unknown, and so is ``not`` of it.

The filter of the page of many runs is read here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from fdl.base.errors import UsageError
from fdl.runs.quantity import Quantity, Text, compare, constant, found_in, quoted
from fdl.runs.run import LISTED_STATES

if TYPE_CHECKING:
    from fdl.runs.quantity import Known
    from fdl.runs.run import Run

Condition = Callable[["Run"], "bool | None"]
"""Whether a run meets a condition; None if a value is missing."""

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<call>(?:min|max)\s*\((?:`[^`]*`|[^()`])*\))
      | (?P<operator><=|>=|==|!=|!~|[<>=~])
      | (?P<mark>[(),])
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<name>`[^`]*`)
      | (?P<word>[^\s()<>=!~,'"`]+)
      | (?P<end>$)
    )""",
    re.VERBOSE,
)
_QUOTED = re.compile(r"\\(['\"\\])")
_OTHER_WORDS = {"&&": "and", "&": "and", "||": "or", "|": "or", "!": "not"}
_KEYWORDS = ("and", "or", "not", "in")
_NOT_NAMES = {*_KEYWORDS, *_OTHER_WORDS}
_LAST_WORD = re.compile(r"[^\s(`]*\Z")
_EXPLICIT = re.compile(r"(?:last|best):.|config\..")
_DEEPEST = 50


class Token(NamedTuple):
    """A piece of the text, and where it begins."""

    kind: str
    text: str
    place: int


def parse(text: str, known: Known) -> Condition:
    """Read a condition.

    Args:
        text: The condition.
        known: The names that the runs know.

    Raises:
        UsageError: The text is not a condition; a caret shows the character.
    """
    return _Parser(text, known).parse()


def matches(condition: Condition, run: Run) -> bool:
    """Whether a run certainly meets a condition."""
    return condition(run) is True


def spelled(name: str) -> str:
    """A name as a condition takes it: in backquotes if it has characters of other tokens."""
    found = _TOKEN.fullmatch(name)
    plain = found is not None and found.lastgroup == "word" and name not in _NOT_NAMES
    return name if plain else quoted(name)


def begun(text: str) -> str:
    """A condition that is being typed, without the name at its end."""
    if text.count("`") % 2:
        return text[: text.rindex("`")]
    return _LAST_WORD.sub("", text, count=1)


class _Parser:
    """Reads one text, by recursive descent."""

    def __init__(self, text: str, known: Known) -> None:
        self._text = text
        self._known = known
        self._depth = 0
        self._end = 0
        self._next = self._read()

    def parse(self) -> Condition:
        condition = self._any_of()
        if self._next.kind != "end":
            self._refuse(
                f"`{self._next.text}` is not expected here", "`and` and `or` join conditions"
            )
        return condition

    def _any_of(self) -> Condition:
        parts = [self._all_of()]
        while self._accept("or"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else _joined(parts, decisive=True)

    def _all_of(self) -> Condition:
        parts = [self._one()]
        while self._accept("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else _joined(parts, decisive=False)

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._refuse(f"conditions are nested in more than {_DEEPEST} levels")
        if self._accept("not"):
            condition = _opposite(self._one())
        elif self._accept("(", "mark"):
            condition = self._any_of()
            if not self._accept(")", "mark"):
                self._refuse("`)` is missing")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> Condition:
        name = self._take()
        if name.kind not in ("word", "name", "call") or name.text in _KEYWORDS:
            what = f"`{name.text}` is" if name.text else "the condition ends"
            problem = f"{what}, where a name is expected" if name.text else what + " too early"
            self._refuse(problem, "such as val_loss < 0.1", name)
        quantity = self._resolve(name)
        if self._accept("not"):
            if not self._accept("in"):
                self._refuse("`in` is missing after `not`")
            return _opposite(self._membership(quantity))
        if self._accept("in"):
            return self._membership(quantity)
        if self._next.kind != "operator":
            return lambda run: found_in(quantity.value(run), Text("true"))
        operator = self._take()
        value = self._take()
        if operator.text in ("~", "!~"):
            return self._expression(quantity, value, opposite=operator.text == "!~")
        return _compared(quantity, operator.text, self._value(quantity, operator.text, value))

    def _membership(self, quantity: Quantity) -> Condition:
        if not self._accept("(", "mark"):
            self._refuse("`(` is missing after `in`", "such as seed in (1, 2, 3)")
        values = [self._value(quantity, "=", self._take())]
        while self._accept(",", "mark"):
            values.append(self._value(quantity, "=", self._take()))
        if not self._accept(")", "mark"):
            self._refuse("`)` is missing")
        return _joined([_compared(quantity, "=", one) for one in values], decisive=True)

    def _expression(self, quantity: Quantity, token: Token, *, opposite: bool) -> Condition:
        if token.kind not in ("text", "word"):
            self._refuse("a regular expression in quotes is expected", "name ~ 'resnet.*'", token)
        quoted = token.kind == "text"
        try:
            pattern = re.compile(token.text[1:-1] if quoted else token.text)
        except re.error as problem:
            place = token.place + quoted + (problem.pos or 0)
            self._refuse(f"the regular expression is wrong: {problem.msg}", at=place)
        condition: Condition = lambda run: found_in(quantity.value(run), pattern)  # noqa: E731
        return _opposite(condition) if opposite else condition

    def _value(self, quantity: Quantity, operator: str, token: Token) -> object:
        """The right side of a comparison, which must fit the left one."""
        if token.kind == "call" or (token.kind == "word" and _EXPLICIT.match(token.text)):
            return self._resolve(token)
        if token.kind == "name" or token.kind not in ("text", "word") or token.text in _KEYWORDS:
            got = f", not `{token.text}`" if token.text else ""
            self._refuse(f"`{operator}` needs a value{got}", "a number, a date or text", token)
        if token.kind == "text":
            value = constant(_QUOTED.sub(r"\1", token.text[1:-1]), quoted=True)
        else:
            value = constant(token.text)
        if quantity.is_date and not value.is_date:
            self._refuse(f"`{quantity.name}` takes a date", "such as 2026-01-31", token)
        if quantity.is_number and value.number is None:
            close = token.text in self._known.metrics
            hint = f"write `last:{token.text}` for the metric" if close else "such as 0.1"
            self._refuse(f"`{quantity.spelling}` is compared with a number", hint, token)
        if operator not in ("=", "==", "!=") and value.number is None and not value.is_date:
            hint = "`=`, `in` and `~` compare text"
            self._refuse(f"`{operator}` compares numbers and dates", hint, token)
        is_state = quantity.name == "state" and quantity.spelling == "state"
        if is_state and value.text not in LISTED_STATES:
            hint = f"one of {', '.join(LISTED_STATES)}"
            self._refuse(f"`{value.text}` is not a state of a run", hint, token)
        return value

    def _resolve(self, token: Token) -> Quantity:
        try:
            return self._known.resolve(token.text)
        except UsageError as problem:
            self._refuse(problem.message, problem.hint, token)

    def _accept(self, text: str, kind: str = "word") -> bool:
        if (self._next.kind, self._next.text) != (kind, text):
            return False
        self._take()
        return True

    def _take(self) -> Token:
        token = self._next
        if token.kind != "end":
            self._next = self._read()
        return token

    def _read(self) -> Token:
        found = _TOKEN.match(self._text, self._end)
        if found is None:
            place = self._end + len(self._text[self._end :]) - len(self._text[self._end :].lstrip())
            char = self._text[place]
            is_quote = char in "'\"`"
            self._refuse(
                f"the quote {char} is not closed" if is_quote else f"`{char}` is not expected here",
                "" if is_quote else _remedy(char),
                at=place,
            )
        self._end = found.end()
        kind = str(found.lastgroup)
        text = found[kind]
        if text in _OTHER_WORDS:
            self._refuse(f"`{text}` is not a word here", _remedy(text), at=found.start(kind))
        return Token(kind, text, found.start(kind))

    def _refuse(
        self, problem: str, hint: str = "", token: Token | None = None, at: int | None = None
    ) -> NoReturn:
        from rich.cells import cell_len

        place = at if at is not None else (token or self._next).place
        line = "".join(char if char.isprintable() else " " for char in self._text)
        caret = " " * cell_len(line[:place]) + "^"
        raise UsageError(f"--where: {problem}\n  {line}\n  {caret}", hint=hint)


def _remedy(text: str) -> str:
    return f"write `{_OTHER_WORDS[text]}`" if text in _OTHER_WORDS else ""


def _compared(quantity: Quantity, operator: str, other: object) -> Condition:
    return lambda run: compare(
        quantity.value(run), operator, other.value(run) if isinstance(other, Quantity) else other
    )


def _joined(parts: list[Condition], *, decisive: bool) -> Condition:
    """Whether any part decides; unknown if none does and one is unknown."""

    def joined(run: Run) -> bool | None:
        results = [part(run) for part in parts]
        if decisive in results:
            return decisive
        return None if None in results else not decisive

    return joined


def _opposite(condition: Condition) -> Condition:
    def opposite(run: Run) -> bool | None:
        result = condition(run)
        return None if result is None else not result

    return opposite
