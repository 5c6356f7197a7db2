"""One manifest on the path to a command, and the next one below it.

Nothing here starts, prints or writes anything. The caller passes the function that reads a child
manifest. Imported on the warm path.
"""

# pathlib would add to the start of a command.
# ruff: noqa: PTH118
from __future__ import annotations

import os

from fdl.base.errors import ManifestError
from fdl.base.light_record import Record
from fdl.manifest.node import origin, relative

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fdl.manifest.load import Manifest
    from fdl.manifest.node import Node


RUN = "run"
PATH = "path"
PRESET = "preset"

SECTIONS = ("ddp", "training", "output")
"""Manifest sections that become generated flags."""

_OF_A_PRESET = (*SECTIONS, "options", "subcommand", "metrics", "track")
"""Keys that make an entry of ``commands:`` a preset."""


def _refuse_contradictions(level: Level, name: str, spec: Node, settings: list[str]) -> None:
    """Refuse keys that contradict each other; ``settings`` are those that make a preset."""

    def refuse(key: str, text: str, hint: str) -> ManifestError:
        place = origin(spec.mapping[key], level.root)
        return ManifestError(f"{place}: command `{level.typed(name)}`: {text}", hint=hint)

    runs = spec.get("run") is not None
    arguments = "put the arguments into `options` or into the child's `entry`"
    for key, hint in (
        ("docker", "a path command takes `docker:` from its own fdl.yml"),
        ("append", arguments),
        ("args", arguments),
        ("errexit", "it says how a script ends"),
    ):
        if spec.get(key) and not runs:
            raise refuse(key, f"`{key}` needs `run` beside it", hint)
    if spec.get("style") and not spec.get("entry"):
        raise refuse(
            "style", "`style` needs `entry` beside it", "put it beside the `entry` of the manifest"
        )
    kinds = [key for key in ("run", "path", "entry") if spec.get(key)]
    if runs and len(kinds) > 1:
        raise refuse(
            kinds[1],
            f"`run` and `{kinds[1]}` exclude each other",
            "keep `run` for a shell command, `path` for a folder with its own fdl.yml",
        )
    dead = [key for key in settings if key != "subcommand" or not spec.get("entry")]
    if kinds and dead:
        raise refuse(
            dead[0],
            f"`{dead[0]}` has no effect beside `{kinds[0]}`",
            "give the settings to a preset under a manifest with `entry`",
        )


class Level(Record):
    """One manifest on the path to a command.

    Attributes:
        manifest: The manifest.
        names: The command names that lead to it; empty for the project.
        root: Directory of the project.
        spec: The parent's entry for this command; None for the project.
        above: The mappings of the levels above whose ``env`` and ``env_file`` apply here, too.
        parent: The level above; None for the project.
        entry: The program of this level: the manifest's own, or the one that a parent sets.
        style: How settings are written for a program without declared spellings; may be empty.
        subcommand: The subcommand of the program that this level selects, or None.
        cwd: The folder in which it runs, set in the same two places; None for the manifest's own.
        description: The manifest's description, or the parent's description of this command.
        scopes: Mappings whose ``env`` and ``env_file`` apply here, weakest first: those of the
            levels above, the manifest, and the parent's entry for this command.
    """

    manifest: Manifest
    names: tuple[str, ...]
    root: str
    spec: Node | None
    above: tuple[Node, ...] = ()
    parent: Level | None = None

    def settle(self) -> None:
        """Read what the manifest, or the parent's entry, says about the program."""
        node, spec = self.manifest.node, self.spec
        self.entry = (spec.get("entry") if spec else None) or node.get("entry")
        self.style = (spec.text("style") if spec else None) or node.text("style") or ""
        self.subcommand = (spec.text("subcommand") if spec else None) or node.text("subcommand")
        self.cwd = (spec.get("cwd") if spec else None) or node.get("cwd")
        self.description = (spec.text("description") if spec else None) or node.text("description")
        self.scopes = (*self.above, node, *((spec,) if spec else ()))

    @property
    def commands(self) -> dict[str, Node]:
        """Name -> entry of this level's ``commands:``, in file order."""
        commands = self.manifest.node.get("commands")
        return commands.mapping if commands else {}

    def holders(self, preset: str | None) -> list[Node]:
        """The mappings that hold settings: the manifest, and a preset behind it."""
        return [self.manifest.node, *([self.commands[preset]] if preset else [])]

    def typed(self, *more: str) -> str:
        """The command line that leads here, plus more words: ``fdl sub t``."""
        return " ".join(("fdl", *self.names, *more))

    def kind(self, name: str) -> str:
        """The kind of one command of this level: ``RUN``, ``PATH`` or ``PRESET``.

        Only the requested command is judged, so a broken command beside it does no harm. A null
        entry is an empty one.

        Raises:
            ManifestError: Its keys contradict each other.
        """
        spec = self.commands[name]
        settings = [key for key in spec.mapping if key in _OF_A_PRESET and spec.get(key)]
        _refuse_contradictions(self, name, spec, settings)
        if spec.get("run"):
            return RUN
        if spec.get("path") or spec.get("entry"):
            return PATH
        return PRESET if settings else PATH

    def start_folder(self, name: str | None = None) -> str:
        """The folder in which the entry runs, or a run command or preset of this level.

        Raises:
            ManifestError: ``cwd`` refers to a variable that is not set.
        """
        spec = self.commands[name] if name else None
        cwd = spec.get("cwd") if spec else None
        if cwd is None and not (spec and spec.get("run")):
            cwd = self.cwd
        return self._folder(cwd, "", spec) if cwd else self.manifest.directory

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
            from fdl.manifest.variables import folder_name

            path = folder_name(self, node, scope)
        return os.path.normpath(os.path.join(self.manifest.directory, path))


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


def descend(
    level: Level, words: Sequence[str], load: Callable[[str], Manifest | None]
) -> tuple[Level, list[str]]:
    """The deepest level that the words enter, and the words behind.

    Raises:
        ManifestError: A manifest on the way is broken or missing.
    """
    rest = list(words)
    while rest and rest[0] in level.commands and level.kind(rest[0]) == PATH:
        level = enter(level, rest.pop(0), load)
    return level, rest


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


def unread(level: Level) -> tuple[str, Node] | None:
    """The settings of a manifest without ``entry``, its own or one from above: key and node."""
    if level.entry:
        return None
    for key in ("training", "options"):
        found = level.manifest.node.get(key)
        if found is not None and found.mapping:
            return key, found
    return None


def require_reader(level: Level, below: Iterable[Level] = ()) -> None:
    """Refuse a ``training:`` or ``options:`` block that no program can read.

    Args:
        level: The level of the manifest.
        below: The levels under it. The first with a program is named as the right place.

    Raises:
        ManifestError: Neither the manifest nor the one above gives the folder an ``entry``, and no
            manifest with a program inherits from the file.
    """
    found = unread(level)
    if found is None:
        return
    key, settings = found
    programs = [one for one in below if one.entry]
    if any(settings.file in one.manifest.layers for one in programs):
        return
    hint = "add `entry: python main.py` beside it, or move it to the fdl.yml of the program"
    if programs:
        folder, name = os.path.split(settings.file)
        # A file from elsewhere, through `inherit-from`, may have any name.
        name = name if folder == level.manifest.directory else "fdl.yml"
        place = relative(os.path.join(programs[0].manifest.directory, name), level.root)
        hint = f"move it to {place}, beside the program of `{programs[0].typed()}`"
    raise ManifestError(
        f"{origin(settings, level.root)}: `{key}` has no effect: there is no `entry` at or above "
        "it that could read it",
        hint=hint,
    )
