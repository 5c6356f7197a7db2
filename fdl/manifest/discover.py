"""Finding the manifest: the search from a directory upwards, and the example files.

Imported on the warm path: only ``os`` at module top.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH100, PTH113, PTH118, PTH120
from __future__ import annotations

import os

NAMES = ("fdl.yml", "fdl.yaml", "fdl.json")
EXAMPLES = tuple(f"{name}{suffix}" for name in NAMES for suffix in (".example", ".dist"))


class Found:
    """A manifest on disk, before it is read.

    Attributes:
        path: Absolute path of the file.
        directory: Absolute path of the directory that holds it.
        is_example: Whether the file is a ``.example`` or ``.dist`` used in place of the real one.
        real_path: The path of the copy of an example; ``path`` itself for a real file.
        others: Names of manifests in the same directory that are not read.
        warnings: What is said about these.
    """

    def __init__(self, directory: str, name: str, others: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.path = os.path.join(directory, name)
        self.is_example = name not in NAMES
        self.real_path = self.path.rpartition(".")[0] if self.is_example else self.path
        self.others = others
        ignored = ", ".join(others)
        told = f"{directory} holds several manifests: {name} is read, not {ignored}"
        self.warnings = (told,) if others else ()


def find(start: str) -> Found | None:
    """The manifest nearest to ``start``, climbing to the root of the file system.

    In each directory real files come before examples. An example in a nearer directory wins over a
    real file above it: a fresh checkout must not run the commands of its parent.
    """
    directory = os.path.abspath(start)
    while True:
        found = find_in(directory)
        parent = os.path.dirname(directory)
        if found is not None or parent == directory:
            return found
        directory = parent


def find_in(directory: str) -> Found | None:
    """The manifest of exactly this directory, or None."""
    directory = os.path.abspath(directory)
    # Every entry with a real name counts, also a directory or a dangling link. Reading it gives an
    # error. Skipping it would silently run the manifest of another project.
    present = [name for name in NAMES if os.path.lexists(os.path.join(directory, name))]
    if not present:
        present = [name for name in EXAMPLES if os.path.isfile(os.path.join(directory, name))]
    return Found(directory, present[0], tuple(present[1:])) if present else None
