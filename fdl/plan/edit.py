"""``fdl config set``: changes one value in the layer where it takes effect, and nothing else.

The layer is the one whose value wins now. For a new key it is the strongest active layer that holds
the mapping around it. The new text is read back, merged and checked before it is written.
"""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base import output
from fdl.base.errors import FdlError, ManifestError, UsageError
from fdl.base.files import rewrite
from fdl.base.light_record import Record
from fdl.base.secrets import is_secret_name
from fdl.manifest.example import copied
from fdl.manifest.inspect.document import explanation, terminal_columns
from fdl.manifest.inspect.field import OVERRIDDEN, WINS, Report, parse
from fdl.manifest.inspect.layer import Layers, settled, spliced
from fdl.manifest.inspect.splice import NewValue, layout_of
from fdl.manifest.layers import LOCAL, overlay_file
from fdl.manifest.node import Node, dotted, relative
from fdl.manifest.secrecy import printable
from fdl.manifest.select.command import Selection
from fdl.manifest.select.level import PATH, PRESET, RUN, SECTIONS, enter
from fdl.manifest.select.project import Project
from fdl.manifest.select.unknown import set_below
from fdl.manifest.source import shown
from fdl.plan.command import plan_of
from fdl.plan.inspect import page_of, resolved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.inspect.field import Field
    from fdl.manifest.select.level import Level
    from fdl.plan.inspect import Command
    from fdl.plan.planner import Host


_MARK = b"\xef\xbb\xbf"

# What a preset sets for itself. The other keys belong to the manifest around it.
_OF_A_PRESET = ("ddp", "training", "output", "options", "env", "env_file", "description")

# What only the manifest of a path command can hold, not its entry in the manifest above.
_OF_A_MANIFEST = (*SECTIONS, "options", "commands", "schema")


class Change(Record):
    """One new text for one file that changes exactly one value.

    Attributes:
        before: The layers as they are.
        file: The file.
        path: The keys that lead to the value.
        new_text: The file's text as it would be.
        names: The words of the command that the value is for; empty for the whole project.
        root: Directory of the project.
        text: The file's text as it is.
        after: The layers as they would be.
        fields: The values that would apply.
    """

    before: Layers
    file: str
    path: tuple[str, ...]
    new_text: str
    names: Sequence[str]
    root: str

    def settle(self) -> None:
        """Read the layers with the new text."""
        self.text = self.before.texts[self.file]
        self.after = self.before.replaced(self.file, self.new_text)
        self.fields: list[Field] = []

    def project(self, project: Project) -> Project:
        """A project like this one, with the change in it."""
        manifest = self.after.manifest
        made = Project(project.found, manifest.env)
        made.use(manifest)
        return made

    def diff(self) -> str:
        """A unified diff without secrets; empty if the value is already there."""
        name = shown(self.file)
        old, new = self._printable(self.before), self._printable(self.after, changed=self.path)
        if self.text == self.new_text:
            return ""
        lines = difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), name, f"{name} (new)"
        )
        ended = (line if line.endswith("\n") else f"{line}\n\\ no newline\n" for line in lines)
        return "".join(ended)

    def report(self) -> str:
        """What has changed where, and the values that apply now, as ``fdl why`` prints them."""
        node = self.after.nodes[self.file].find(*self.path)
        place = f"{shown(self.file)}:{node.line}" if node else shown(self.file)
        purpose = f" for `fdl {' '.join(self.names)}`" if self.names else ""
        text = f"changed {place}{purpose}\n"
        if self.text == self.new_text:
            text = f"{place} has this value already{purpose}\n"
        if not self.fields:
            return f"{text}{dotted(self.path)} is not set any more\n"
        return text + explanation(self.fields, output.palette(sys.stdout), terminal_columns())

    def write(self) -> None:
        """Replace the file. Links stay links, permissions stay as they are.

        An example is first copied to the real manifest.

        Raises:
            FdlError: The file cannot be written, or has changed since it was read.
        """
        found = self.before.manifest.found
        file = copied(found).path if self.file == found.path else self.file
        if self.text != self.new_text:
            raw = self.before.raw(self.file)
            new = self.new_text.encode()
            rewrite(file, raw, _MARK + new if raw.startswith(_MARK) else new, name=shown(file))

    def _printable(self, layers: Layers, changed: tuple[str, ...] = ()) -> str:
        text = layers.texts[self.file]
        return printable(text, layers.nodes[self.file], layout_of(text, self.file), changed)


def prepare(
    project: Project,
    path: str,
    value: str,
    *,
    where: str | None,
    words: Sequence[str] | None,
    place: Host,
) -> Change:
    """Find the file to change and the text that changes it.

    Args:
        project: The project, under the environment to change it for.
        path: A dotted path of the project's manifest, or of the settings of one command.
        value: The new value as YAML; ``null`` deletes the value of weaker layers.
        where: ``base``, an environment, or a file of the project; None for the layer whose value
            wins now.
        words: The command to change the value for; None for the whole manifest.
        place: Where commands are taken to run.

    Raises:
        FdlError: The change is impossible, would have no effect, or would break the manifest.
    """
    keys = _keys(path)
    new = _new_value(value, keys)
    page = None if words is None else page_of(project, words)
    if page:
        own = page.kind == RUN or (page.kind == PRESET and keys[0] in _OF_A_PRESET)
        keys = ("commands", page.name, *keys) if own else keys
    level, keys = (page.level, keys) if page else _nested(project, keys)
    own_manifest = level.manifest.found if page or level.names else None
    before, asked, names = settled(project, own_manifest, where)
    names = names or level.names
    folder = names
    if not names and not page and not asked:
        project.require_overlay_for("the project's own manifest")
        if not level.entry and level.manifest.node.find(*keys) is None:
            _require_here(project, path, value)
    if not page and keys[0] == "commands":
        names = [*names, *keys[1:2]]
    file = asked or _home(before, keys)
    text = _spliced(before, file, keys, new)
    change = Change(before, file, keys, text, page.command if page else names, project.directory)
    change.after.check(file)
    if keys[0] in ("training", "options") and new.node.value is not None:
        _require_reader(change.project(project), folder)
    change.fields = Report(change.after.manifest, change.root).explain(keys)
    _require_effect(change, new.node)
    _require_no_other_effect(change)
    if page:
        command = resolved(change.project(project), words or (), place)
        change.fields = _require_effect_on(change, command, path, new.node) or change.fields
    elif planned := _planned(project, change, place):
        asked_of = keys[2:] if keys[0] == "commands" else keys
        _require_effect_on(change, planned, dotted(asked_of), new.node)
    elif not names and level.entry:
        _require_accepted(project, change, place)
    return change


def _nested(project: Project, keys: tuple[str, ...]) -> tuple[Level, tuple[str, ...]]:
    """The manifest that a path through ``commands`` leads to, and the rest of the path in it.

    ``commands.train.training.lr`` is `training.lr` in the manifest of the path command `train`.
    """
    level = project.level()
    while len(keys) > 2 and keys[0] == "commands" and keys[2] in _OF_A_MANIFEST:
        if keys[1] not in level.commands or level.kind(keys[1]) != PATH:
            break
        level = enter(level, keys[1], project.child)
        keys = keys[2:]
    return level, keys


def _require_here(project: Project, path: str, value: str) -> None:
    """Refuse a setting of a command whose manifest has it already, because none reads it here."""
    field, command = set_below(project, path)
    if command and field.partition(".")[0] in (*SECTIONS, "options"):
        raise UsageError(
            f"no program reads `{path}` of {shown(project.found.path)}: it is a setting of "
            f"`fdl {command}`",
            hint=f"fdl config set --for {shlex.quote(command)} {field} {shlex.quote(value)}",
        )


def _require_reader(project: Project, names: Sequence[str]) -> None:
    """Refuse settings of a manifest whose folder has no program."""
    project.require_reader(project.descend(names)[0])


def _require_accepted(project: Project, change: Change, place: Host) -> None:
    """Refuse what the entry of the project's own manifest does not take.

    A manifest that has mistakes already can be changed, step by step.
    """
    before, after = Project(project.found, change.before.manifest.env), change.project(project)
    for one in (before, after):
        try:
            plan_of(Selection(one.level()), one, place)
        except UsageError:
            continue  # the program needs arguments
        except FdlError:
            if one is after:
                raise
            return


def _planned(project: Project, change: Change, place: Host) -> Command | None:
    """The command that a value of the project's manifests belongs to, planned with the change.

    None if it has no such command, or if the command cannot be planned without the change either.
    """
    if not change.names:
        return None
    there = Project(project.found, change.before.manifest.env)
    try:
        resolved(there, change.names, place)
    except FdlError:
        return None
    return resolved(change.project(project), change.names, place)


def words_of(line: str) -> list[str]:
    """The words of ``--for``.

    Raises:
        UsageError: They cannot be told apart.
    """
    try:
        return shlex.split(line)
    except ValueError as problem:
        raise UsageError(
            f"`--for` does not split into words: {problem}",
            hint="close the quotation or escape the character with a backslash",
        ) from None


def _require_effect_on(change: Change, command: Command, asked: str, value: Node) -> list[Field]:
    """Refuse a change that the planned command would not notice.

    Returns the values that the command gets.
    """
    found = command.find(asked)
    if value.value is None:
        return found
    if not found and asked.partition(".")[0] in (*SECTIONS, "options"):
        # Another section makes the same flag.
        found = command.find(asked.rpartition(".")[2])
    node = change.after.nodes[change.file].find(*change.path)
    file = relative(change.file, change.root)
    for field in found:
        parts = [(one.file, one.line) for one in field.stack if one.role != OVERRIDDEN]
        leaf = node is not None and not isinstance(node.value, dict)
        here = (file, node.line) in parts if node and leaf else any(one == file for one, _ in parts)
        if not here:
            top = field.top
            raise FdlError(
                f"the change in {shown(change.file)} would have no effect on `{command.typed}`: "
                f"{top.place or top.source} wins for `{field.name}`",
                hint=f"fdl why {field.name} {' '.join(command.plan.command)}",
            )
    return found


def _keys(path: str) -> tuple[str, ...]:
    keys: list[str] = []
    for step in parse(path):
        if isinstance(step, int):
            raise UsageError(
                f"`{path}` is one item of a list", hint="set the whole list: `[first, second]`"
            )
        keys.append(step)
    if keys[0] == "inherit-from":
        raise UsageError(
            "`inherit-from` decides which layers there are, so it is not a value of the manifest",
            hint="change it in the file by hand",
        )
    return tuple(keys)


def _new_value(text: str, path: tuple[str, ...]) -> NewValue:
    from fdl.manifest.read_yaml import read_yaml

    try:
        node = read_yaml(text, "VALUE")
    except ManifestError as problem:
        # The message may repeat parts of the value.
        if any(is_secret_name(key) for key in path):
            raise UsageError(f"the new value of `{dotted(path)}` is not valid YAML") from None
        hint = problem.hint or "put the text between quotes: '\"a: b\"'"
        raise UsageError(f"the new value: {problem.message}", hint=hint) from None
    if node.value == {} and "{" not in text:
        about = ", because `#` begins a comment" if "#" in text else ""
        raise UsageError(
            f"the new value is empty{about}", hint="write '\"\"' for empty text, '\"#\"', or null"
        )
    return NewValue(node, text)


def _home(layers: Layers, path: tuple[str, ...]) -> str:
    """The file with the value that wins now, or the file for a new key."""
    merged = layers.manifest.node.find(*path)
    if merged is not None and not (isinstance(merged.value, dict) and merged.value):
        if merged.merge and merged.losers:
            files = [shown(one.file) for one in (merged, *merged.losers)]
            raise FdlError(
                f"`{dotted(path)}` is put together from {', '.join(dict.fromkeys(files))}",
                hint=f"name the file to change: --where {shown(merged.file)}",
            )
        if layers.nodes[merged.file].find(*path) is not None:
            return merged.file
    for removed in layers.manifest.removed:
        null = layers.nodes[removed.by.file].find(*removed.path)
        if removed.path == path[: len(removed.path)] and null is not None:
            return removed.by.file
    own = overlay_file(layers.manifest.directory, LOCAL)
    # A new value is for everybody who works on the project.
    strongest = [file for file in reversed(layers.manifest.layers) if file != own]
    strongest += [own] if own else []
    for depth in range(len(path), -1, -1):
        for file in strongest:
            holder = layers.nodes[file].find(*path[:depth])
            if holder is not None and isinstance(holder.value, dict):
                return file
    return layers.manifest.found.path


def _spliced(layers: Layers, file: str, path: tuple[str, ...], new: NewValue) -> str:
    """The best text that differs in this value alone, or an error."""
    node = layers.nodes[file]
    text = spliced(node, layers.texts[file], file, path, new)
    if text is not None:
        return text
    place = node.find(*path)
    where = f"{shown(file)}:{place.line}" if place else shown(file)
    raise FdlError(
        f"{where}: `{dotted(path)}` cannot be changed without touching what is around it, "
        "such as a comment inside of the value",
        hint="change it in the file by hand",
    )


def _require_effect(change: Change, value: Node) -> None:
    """Refuse a change that a stronger layer would hide."""
    fields = change.fields
    wanted = os.path.realpath(change.file)
    if value.value is None and not any(one.value is not None for one in fields):
        return
    if not fields:
        raise FdlError(
            f"the change in {shown(change.file)} would have no effect: a stronger layer replaces "
            "or removes the mapping around it",
            hint=f"`fdl why {dotted(change.path[:-1])}` names the layer",
        )
    for field in fields:
        parts = [one for one in field.stack if one.role != OVERRIDDEN and one.file]
        files = [os.path.realpath(Path(change.root, str(one.file))) for one in parts]
        own = value.find(*map(str, field.path[len(change.path) :]))
        if (own is not None and wanted not in files) or (value.value is None and parts):
            top = field.top
            weaker = top.role == WINS and value.value is None
            raise FdlError(
                f"the change in {shown(change.file)} would have no effect: "
                f"{top.place} {'still sets' if weaker else 'wins for'} `{field.name}`",
                hint=f"change it there: --where {shown(str(Path(change.root, str(top.file))))}",
            )


def _require_no_other_effect(change: Change) -> None:
    """Refuse a change that would bring back values which a null in this file has removed."""
    path = change.path
    before = {at: repr(leaf.plain()) for at, leaf in change.before.manifest.node.leaves()}
    for at, leaf in change.after.manifest.node.leaves():
        # Setting `ddp.mode` removes `ddp.policy`, and the other way round.
        is_rival = len(at) > 1 and at[-2] == "ddp" and at[:-1] == path[:-1]
        is_own = at[: len(path)] == path or path[: len(at)] == at
        if not is_own and not is_rival and before.get(at) != repr(leaf.plain()):
            raise FdlError(
                f"the change would also set `{dotted(at)}`, which {shown(change.file)} removes "
                "together with its mapping",
                hint="change the file by hand",
            )
