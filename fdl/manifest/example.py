"""Copy an example manifest to the real one that git ignores; tell which of its keys are newer."""

# pathlib would double the start-up time of the first command.
# ruff: noqa: PTH119, PTH123
from __future__ import annotations

import os
import time

from fdl.base import output
from fdl.base.errors import ManifestError
from fdl.base.files import put
from fdl.base.run_record import in_repository
from fdl.manifest.discover import Found
from fdl.manifest.node import dotted
from fdl.manifest.read import read
from fdl.manifest.source import shown

_PATIENCE_S = 2
_SHOWN = 5

# Path of an example -> the manifest to use, because a process may need it several times.
_settled: dict[str, Found] = {}


def settled(found: Found) -> Found:
    """The manifest to use for a command that runs something; an example that cannot be copied."""
    if found.path not in _settled:
        _settled[found.path] = copied(found)
    return _settled[found.path]


def copied(found: Found) -> Found:
    """Copy an example; a real manifest is returned unchanged."""
    if not found.is_example:
        return found
    example, real = shown(found.path), shown(found.real_path)
    try:
        with open(found.path, "rb") as source:
            put(found.real_path, source.read())
    except OSError as error:
        output.note(f"could not copy {example} to {real} ({error.strerror}); using {example}")
        return found
    name = os.path.basename(found.real_path)
    ignored = " (git-ignored)" if in_repository(found.directory) and _ignores(found, name) else ""
    output.note(f"Created {real} from {example}{ignored}.")
    return Found(found.directory, name)


def _ignores(found: Found, name: str) -> bool:
    """Whether git ignores a file beside a manifest."""
    from pathlib import Path

    from fdl.base.code_record import Git

    git = Git(Path(found.directory), time.monotonic() + _PATIENCE_S)
    return bool(git.read("check-ignore", name))


def newer_keys(example: str, copy: str) -> str:
    """A warning that names the keys in which an example differs from its older copy; else empty."""
    try:
        with open(example, "rb") as theirs, open(copy, "rb") as mine:
            if theirs.read() == mine.read():
                return ""
        offered, used = dict(read(example).leaves()), dict(read(copy).leaves())
    except (OSError, ManifestError):
        # A broken copy has its own error; nobody uses the example.
        return ""
    keys = [
        f"{dotted(path)} (line {leaf.line})"
        for path, leaf in offered.items()
        if path and (path not in used or repr(used[path].plain()) != repr(leaf.plain()))
    ]
    if not keys:
        return ""
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return (
        f"{shown(example)} is newer than {shown(copy)} and differs in {', '.join(keys[:_SHOWN])}"
        f"{more}; take over what you need, then `touch {shown(copy)}`"
    )
