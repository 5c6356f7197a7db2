"""Which lines of code differ between two runs, from their ``code.diff`` and the git history."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fdl.base.own_files import read_own
from fdl.runs.cause import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.runs.run import Run

CODE = "code.diff"
"""The file of a run directory with the changes of the working tree against the commit."""

MOST_LINES = 8
"""Number of changed lines that a cause names."""

_GIT_SECONDS = 10
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_FACT = re.compile(r"# (\w+): (.*)")


class Line(NamedTuple):
    """A line that a change adds or removes."""

    file: str
    number: int
    """In the changed file, from 1."""
    text: str
    """With ``+`` or ``-`` in front."""


class Code(NamedTuple):
    """The code of a run."""

    commit: str
    truncated: str
    """Which limit its changes reached; empty for none."""
    lines: tuple[Line, ...]
    """The changes against the commit."""


def changed_code(left: Run, right: Run) -> Iterator[Cause]:
    """One cause per file whose lines differ, and one if the commits differ and git knows no more.

    Args:
        left: The first run.
        right: The second run.
    """
    one, other = read_code(left.path), read_code(right.path)
    if one is None or other is None:
        return
    changes = [*_only_in(other, one, ""), *_only_in(one, other, "-")]
    if one.commit != other.commit:
        between = _between(one.commit, other.commit)
        if between is None:
            yield Cause("code", "commit", one.commit[:12] or None, other.commit[:12] or None)
        changes += between or []
    files: dict[str, list[Line]] = {}
    for line in changes:
        files.setdefault(line.file, []).append(line)
    for file in sorted(files, key=lambda name: (not name.endswith(".py"), name)):
        lines = files[file]
        told = [f"{line.file}:{line.number}: {line.text}" for line in lines[:MOST_LINES]]
        if len(lines) > MOST_LINES:
            told.append(f"and {len(lines) - MOST_LINES} more lines")
        yield Cause("code", file, None, None, lines=tuple(told))
    if one.truncated or other.truncated:
        yield Cause("code", "changes that were not recorded", one.truncated, other.truncated)


def read_code(folder: Path) -> Code | None:
    """Read ``code.diff`` of a run directory; None if there is none."""
    try:
        text = read_own(folder / CODE, "replace")
    except OSError:
        return None
    facts = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if found := _FACT.fullmatch(line):
            facts[found[1]] = found[2]
    truncated = facts.get("truncated", "no")
    commit = facts.get("commit", "").strip()
    return Code(
        # git would take anything else for an option.
        commit if _COMMIT.fullmatch(commit) else "",
        "" if truncated == "no" else truncated,
        tuple(changed_lines(text)),
    )


def changed_lines(text: str) -> Iterator[Line]:
    """The lines that a diff in git's format adds and removes."""
    file, number, inside = "", 0, False
    for line in text.splitlines():
        if line.startswith("diff --git "):
            file, inside = line.rpartition(" b/")[2].rstrip('"'), False
        elif found := _HUNK.match(line):
            number, inside = int(found[1]), True
        elif inside and line.startswith("+"):
            yield Line(file, number, line)
            number += 1
        elif inside and line.startswith("-"):
            yield Line(file, number, line)
        elif inside and line.startswith(" "):
            number += 1


def _only_in(code: Code, other: Code, sign: str) -> list[Line]:
    """The changes that only one of two runs has; ``-`` as sign turns them round."""
    known = {(line.file, line.text) for line in other.lines}
    missing = [line for line in code.lines if (line.file, line.text) not in known]
    if not sign:
        return missing
    turned = {"+": "-", "-": "+"}
    return [Line(line.file, line.number, turned[line.text[0]] + line.text[1:]) for line in missing]


def _between(left: str, right: str) -> list[Line] | None:
    """The changed lines between two commits; None if git cannot tell.

    It is asked in the working directory: a run may bring a repository, whose settings can name
    programs.
    """
    if not (left and right):
        return None
    try:
        done = subprocess.run(
            ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff",
             "--no-textconv", left, right, "--"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    return list(changed_lines(done.stdout.decode("utf-8", "replace")))
