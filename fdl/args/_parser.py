"""argv and environment -> values, each with the place it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdl.args._fields import RESERVED_LONG, UNSET, Parameter
from fdl.suggest import nearest


@dataclass(frozen=True, slots=True)
class Source:
    """Where one value came from: a token of argv, a variable, or the declaration."""

    index: int | None = None
    variable: str | None = None


class Parser:
    """Reads one argument vector against a list of parameters.

    Raises:
        ValueError: From :meth:`parse`, with the message for the user.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._options = {one.long: one for one in parameters if one.kind == "option"}
        self._shorts = {one.short: one for one in self._options.values() if one.short}
        self._positionals = [one for one in parameters if one.kind == "arg"]
        self._values: dict[str, Any] = {}
        self._sources: dict[str, Source] = {}

    def parse(
        self, argv: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[dict[str, Any], dict[str, Source]]:
        """Return every value and its source: argv over environment over default."""
        self._values, self._sources = {}, {}
        self._place(self._read_flags(argv))
        for one in (*self._options.values(), *self._positionals):
            if one.field in self._values:
                continue
            text = environ.get(one.env, "") if one.env else ""
            if text:
                self._sources[one.field] = Source(variable=one.env)
                self._values[one.field] = (
                    _many(one, text) if one.shape == "list" else one.convert(text)
                )
            elif one.required:
                raise ValueError(f"missing required argument {one.display}")
            else:
                self._sources[one.field] = Source()
                self._values[one.field] = one.absent()
        return self._values, self._sources

    def _read_flags(self, argv: Sequence[str]) -> list[tuple[int, str]]:
        """Consume the flags of argv and return the positionals with their indices."""
        positionals: list[tuple[int, str]] = []
        index = 0
        while index < len(argv):
            token = argv[index]
            if token == "--":
                positionals += list(enumerate(argv))[index + 1 :]
                break
            if token.startswith("--"):
                index = self._read_long(argv, index)
            elif token.startswith("-") and token != "-" and not self._negative_positional(token):
                index = self._read_cluster(argv, index)
            else:
                positionals.append((index, token))
                index += 1
        return positionals

    def _negative_positional(self, token: str) -> bool:
        return _is_number(token) and any(one.numeric for one in self._positionals)

    def _read_long(self, argv: Sequence[str], index: int) -> int:
        name, equals, text = argv[index][2:].partition("=")
        one = self._options.get(name)
        if one is None:
            guess = nearest(name, [*self._options, *RESERVED_LONG])
            hint = f", did you mean `--{guess}`?" if guess else ""
            raise ValueError(f"unknown flag `--{name}`{hint}")
        return self._take(one, argv, index, text if equals else None)

    def _read_cluster(self, argv: Sequence[str], index: int) -> int:
        letters, equals, text = argv[index][1:].partition("=")
        for position, letter in enumerate(letters):
            one = self._shorts.get(letter)
            if one is None:
                raise ValueError(f"unknown flag `-{letter}`")
            if position == len(letters) - 1:
                return self._take(one, argv, index, text if equals else None)
            if one.shape != "flag":
                raise ValueError(
                    f"`-{letter}` requires a value and so must come last in `-{letters}`"
                )
            self._store(one, True, index)
        raise ValueError(f"unknown flag `{argv[index]}`")

    def _take(self, one: Parameter, argv: Sequence[str], index: int, attached: str | None) -> int:
        """Store the value of an option at argv[index]; return the index of the next token."""
        if one.shape == "flag":
            if attached is not None:
                raise ValueError(f"`{one.display}` takes no value")
            self._store(one, True, index)
            return index + 1
        if attached is not None:
            self._store_text(one, attached, index)
            return index + 1
        following = argv[index + 1] if index + 1 < len(argv) else None
        if following is not None and _may_be_value(one, following):
            self._store_text(one, following, index)
            return index + 2
        if one.shape == "list" or one.default is UNSET:
            raise ValueError(f"`{one.display}` requires a value")
        self._store(one, one.default, index)
        return index + 1

    def _store_text(self, one: Parameter, text: str, index: int) -> None:
        if one.shape == "list":
            self._store(one, [*self._values.get(one.field, []), *_many(one, text)], index)
        else:
            self._store(one, one.convert(text), index)

    def _store(self, one: Parameter, value: Any, index: int) -> None:
        self._values[one.field] = value
        self._sources[one.field] = Source(index=index)

    def _place(self, words: list[tuple[int, str]]) -> None:
        for one in self._positionals:
            if one.variadic:
                if words:
                    self._store(one, [one.convert(text) for _, text in words], words[-1][0])
                return
            if not words:
                return
            index, text = words.pop(0)
            self._store(one, one.convert(text), index)
        if words:
            raise ValueError(f"unexpected argument `{words[0][1]}`")


def _many(one: Parameter, text: str) -> list[Any]:
    return [one.convert(part.strip()) for part in text.split(",") if part.strip()]


def _may_be_value(one: Parameter, token: str) -> bool:
    if not token.startswith("-") or token == "-":
        return True
    return one.numeric and _is_number(token)


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True
