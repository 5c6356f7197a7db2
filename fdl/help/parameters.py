"""Arguments of programs and built-in commands as rows of a help page.

Imported on the warm path of ``--help``.
"""

from __future__ import annotations

from fdl.args.parameter import UNSET, choice_text
from fdl.help.layout import Row
from fdl.secrets import REDACTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fdl.args.parameter import Parameter

_VALUE_WORDS = {"string": "TEXT", "int": "INT", "float": "FLOAT", "path": "PATH", "bool": "BOOL"}


def argument_rows(parameters: Iterable[Parameter]) -> list[Row]:
    """The positionals, in their order."""
    return [
        Row(f"<{one.name}>", one.help, notes=notes(one)) for one in parameters if one.kind == "arg"
    ]


def option_rows(parameters: Iterable[Parameter]) -> list[Row]:
    """The options, in their order."""
    return [
        Row(label(one), one.help, notes=notes(one)) for one in parameters if one.kind == "option"
    ]


def slots(parameters: Iterable[Parameter]) -> list[str]:
    """The positionals on a usage line: ``<data>``, ``[<shell>]``, ``[<file>...]``."""
    words = []
    for one in parameters:
        if one.kind == "arg":
            word = f"<{one.name}>{'...' if one.variadic else ''}"
            words.append(word if one.required else f"[{word}]")
    return words


def label(one: Parameter) -> str:
    """An option's left column: ``-n, --dry-run``, ``--lr FLOAT``, ``--report [PATH]``."""
    short = f"-{one.short}, " if one.short else "    "
    value = "" if one.shape == "flag" else f" {_VALUE_WORDS[one.type]}"
    if one.shape == "optional" and one.default is not UNSET:
        value = f" [{value.strip()}]"
    return f"{short}--{one.name}{value}"


def notes(one: Parameter) -> str:
    """What may stand for an argument, behind the sentence that says what it is for."""
    words = []
    default = _default(one)
    if default:
        bare = one.shape == "optional" and one.kind == "option"
        words.append(f"[{'bare' if bare else 'default'}: {default}]")
    if one.choices:
        words.append(f"[possible: {', '.join(one.choice_texts())}]")
    if one.env:
        words.append(f"[env: {one.env}]")
    if one.shape == "list" and one.kind == "option":
        several = "repeatable, or separated by commas" if one.commas else "several values"
        words.append(f"[{several}]")
    return " ".join(words)


def _default(one: Parameter) -> str:
    """The default as text; empty where showing it would tell nothing or too much."""
    value = one.default
    if value is UNSET or value is None or value is False or value in ("", []):
        return ""
    if one.hides(value):
        return REDACTED
    if isinstance(value, list | tuple):
        return ",".join(map(choice_text, value))
    return str(value).lower() if isinstance(value, bool) else choice_text(value)
