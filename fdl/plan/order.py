"""The order of generated arguments: a list that takes all words behind it ends before others.

Imported on the warm path of entries.
"""

from __future__ import annotations

from fdl.base.errors import ManifestError, UsageError
from fdl.manifest.node import origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.plan.generate import Group

SEPARATOR = "--"


def before_subcommand(made: list[Group], word: str, root: str) -> list[Group]:
    """The groups in front of the name of a subcommand.

    Raises:
        ManifestError: A list would take the name as one of its values.
    """
    made = _closed_last(made)
    if made and _is_open(made[-1]):
        raise ManifestError(
            _swallowed(made[-1], word, root),
            hint="set another option of one value before the subcommand",
        )
    return made


def before_words(made: list[Group], tail: Sequence[str], root: str) -> list[Group]:
    """The groups in front of typed arguments; a separator ends a list if nothing else does.

    Raises:
        UsageError: A list would take the first typed argument, and options follow that.
    """
    typed = [word for place, word in enumerate(tail) if place != _separator(tail)]
    follows = bool(typed) and not typed[0].startswith("-")
    options = [one for one in made if one.declared is None or one.declared.kind == "option"]
    arguments = made[len(options) :]
    if not (follows or arguments) or not options or not _is_open(options[-1]):
        return made
    options = _closed_last(options)
    if not _is_open(options[-1]):
        return [*options, *arguments]
    if follows and any(word.startswith("-") and word != "-" for word in typed):
        raise UsageError(
            _swallowed(options[-1], typed[0], root),
            hint="write the options first, then the arguments",
        )
    if not follows:
        return [*arguments, *options]
    options[-1].tokens.append(SEPARATOR)
    return [*options, *arguments]


def _separator(tail: Sequence[str]) -> int:
    """The place of the separator that fdl takes away; -1 without one."""
    return list(tail).index(SEPARATOR) if SEPARATOR in tail else -1


def _closed_last(made: list[Group]) -> list[Group]:
    """Lists first. If there is nothing else, a last one with a single value is made one word."""
    made = sorted(made, key=lambda one: one.declared is not None and not _is_open(one))
    if made and _is_open(made[-1]) and len(made[-1].tokens) == 2:
        made[-1].tokens = ["=".join(made[-1].tokens)]
    return made


def _is_open(group: Group) -> bool:
    """Whether the next word may be a value of this argument."""
    one = group.declared
    if one is None or one.kind == "arg":
        # Of an unknown option, nothing is assumed.
        return False
    if one.nargs == "?":
        return len(group.tokens) == 1 and "=" not in group.tokens[0]
    return one.nargs in ("*", "+") and "=" not in group.tokens[0]


def _swallowed(group: Group, word: str, root: str) -> str:
    where = origin(group.node, root)
    return f"`{group.name}` ({where}) takes every word that follows it, and so `{word}` too"
