"""The files that ``inputs`` and ``outputs`` of a command name."""

# The paths are strings, thousands of them.
# ruff: noqa: PTH112, PTH113, PTH118, PTH206, PTH207, PTH208
from __future__ import annotations

import glob
import os
from collections.abc import Iterator

from fdl.base.errors import ManifestError
from fdl.base.suggest import did_you_mean
from fdl.manifest.node import Node, origin

VARIABLE = "env:"
"""Begins an input that is an environment variable: ``env:HF_HOME``."""

_PASSED_OVER = frozenset((".fdl", ".git", "__pycache__"))
"""Folders of tools. They change although nobody has changed an input."""


class Patterns:
    """Some patterns of one command.

    Args:
        nodes: The patterns.
        folder: Where they start: the folder of the manifest.
        root: Directory of the project. Found files are relative to it.
    """

    def __init__(self, nodes: list[Node], folder: str, root: str) -> None:
        self.variables = [
            str(node.value).removeprefix(VARIABLE)
            for node in nodes
            if str(node.value).startswith(VARIABLE)
        ]
        self.texts = [str(node.value) for node in nodes]
        self._nodes = [node for node in nodes if not str(node.value).startswith(VARIABLE)]
        self._folder = folder
        self._root = root

    def files(self) -> list[str]:
        """The files that are there now, sorted."""
        return sorted({file for node in self._nodes for file in self._files(str(node.value))})

    def required(self, command: str) -> list[str]:
        """The same, where every pattern must match something.

        Raises:
            ManifestError: One matches nothing. The message has its place.
        """
        for node in self._nodes:
            if not any(map(os.path.exists, self._matches(str(node.value)))):
                raise ManifestError(
                    f"{origin(node, self._root)}: input `{node.value}` of `{command}` matches no "
                    "file",
                    hint=self._hint(str(node.value)),
                )
        return self.files()

    def missing(self) -> list[str]:
        """The patterns that match nothing."""
        texts = (str(node.value) for node in self._nodes)
        return [text for text in texts if not any(map(os.path.exists, self._matches(text)))]

    def _matches(self, text: str) -> Iterator[str]:
        whole = os.path.join(self._folder, text)
        if os.path.lexists(whole):
            # A name may hold characters that mean something in a pattern.
            return iter((whole,))
        found = glob.iglob(text, root_dir=self._folder, recursive=True, include_hidden=True)
        return (os.path.join(self._folder, one) for one in found)

    def _files(self, text: str) -> Iterator[str]:
        entered: set[str] = set()
        for match in self._matches(text):
            if os.path.isdir(match):
                yield from map(self._named, _below(match, entered))
            elif os.path.isfile(match):
                name = self._named(match)
                if _PASSED_OVER.isdisjoint(name.split(os.sep)):
                    yield name

    def _named(self, file: str) -> str:
        return os.path.relpath(file, self._root)

    def _hint(self, text: str) -> str:
        """The nearest name, at the first part of the path that does not exist."""
        parent, name = os.path.split(text.rstrip("/"))
        while parent and not os.path.isdir(os.path.join(self._folder, parent)):
            parent, name = os.path.split(parent)
        folder = os.path.join(self._folder, parent)
        return did_you_mean(
            name,
            sorted(os.listdir(folder)) if os.path.isdir(folder) else (),
            f"patterns start at {self._folder}; `**` stands for folders of any depth",
            typed=os.path.join(parent, "{}"),
        )


def _below(folder: str, entered: set[str]) -> Iterator[str]:
    """Every file below a folder; a folder is entered once, also through links."""
    for here, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        folders[:] = [name for name in folders if name not in _PASSED_OVER]
        for name in names:
            file = os.path.join(here, name)
            if os.path.isfile(file):
                yield file
