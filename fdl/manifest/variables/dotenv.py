"""The text of an env file -> its variables. Nothing in the text is executed."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

from dotenv.parser import Binding, parse_stream
from dotenv.variables import parse_variables

from fdl.base.errors import ManifestError


def parse(
    text: str, file: str, weaker: Mapping[str, str], stronger: Mapping[str, str]
) -> Iterator[tuple[str, str, int]]:
    """Name, value and line of every variable, in file order.

    Args:
        text: The file's text, in the syntax of python-dotenv.
        file: The name of the file in messages.
        weaker: Values for ``${NAME}`` if the file has not set the name yet.
        stronger: Values for ``${NAME}`` that win over the file.

    Raises:
        ManifestError: A line does not set a variable. The message does not repeat the line,
            because it may hold a secret.
    """
    own: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        line = _line(binding)
        if binding.error or (binding.key is not None and binding.value is None):
            raise ManifestError(
                f"{file}:{line}: this is not `NAME=value`",
                hint="quote a value of several lines; a comment begins with `#`",
            )
        if binding.key is None or binding.value is None:
            continue
        meaning = {**weaker, **own, **stronger}
        value = "".join(atom.resolve(meaning) for atom in parse_variables(binding.value))
        if "\0" in value:
            raise ManifestError(f"{file}:{line}: a variable cannot hold a NUL character")
        own[binding.key] = value
        yield binding.key, value, line


def _line(binding: Binding) -> int:
    """The first line of the statement. The parser's number includes the blank lines above it."""
    string = binding.original.string
    return binding.original.line + string[: len(string) - len(string.lstrip())].count("\n")


def names(text: str) -> set[str]:
    """The names in an env file, even if its lines are broken."""
    return {binding.key for binding in parse_stream(io.StringIO(text)) if binding.key}
