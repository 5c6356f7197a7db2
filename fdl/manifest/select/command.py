"""The command that the words of a call select, one manifest at a time.

A selection is a value: nothing is planned, started, printed or written here. Help pages, plans,
``config show``, ``why`` and completion read it. Imported on the warm path.
"""

from __future__ import annotations

from fdl.base.errors import ManifestError
from fdl.base.light_record import Record
from fdl.manifest.select.level import PRESET, RUN, enter, require_entry, require_reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fdl.manifest.load import Manifest
    from fdl.manifest.select.level import Level


LEVEL = "level"
"""The kind of a selection that names no run command and no preset, but a level and its entry."""

UNKNOWN = "unknown"
"""The kind of a selection whose ``name`` is no command of its level."""

_REFRESH = "--refresh-schema"
"""Asks the program for its arguments again, and runs nothing."""


class Selection(Record):
    """A command with its manifest and environment, and the words behind it.

    Attributes:
        level: The level of the command. Its manifest is the one of the selected environment.
        kind: ``RUN`` or ``PRESET`` for a command of the level, ``LEVEL`` for the level itself,
            ``UNKNOWN`` for a word that names no command.
        name: The command of ``level`` for the kinds ``RUN`` and ``PRESET``; the unknown word.
        words: What follows the command.
        page: Whether the help page of it is wanted. A level without an entry has nothing else.
        group: The options that the page shows: a group of them, ``all``, or nothing for the usual
            page.
    """

    level: Level
    kind: str = LEVEL
    name: str = ""
    words: Sequence[str] = ()
    page: bool = False
    group: str = ""

    @property
    def command(self) -> list[str]:
        """The words that name the command, or the unknown one."""
        return [*self.level.names, *([self.name] if self.name else [])]

    @property
    def preset(self) -> str | None:
        """The name of the preset, if one is selected."""
        return self.name if self.kind == PRESET else None

    @property
    def known(self) -> bool:
        """Whether every word of the command names something."""
        return self.kind != UNKNOWN

    @property
    def refreshes(self) -> bool:
        """Whether the program is asked for its arguments instead of running."""
        if self.page or self.kind not in (LEVEL, PRESET):
            return False
        words = list(self.words)
        return _REFRESH in (words[: words.index("--")] if "--" in words else words)

    @property
    def runs(self) -> bool:
        """Whether the selection is a command to plan."""
        if self.page or self.kind in (RUN, UNKNOWN):
            return self.kind == RUN and not self.page
        return not self.refreshes


def select(
    project: Level,
    tokens: Sequence[str],
    load: Callable[[str], Manifest | None],
    *,
    help_wanted: bool = False,
    help_word: str = "",
) -> Selection:
    """The command that a command line selects.

    Args:
        project: The root manifest.
        tokens: The command line without global flags.
        load: Reads the manifest of a directory; None if the directory has none.
        help_wanted: Whether a help flag was given; then the page of the deepest level is wanted.
        help_word: The word behind that flag. It names a group of options, never a command.

    Raises:
        ManifestError: A manifest on the path is broken, missing or contradicts itself.
    """
    level = project
    if tokens:
        name, *tail = tokens
        if name not in level.commands:
            if help_wanted and name == help_word:
                return _page(level, name)
            return Selection(level, UNKNOWN, name, tail)
        kind = level.kind(name)
        if kind == PRESET:
            require_entry(level, name)
        if kind in (RUN, PRESET):
            group = help_word if kind == PRESET else ""
            return Selection(level, kind, name, tail, help_wanted, group)
        below = enter(level, name, load)
        return behind(below, tail, load, help_wanted=help_wanted, help_word=help_word)
    return Selection(level, page=True)


def behind(
    level: Level,
    words: Sequence[str],
    load: Callable[[str], Manifest | None],
    *,
    help_wanted: bool = False,
    help_word: str = "",
) -> Selection:
    """The command that words behind a level select: one of its commands, else its entry.

    Raises:
        ManifestError: As for :func:`select`.
    """
    tail = list(words)
    if tail and tail[0] in level.commands:
        return select(level, tail, load, help_wanted=help_wanted, help_word=help_word)
    if help_wanted:
        return _page(level, "" if help_word in level.commands else help_word, tail)
    return _end(level, tail)


def _page(level: Level, group: str, words: Sequence[str] = ()) -> Selection:
    """The page of a level; of a level with a program, also the page of a group of its options."""
    from fdl.manifest.words import ALL_GROUPS

    has_groups = level.entry and level.names
    if group in ("", ALL_GROUPS) or has_groups:
        return Selection(level, words=words, page=True, group=group)
    return Selection(level, UNKNOWN, group)


def _end(level: Level, tail: list[str]) -> Selection:
    """A path command whose next token is not one of its commands."""
    if level.entry:
        return Selection(level, words=tail)
    if tail and not tail[0].startswith("-"):
        return Selection(level, UNKNOWN, tail[0])
    require_reader(level)
    if not tail and level.commands:
        return Selection(level, page=True)
    raise ManifestError(
        f"`{level.typed()}` has nothing to run: the manifest in {level.manifest.directory} "
        "has no `entry`",
        hint="add `entry: python main.py`, or name one of its commands"
        if level.commands
        else "add `entry: python main.py`, or commands",
    )
