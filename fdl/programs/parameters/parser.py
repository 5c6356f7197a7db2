"""argv and environment -> values, each with the place it came from.

Imported by every built-in command: nothing beyond our own light modules.
"""

from __future__ import annotations

from fdl.manifest.words import RESERVED_LONG
from fdl.programs.parameters.parameter import UNSET, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from fdl.programs.parameters.parameter import Parameter


class Source:
    """Where one value came from: a token of argv, a variable, or the declaration.

    Attributes:
        index: Position of the token in argv, or None.
        variable: Name of the environment variable, or None.
        losers: The values this one has beaten, strongest first, each with its source.
    """

    __slots__ = ("index", "losers", "variable")

    def __init__(self, index: int | None = None, variable: str | None = None) -> None:
        self.index = index
        self.variable = variable
        self.losers: list[tuple[Any, Source]] = []


class RefusedError(ValueError):
    """Arguments that do not fit; the text is for the user.

    Attributes:
        source: Where the offending value stands, when it is one value that is wrong.
        surplus: The argument that is one too many, or nothing.
        unknown: The option that does not exist, as it was typed, or nothing.
    """

    def __init__(
        self, message: str, source: Source | None = None, surplus: str = "", unknown: str = ""
    ) -> None:
        super().__init__(message)
        self.source = source
        self.surplus = surplus
        self.unknown = unknown


class Parser:
    """Reads argument vectors against a list of parameters.

    Of several values for one parameter the strongest counts: what was typed, then the environment,
    then tokens that nobody typed, then the default. Among tokens of one kind the last counts;
    those of a list add up.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = sorted(parameters, key=lambda one: one.kind == "arg")

    def parse(
        self, argv: Sequence[str], environ: Mapping[str, str], generated: Collection[int] = ()
    ) -> tuple[dict[str, Any], dict[str, Source]]:
        """Return every value and its source.

        ``generated`` are the positions in ``argv`` of tokens that come out of a manifest.

        Raises:
            RefusedError: The tokens, or a variable, do not fit the parameters.
        """
        given = _Reading(self._parameters).read(argv)
        values, sources = {}, {}
        for one in self._parameters:
            stack = _ranked(one, given.get(one.field, []), environ, generated)
            if not stack:
                allowed = f" -- allowed: {', '.join(one.choice_texts())}" if one.choices else ""
                raise RefusedError(f"missing required argument {one.display}{allowed}")
            values[one.field], sources[one.field] = stack[0]
            sources[one.field].losers = stack[1:]
        return values, sources


def _ranked(
    one: Parameter,
    given: list[tuple[Any, int]],
    environ: Mapping[str, str],
    generated: Collection[int],
) -> list[tuple[Any, Source]]:
    """All values of a parameter, strongest first."""
    stack = _of_tokens(one, [found for found in given if found[1] not in generated])
    text = environ.get(one.env, "") if one.env else ""
    if text:
        source = Source(variable=one.env)
        stack.append((_read(one, text, source), source))
    stack += _of_tokens(one, [found for found in given if found[1] in generated])
    if not one.required:
        stack.append((one.absent(), Source()))
    return stack


def _read(one: Parameter, text: str, source: Source) -> Any:
    try:
        return one.split(text) if one.shape == "list" else one.convert(text)
    except ValueError as problem:
        raise RefusedError(str(problem), source) from None


def _of_tokens(one: Parameter, given: list[tuple[Any, int]]) -> list[tuple[Any, Source]]:
    if one.shape == "list":
        joined = [item for value, _ in given for item in value]
        return [(joined, Source(given[-1][1]))] if given else []
    return [(value, Source(index)) for value, index in reversed(given)]


class _Reading:
    """One pass over an argument vector."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._options = {one.name: one for one in parameters if one.kind == "option"}
        self._shorts = {one.short: one for one in self._options.values() if one.short}
        self._positionals = [one for one in parameters if one.kind == "arg"]
        self._given: dict[str, list[tuple[Any, int]]] = {}

    def read(self, argv: Sequence[str]) -> dict[str, list[tuple[Any, int]]]:
        """Field -> its values with the positions of their tokens, in the order of argv."""
        words: list[tuple[int, str]] = []
        index = 0
        while index < len(argv):
            token = argv[index]
            if token == "--":
                words += list(enumerate(argv))[index + 1 :]
                break
            if token.startswith("--"):
                index = self._read_long(argv, index)
            elif token.startswith("-") and token != "-" and not self._negative_positional(token):
                index = self._read_cluster(argv, index)
            else:
                words.append((index, token))
                index += 1
        self._place(words)
        return self._given

    def _negative_positional(self, token: str) -> bool:
        return is_number(token) and any(one.numeric for one in self._positionals)

    def _read_long(self, argv: Sequence[str], index: int) -> int:
        name, equals, text = argv[index][2:].partition("=")
        one = self._options.get(name)
        if one is None:
            from fdl.base.suggest import did_you_mean

            guess = did_you_mean(name, [*self._options, *RESERVED_LONG], typed="--{}")
            said = f"unknown option `--{name}`{guess and f', {guess}'}"
            raise RefusedError(said, Source(index), unknown=f"--{name}")
        return self._take(one, argv, index, text if equals else None)

    def _read_cluster(self, argv: Sequence[str], index: int) -> int:
        letters, equals, text = argv[index][1:].partition("=")
        for position, letter in enumerate(letters):
            one = self._shorts.get(letter)
            if one is None:
                said = f"unknown option `-{letter}`"
                raise RefusedError(said, Source(index), unknown=f"-{letter}")
            if position == len(letters) - 1:
                return self._take(one, argv, index, text if equals else None)
            if one.shape != "flag":
                raise RefusedError(
                    f"`-{letter}` requires a value and so must come last in its cluster; "
                    f"a value is written `-{letter} VALUE` or `-{letter}=VALUE`"
                )
            self._store(one, True, index)
        raise RefusedError("unknown option `-`")

    def _take(self, one: Parameter, argv: Sequence[str], index: int, attached: str | None) -> int:
        """Store the value of an option at argv[index]; return the index of the next token."""
        end = index + 1
        if one.shape == "flag":
            if attached is not None:
                raise RefusedError(f"`{one.display}` takes no value", Source(index))
            value = True
        elif attached is not None:
            value = _read(one, attached, Source(index))
        elif end < len(argv) and one.may_take(argv[end]):
            value = _read(one, argv[end], Source(index))
            end += 1
        # The default of `T` is for the absent option. Without a value, a slip of the fingers would
        # silently replace what the manifest says.
        elif one.shape != "optional" or one.default is UNSET:
            raise RefusedError(f"`{one.display}` requires a value", Source(index))
        else:
            value = one.default
        self._store(one, value, index)
        return end

    def _store(self, one: Parameter, value: Any, index: int) -> None:
        self._given.setdefault(one.field, []).append((value, index))

    def _place(self, words: list[tuple[int, str]]) -> None:
        for one in self._positionals:
            if not words:
                return
            count = len(words) if one.variadic else 1
            for index, text in words[:count]:
                try:
                    value = one.convert(text)
                except ValueError as problem:
                    raise RefusedError(str(problem), Source(index)) from None
                self._store(one, [value] if one.shape == "list" else value, index)
            del words[:count]
        if words:
            index, word = words[0]
            raise RefusedError(f"unexpected argument `{word}`", Source(index), surplus=word)
