"""Arguments of programs and built-in commands as rows of a help page.

Imported on the warm path of ``--help``.
"""

from __future__ import annotations

from fdl.base.errors import UsageError
from fdl.base.layout import Row
from fdl.base.secrets import REDACTED
from fdl.manifest.words import ALL_GROUPS
from fdl.programs.parameters.parameter import UNSET, choice_text, group_word, groups_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fdl.programs.parameters.parameter import Parameter

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


def option_tables(
    parameters: Sequence[Parameter],
    collapsed: Mapping[str, str],
    common: Sequence[Row],
    wanted: str = "",
) -> list[tuple[str, list[Row]]]:
    """The options of a program as tables: heading and rows of each group.

    The ``common`` rows follow the general options. ``wanted`` is a group to show alone, or ``all``.

    Raises:
        UsageError: No option has the wanted group.
    """
    groups = groups_of(parameters)
    general = option_rows(groups.pop("", []))
    purposes = {group_word(group): text for group, text in collapsed.items()}
    if wanted not in ("", ALL_GROUPS):
        word = group_word(wanted)
        if word not in groups:
            raise _unknown(wanted, groups)
        return [_group(groups[word], purposes.get(word))]
    shown = [word for word in groups if wanted or word not in purposes]
    more = [
        Row(f"--help {word}", _summary(groups[word], purposes[word]))
        for word in groups
        if word not in shown
    ]
    page = "Show this page; `--help all` shows every option" if more else "Show this page"
    return [
        ("Options", [*general, Row("-h, --help", page), *common]),
        *(_group(groups[word], purposes.get(word)) for word in shown),
        ("More options", more),
    ]


def _unknown(wanted: str, groups: Iterable[str]) -> UsageError:
    from fdl.base.suggest import did_you_mean

    words = [*groups, ALL_GROUPS]
    return UsageError(
        f"no group of options is called `{wanted}`; groups: {', '.join(words)}",
        hint=did_you_mean(wanted, words, typed="--help {}"),
    )


def _group(options: list[Parameter], purpose: str | None) -> tuple[str, list[Row]]:
    group = options[0].group
    heading = group[:1].upper() + group[1:]
    return f"{heading} ({purpose})" if purpose else heading, option_rows(options)


def _summary(options: list[Parameter], purpose: str) -> str:
    count = "1 option" if len(options) == 1 else f"{len(options)} options"
    return f"{count} for {purpose}" if purpose else count


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
    letters = [word for word in one.spellings if len(word) == 2 and word != one.flag]
    short = f"{letters[0]}, " if letters else "    "
    value = "" if one.shape == "flag" else f" {_VALUE_WORDS[one.type]}"
    if one.shape == "optional" and one.default is not UNSET:
        value = f" [{value.strip()}]"
    off = f" / {one.negatives[0]}" if one.negatives else ""
    return f"{short}{one.flag}{value}{off}"


def notes(one: Parameter) -> str:
    """What may stand for an argument, behind the sentence that says what it is for."""
    words = []
    default = _default(one)
    if one.required and one.kind == "option":
        words.append("[required]")
    if "default" in one.computed:
        words.append("[default: computed by the program]")
    if default:
        bare = one.shape == "optional" and one.kind == "option"
        words.append(f"[{'without a value' if bare else 'default'}: {default}]")
    if one.choices:
        words.append(f"[possible: {', '.join(one.choice_texts())}]")
    if one.env:
        words.append(f"[env: {one.env}]")
    if one.shape == "list" and one.kind == "option":
        several = "repeatable, or separated by commas" if one.commas else "several values"
        several = f"{one.nargs} values" if isinstance(one.nargs, int) else several
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
