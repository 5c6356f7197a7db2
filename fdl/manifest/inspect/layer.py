"""The layers of a manifest with their texts, and the layers after a change of one text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.errors import ManifestError, UsageError
from fdl.manifest.check import check
from fdl.manifest.discover import Found
from fdl.manifest.inspect.splice import NewValue, candidates, layout_of
from fdl.manifest.layers import environments, overlay_file, overlay_files, stack
from fdl.manifest.load import Manifest
from fdl.manifest.node import Node
from fdl.manifest.overlay import merge
from fdl.manifest.read import parse
from fdl.manifest.select.walk import below
from fdl.manifest.source import read_text, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from fdl.manifest.select.project import Project

_BASE = "base"


class Layers:
    """The files of one manifest, read and merged.

    Args:
        found: The base file.
        env: The environment, or None.
        instead: Texts to use instead of those of files.

    Attributes:
        manifest: The merge.
        nodes: File -> its own tree.
        texts: File -> its text.
    """

    def __init__(
        self, found: Found, env: str | None, instead: Mapping[str, str] | None = None
    ) -> None:
        self._found = found
        self._env = env
        self.texts: dict[str, str] = {}
        self.nodes: dict[str, Node] = {}
        self._instead = instead or {}
        overlays = overlay_files(found.directory, env).values()
        layers = stack(found.path, overlays, self._read)
        node, removed = merge(layers)
        files = tuple(one.file for one in layers)
        self.manifest = Manifest(found, env, (node, files, removed), overlays)

    def replaced(self, file: str, text: str) -> Layers:
        """The layers with another text for one file.

        Raises:
            ManifestError: The layers cannot be merged with it.
        """
        return Layers(self._found, self._env, {file: text})

    def raw(self, file: str) -> bytes:
        """The bytes of a file, to detect later whether it has changed."""
        data = Path(file).read_bytes()
        if data.removeprefix(b"\xef\xbb\xbf").decode() == self.texts[file]:
            return data
        return self.texts[file].encode()

    def check(self, file: str) -> None:
        """Refuse content that a manifest must not hold.

        Raises:
            ManifestError: Every mistake with its place.
        """
        check(self.nodes[file], whole=False)
        check(self.manifest.node, whole=True)

    def _read(self, file: str) -> Node:
        text = self._instead.get(file)
        self.texts[file] = read_text(file) if text is None else text
        self.nodes[file] = parse(self.texts[file], file)
        return self.nodes[file]


def settled(
    project: Project, of_command: Found | None, where: str | None
) -> tuple[Layers, str | None, Sequence[str]]:
    """The active layers of a manifest, the file that ``where`` names, and the command it is for.

    An inactive environment is treated as if it were active. ``where`` is ``base``, an environment
    of the manifest of the command (else of the project), or a file. Without a command it may be a
    file of any manifest of the project.

    Raises:
        ManifestError: The manifest is broken.
        UsageError: ``where`` does not name one of its layers.
    """
    found, env = of_command or project.found, project.env
    if where is None or where == _BASE:
        return Layers(found, env), found.path if where else None, ()
    overlay = overlay_file(found.directory, where)
    if overlay:
        layers = Layers(found, env)
        return (layers if overlay in layers.nodes else Layers(found, where)), overlay, ()
    wanted = {os.path.realpath(where), os.path.realpath(Path(project.directory, where))}
    files: list[str] = []
    for one, names in _manifests(project, found):
        for name in dict.fromkeys((env, *environments(one.directory))):
            try:
                layers = Layers(one, name)
            except ManifestError:
                if one is found:
                    raise
                continue
            for file in layers.manifest.layers:
                if os.path.realpath(file) not in wanted:
                    files.append(shown(file))
                elif of_command and one is not found:
                    raise UsageError(
                        f"`--for` changes {shown(found.path)}, and `--where` names {shown(file)}",
                        hint="leave out one of the two",
                    )
                else:
                    return layers, file, names
    known = dict.fromkeys((_BASE, *environments(found.directory), *files))
    raise UsageError(
        f"`--where {where}` is not a file of this project", hint=f"one of {', '.join(known)}"
    )


def _manifests(project: Project, first: Found) -> Iterator[tuple[Found, Sequence[str]]]:
    """The manifests of a project with their commands, one of them first."""
    yield first, ()
    if first is not project.found:
        yield project.found, ()
    for place in below(project.level(), project.child):
        if place.level and place.level.manifest.found.path != first.path:
            yield place.level.manifest.found, place.names


def spliced(
    node: Node,
    text: str,
    file: str,
    path: tuple[str, ...],
    new: NewValue,
    first: Iterable[str] = (),
) -> str | None:
    """The best text that differs from a manifest's in one value alone; None if there is none.

    Args:
        node: The tree of the text.
        text: The text.
        file: Its file.
        path: Where the value is, or would be.
        new: The value.
        first: Texts to try before all others.
    """
    layout = layout_of(text, file)
    for candidate in (*first, *candidates(text, file, layout, path, new)):
        try:
            made = parse(candidate, file)
            comments = layout_of(candidate, file).comments
        except ManifestError:
            continue
        if comments == layout.comments and _is_only_change(node, made, path, new):
            return candidate
    return None


def _is_only_change(old: Node, new: Node, path: tuple[str, ...], value: NewValue) -> bool:
    """Whether the two trees differ only in one value, types and tags included."""
    known, made = dict(_flat(old, ())), dict(_flat(new, ()))
    there = new.find(*path)
    if there is None or repr(there.plain()) != repr(value.node.plain()):
        return False
    before = old.find(*path)
    if value.tagged:
        marks = (value.node.merge, value.node.secret)
    elif before is not None:
        marks = (before.merge if isinstance(there.value, list) else None, before.secret)
    else:
        marks = (None, False)
    if (there.merge, there.secret) != marks:
        return False
    for step in range(len(path) + 1):
        # A mapping on the path may be new. Its former content is compared leaf by leaf.
        known.pop(path[:step], None)
        made.pop(path[:step], None)
    return _without(known, path) == _without(made, path)


def _without(flat: dict[tuple[str, ...], str], path: tuple[str, ...]) -> list[object]:
    return [item for item in flat.items() if item[0][: len(path)] != path]


def _flat(node: Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every node with its path and content, in file order."""
    if isinstance(node.value, dict):
        yield path, f"mapping {node.secret}"
        for key, child in node.value.items():
            yield from _flat(child, (*path, key))
    else:
        yield path, repr((node.plain(), node.merge, node.secret))
