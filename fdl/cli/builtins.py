"""The built-in commands as the generated table describes them.

Imported on the warm path of help and completion: Typer is not loaded for them.
"""

from __future__ import annotations

from fdl.cli.builtin_table import TABLE
from fdl.manifest.builtins import OF_SELF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from fdl.programs.parameters.contract import Schema


def find(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that name a built-in command, and the words behind them.

    The hidden spelling ``fdl install`` is ``fdl self install``.
    """
    tokens = ["self", *tokens] if tokens[0] in OF_SELF else tokens
    depth = 1
    while depth < len(tokens) and " ".join(tokens[: depth + 1]) in TABLE:
        depth += 1
    return list(tokens[:depth]), list(tokens[depth:])


def children(names: Sequence[str]) -> list[str]:
    """The commands of a group, in order; nothing for a command that is not a group."""
    start = f"{' '.join(names)} "
    below = (name.removeprefix(start) for name in TABLE if name.startswith(start))
    return [name for name in below if " " not in name]


def document(names: Sequence[str]) -> dict[str, Any]:
    """What ``--fdl-schema`` prints for a command; of a group with its commands."""
    row, below = TABLE[" ".join(names)], children(names)
    commands = {name: document([*names, name]) for name in below}
    return {**row, "commands": commands} if below else row


def schema(names: Sequence[str]) -> Schema:
    """What a command takes."""
    from fdl.programs.parameters.contract import parse

    return parse(TABLE[" ".join(names)])


def is_open(names: Sequence[str]) -> bool:
    """Whether a command takes the words of another command, with options it does not know."""
    return not TABLE[" ".join(names)]["strict"] and not children(names)


def summary(*names: str) -> str:
    """One line about a command: the first sentence of its help, without the full stop."""
    text: str = TABLE[" ".join(names)]["description"]
    return text.partition(". ")[0].removesuffix(".")


def usage(names: Sequence[str]) -> str:
    """Its usage line: ``fdl libtorch install [OPTIONS] [<variant>]``."""
    from fdl.programs.parameters.parser import slots

    known = schema(names)
    options = ["[OPTIONS]"] if known.options else []
    return " ".join(["fdl", *names, *options, *slots(known.parameters)])
