"""The path from the first token to the command it names, one manifest at a time.

Nothing here starts, prints or writes anything. The caller passes the function that reads a child
manifest. What is known about a program's arguments comes from its cache.
Imported on the warm path.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH118
from __future__ import annotations

import os

from fdl.dispatch.classify import PRESET, RUN, classify
from fdl.errors import ManifestError, UsageError
from fdl.light_record import Record
from fdl.manifest import origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fdl.dispatch.planner import Planner
    from fdl.manifest import Manifest, Node
    from fdl.plan import Plan


class Level:
    """One manifest on the path to a command.

    Attributes:
        manifest: The manifest.
        names: The command names that lead to it; empty for the project.
        root: Directory of the project.
        entry: The program of this level: the manifest's own, or the one that a parent sets.
        style: How settings are written for a program without declared spellings; may be empty.
        subcommand: The subcommand of the program that this level selects, or None.
        cwd: The folder in which it runs, set in the same two places; None for the manifest's own.
        description: The manifest's description, or the parent's description of this command.
        scopes: Mappings whose ``env`` and ``env_file`` apply here, weakest first: those of the
            levels above, the manifest, and the parent's entry for this command.
        spec: The parent's entry for this command; None for the project.
        parent: The level above; None for the project.
    """

    def __init__(
        self,
        manifest: Manifest,
        names: tuple[str, ...],
        root: str,
        spec: Node | None,
        above: tuple[Node, ...] = (),
        parent: Level | None = None,
    ) -> None:
        node = manifest.node
        self.spec = spec
        self.parent = parent
        self.manifest = manifest
        self.names = names
        self.root = root
        self.entry = (spec.get("entry") if spec else None) or node.get("entry")
        self.style = (spec.text("style") if spec else None) or node.text("style") or ""
        self.subcommand = (spec.text("subcommand") if spec else None) or node.text("subcommand")
        self.cwd = (spec.get("cwd") if spec else None) or node.get("cwd")
        self.description = (spec.text("description") if spec else None) or node.text("description")
        self.scopes = (*above, node, *((spec,) if spec else ()))

    @property
    def commands(self) -> dict[str, Node]:
        """Name -> entry of this level's ``commands:``, in file order."""
        commands = self.manifest.node.get("commands")
        return commands.mapping if commands else {}

    def typed(self, *more: str) -> str:
        """The command line that leads here, plus more words: ``fdl sub t``."""
        return " ".join(("fdl", *self.names, *more))

    def kind(self, name: str) -> str:
        """The kind of one command of this level.

        Raises:
            ManifestError: Its keys contradict each other.
        """
        return classify(self.typed(name), self.commands[name], self.root)

    def start_folder(self, name: str | None = None) -> str:
        """The folder in which the entry runs, or a run command or preset of this level.

        Raises:
            ManifestError: ``cwd`` refers to a variable that is not set.
        """
        spec = self.commands[name] if name else None
        cwd = spec.get("cwd") if spec else None
        if cwd is None and not (spec and spec.get("run")):
            cwd = self.cwd
        return self._folder(cwd, "", spec)

    def child_directory(self, name: str) -> str:
        """The directory of a path command's manifest: its ``path``, or a folder of its name.

        Raises:
            ManifestError: ``path`` refers to a variable that is not set.
        """
        spec = self.commands[name]
        return self._folder(spec.get("path"), name, spec)

    def _folder(self, node: Node | None, otherwise: str, scope: Node | None) -> str:
        path = str(node.value) if node else otherwise
        if node and "$" in path:
            from fdl.dispatch.expand import folder_name

            path = folder_name(self, node, scope)
        return os.path.normpath(os.path.join(self.manifest.directory, path))


class Help(Record):
    """A page to show instead of running a command.

    Attributes:
        level: The level of the page, or the level that declares the page's command.
        kind: ``"level"`` for the project or a path command, ``"run"`` or ``"preset"``.
        name: The command of ``level`` for the last two kinds.
        group: The options to show: a group of them, ``all``, or nothing for the usual page.
        words: What follows the command: it may name a subcommand of the program.
    """

    level: Level
    kind: str = "level"
    name: str = ""
    group: str = ""
    words: Sequence[str] = ()

    @property
    def command(self) -> list[str]:
        """The words that name what the page is about."""
        return [*self.level.names, *([self.name] if self.name else [])]


class Refresh(Record):
    """A program to ask for its schema instead of running it; ``level`` has the entry."""

    level: Level


class Unknown(Record):
    """A word that does not name a command, and the level of the search."""

    level: Level
    token: str


def resolve(
    project: Level,
    tokens: Sequence[str],
    *,
    help_wanted: bool,
    help_word: str = "",
    load: Callable[[str], Manifest | None],
    planner: Planner,
) -> Plan | Help | Refresh | Unknown:
    """Resolve a command line.

    Args:
        project: The root manifest.
        tokens: The command line without global flags.
        help_wanted: Whether a help flag was given; then the page of the deepest level is shown.
        help_word: The word behind that flag. It names a group of options, never a command.
        load: Reads the manifest of a directory; None if the directory has none.
        planner: Turns the command into a Plan.

    Raises:
        ManifestError: A manifest on the path is broken, missing or contradicts itself.
        UsageError: The arguments do not fit the command.
    """
    level, rest = project, list(tokens)
    while rest:
        name, tail = rest[0], rest[1:]
        if name not in level.commands:
            return _help(level, name) if help_wanted and name == help_word else Unknown(level, name)
        kind = level.kind(name)
        if kind == RUN:
            return Help(level, RUN, name) if help_wanted else _run(level, name, tail, planner)
        if kind == PRESET:
            require_entry(level, name)
            if help_wanted:
                return Help(level, PRESET, name, help_word, tail)
            return _run_entry(level, name, tail, planner)
        level = enter(level, name, load)
        if not tail or tail[0] not in level.commands:
            if help_wanted:
                return _help(level, "" if help_word in level.commands else help_word, tail)
            return _end(level, tail, planner)
        rest = tail
    return Help(level)


def _help(level: Level, group: str, words: Sequence[str] = ()) -> Help | Unknown:
    """The page of a level; of a level with a program, also the page of a group of its options."""
    from fdl.args.parameter import ALL_GROUPS

    has_groups = level.entry and level.names
    if group in ("", ALL_GROUPS) or has_groups:
        return Help(level, group=group, words=words)
    return Unknown(level, group)


def enter(level: Level, name: str, load: Callable[[str], Manifest | None]) -> Level:
    """The level that a path command opens.

    Raises:
        ManifestError: The manifest is missing or broken.
    """
    directory = level.child_directory(name)
    manifest = load(directory)
    if manifest is None:
        spec = level.commands[name]
        raise ManifestError(
            f"no fdl.yml found in {directory}; `{level.typed(name)}` is declared at "
            f"{origin(spec.get('path') or spec, level.root)}",
            hint="create it, or give the command a `run:` or another `path:`",
        )
    names = (*level.names, name)
    return Level(manifest, names, level.root, level.commands[name], level.scopes, level)


def _end(level: Level, tail: list[str], planner: Planner) -> Plan | Help | Refresh | Unknown:
    """Resolve a path command whose next token is not one of its commands."""
    if level.entry:
        return _run_entry(level, None, tail, planner)
    if tail and not tail[0].startswith("-"):
        return Unknown(level, tail[0])
    require_reader(level)
    if not tail and level.commands:
        return Help(level)
    raise ManifestError(
        f"`{level.typed()}` has nothing to run: the manifest in {level.manifest.directory} "
        "has no `entry`",
        hint="add `entry: python main.py`, or name one of its commands"
        if level.commands
        else "add `entry: python main.py`, or commands",
    )


def _run_entry(
    level: Level, preset: str | None, tail: list[str], planner: Planner
) -> Plan | Refresh:
    """The entry, with or without a preset, checked against the known schema of the program."""
    if "--refresh-schema" in (tail[: tail.index("--")] if "--" in tail else tail):
        return Refresh(level)
    from fdl.schema import known

    level = planner.with_values(level, preset)
    schema = known(level, keep=planner.keeps)
    if schema is not None:
        from fdl.dispatch.arguments import arguments
        from fdl.schema.validate import check_preset, check_tail

        made = arguments(level, preset, tail, schema)
        takes = made.schema or schema
        if preset is not None:
            check_preset(takes, level, preset)
        check_tail(takes, made.tail, level.typed(*([preset] if preset else [])), level.typed())
    return planner.entry(level, preset, tail, schema)


def _run(level: Level, name: str, tail: list[str], planner: Planner) -> Plan:
    cut = tail.index("--") if "--" in tail else len(tail)
    user = tail[cut + 1 :]
    if level.commands[name].get("args"):
        return planner.run(level, name, user, tail[:cut])
    if cut:
        from fdl.dispatch.compose import join

        raise UsageError(
            f"arguments of `{level.typed(name)}` go after `--`",
            hint=f"{level.typed(name)} -- {join([*tail[:cut], *user])}",
        )
    return planner.run(level, name, user)


def require_entry(level: Level, name: str) -> None:
    """Refuse a preset of a manifest without an entry.

    Raises:
        ManifestError: The message says what the command needs instead.
    """
    if level.entry:
        return
    place = origin(level.commands[name], level.root)
    raise ManifestError(
        f"{place}: `{level.typed(name)}` is a preset, but its manifest has no `entry` to run",
        hint="without `entry`, a command needs `run` (a shell command) or `path` (a folder)",
    )


def require_reader(level: Level) -> None:
    """Refuse a ``training:`` block that no program can read.

    Raises:
        ManifestError: Neither the manifest nor the one above gives the folder an ``entry``.
    """
    training = level.manifest.node.get("training")
    if level.entry or training is None or not training.mapping:
        return
    raise ManifestError(
        f"{origin(training, level.root)}: `training` has no effect: there is no `entry` at or "
        "above it that could read it",
        hint="add `entry: python main.py` beside it, or move it to the fdl.yml of the program",
    )
