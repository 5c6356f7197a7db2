"""Where the manifest is: the climb from a directory upwards, and the example files.

Imported on the warm path: only ``os`` at module top.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH100, PTH105, PTH107, PTH113, PTH118, PTH119, PTH120, PTH123
from __future__ import annotations

import os

from fdl.terminal import ask

NAMES = ("fdl.yml", "fdl.yaml", "fdl.json")
EXAMPLES = tuple(f"{name}{suffix}" for name in NAMES for suffix in (".example", ".dist"))

# Example path -> what it was settled to, so that one process asks about it once.
_settled: dict[str, Found] = {}


class Found:
    """A manifest on disk, before it is read.

    Attributes:
        path: Absolute path of the file.
        directory: Absolute path of the directory that holds it.
        is_example: Whether the file is a ``.example`` or ``.dist`` standing in for the real one.
        real_path: What the example becomes when it is copied; ``path`` itself for a real file.
        others: Names in the same directory that lost against this one.
    """

    __slots__ = ("directory", "is_example", "others", "path", "real_path")

    def __init__(self, directory: str, name: str, others: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.path = os.path.join(directory, name)
        self.is_example = name not in NAMES
        self.real_path = self.path.rpartition(".")[0] if self.is_example else self.path
        self.others = others

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to tell about manifests that stand beside this one and are not read."""
        if not self.others:
            return ()
        name = os.path.basename(self.path)
        ignored = ", ".join(self.others)
        return (f"{self.directory} holds several manifests: {name} is read, not {ignored}",)


def find(start: str) -> Found | None:
    """The manifest nearest to ``start``, climbing to the root of the file system.

    In every directory real files come before examples, and an example nearby wins over a real
    file above: a fresh checkout must not run its parent's commands.
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
    # Whatever bears a real name is taken, directories and dangling links included: reading it
    # then says what is wrong, where skipping it would silently run another project's manifest.
    present = [name for name in NAMES if os.path.lexists(os.path.join(directory, name))]
    if not present:
        present = [name for name in EXAMPLES if os.path.isfile(os.path.join(directory, name))]
    return Found(directory, present[0], tuple(present[1:])) if present else None


def settle(found: Found, *, executes: bool) -> Found:
    """Turn an example into the real manifest where the command is going to execute something.

    With a terminal the user is asked; without one the copy is made and reported. A refusal or a
    failed copy leaves the example itself in use, and is remembered for the rest of the process.

    Args:
        found: What :func:`find` or :func:`find_in` returned.
        executes: False for help, completion and every command that only shows: those never write.
    """
    if not found.is_example or not executes:
        return found
    if found.path not in _settled:
        _settled[found.path] = _copied(found) if _agreed(found) else found
    return _settled[found.path]


def _agreed(found: Found) -> bool:
    """Ask whether to copy; Enter alone, and nobody to ask, mean yes."""
    example, real = os.path.basename(found.path), os.path.basename(found.real_path)
    while True:
        answer = ask(f"{found.directory} has only {example}. Copy it to {real}? [Y/n] ")
        if answer is None or answer.lower() in ("", "y", "yes"):
            return True
        if answer.lower() in ("n", "no"):
            return False


def _copied(found: Found) -> Found:
    from fdl.output import note

    example, real = os.path.basename(found.path), os.path.basename(found.real_path)
    temporary = f"{found.real_path}.{os.getpid()}.tmp"
    try:
        with open(found.path, "rb") as source, open(temporary, "xb") as target:
            target.write(source.read())
        os.replace(temporary, found.real_path)
    except OSError as error:
        from contextlib import suppress

        # After a failed open of the example there is nothing to remove, and that is fine.
        with suppress(OSError):
            os.remove(temporary)
        note(f"could not copy {example} to {real} ({error.strerror}); using {example} as it is")
        return found
    note(f"copied {example} to {real} in {found.directory}")
    return Found(found.directory, real)
