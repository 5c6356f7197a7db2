"""Choosing the runs to delete, and deleting them."""

from __future__ import annotations

import os
import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.errors import FdlError, UsageError
from fdl.runs.run import CONFIG, DAMAGED, RECORD, RUNNING, STATES, Run, read

if TYPE_CHECKING:
    from collections.abc import Sequence

_AGE = re.compile(r"(\d+)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Rule:
    """Chooses the runs to delete. A run must match all given conditions.

    Args:
        keep: How many of the newest runs to keep in each folder of runs, always.
        older_than: An age such as ``30d``: deletes only runs that began earlier.
        state: Deletes only runs in this state.

    Raises:
        UsageError: No condition is given, or a value is not an age, number or state.
    """

    def __init__(
        self, keep: int | None = None, older_than: str | None = None, state: str | None = None
    ) -> None:
        if keep is None and older_than is None and state is None:
            raise UsageError(
                "no condition says which runs to remove",
                hint="give --keep N, --older-than AGE or --state STATE",
            )
        if keep is not None and keep < 0:
            raise UsageError(f"--keep takes 0 or more, not {keep}")
        if state == RUNNING:
            raise UsageError("a run that is running is never removed", hint="stop it first")
        if state == DAMAGED:
            raise UsageError(
                "a damaged run is never removed: its other files may be complete",
                hint="restore its record from a copy, or remove its folder yourself",
            )
        self._keep = keep or 0
        self._age = age(older_than) if older_than is not None else None
        self._state = require_state(state) if state is not None else None

    def choose(self, runs: Sequence[Run], now: datetime) -> list[Run]:
        """The runs to delete, from runs listed newest first."""
        chosen = []
        seen: dict[Path, int] = {}
        for run in runs:
            folder = run.path.parent
            seen[folder] = seen.get(folder, 0) + 1
            if seen[folder] > self._keep and self._applies(run, now):
                chosen.append(run)
        return chosen

    def _applies(self, run: Run, now: datetime) -> bool:
        if run.state == RUNNING or not _is_removable(run):
            return False
        if self._state is not None and run.state != self._state:
            return False
        return self._age is None or (run.started is not None and now - run.started > self._age)


def age(text: str) -> timedelta:
    """``30d``, ``12h``, ``2w`` as a span of time.

    Raises:
        UsageError: The text is not an age.
    """
    found = _AGE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"`{text}` is not an age", hint="a number and s, m, h, d or w: 30d is thirty days"
        )
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        return timedelta.max


def require_state(word: str, states: Sequence[str] = STATES) -> str:
    """Return ``word`` if it is a state of a run.

    Raises:
        UsageError: It is not a state.
    """
    if word in states:
        return word
    from fdl.base.suggest import nearest

    close = nearest(word, states)
    hint = f"did you mean `{close}`?" if close else f"one of {', '.join(states)}"
    raise UsageError(f"`{word}` is not a state of a run", hint=hint)


def _is_removable(run: Run) -> bool:
    """Whether it is a real folder. The target of a link may belong to another program."""
    return run.path.is_dir() and not run.is_linked and not run.path.is_symlink()


def remove(run: Run) -> bool:
    """Delete a run's folder. Links in it are deleted, their targets stay.

    The files that make it a run directory are deleted last. So fdl finds a half-deleted run again
    and can delete the rest.

    Returns:
        False if it is no longer a run, or is running; then nothing was deleted.

    Raises:
        FdlError: A file in it cannot be deleted.
    """
    current = read(run.path)
    if current is None or current.state == RUNNING or not _is_removable(run):
        return False
    try:
        with os.scandir(run.path) as entries:
            others = [entry for entry in entries if entry.name not in (RECORD, CONFIG)]
        for entry in others:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                Path(entry.path).unlink()
        # Without its record it is not a run. Any other files that remain do no harm.
        (run.path / CONFIG).unlink()
        (run.path / RECORD).unlink()
        run.path.rmdir()
    except OSError as problem:
        raise FdlError(
            f"{problem.filename or run.path} cannot be deleted: {problem.strerror}",
            hint="check the permissions of its folder, then run the command again",
        ) from None
    return True
