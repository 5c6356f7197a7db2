"""Which runs and which checkpoints may go, by the results of the runs."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fdl.base.errors import FdlError, UsageError, reason_of
from fdl.base.suggest import did_you_mean
from fdl.runs.find import by_metric, has_number, unmeasured
from fdl.runs.metrics import Metric
from fdl.runs.quantity import Known, span
from fdl.runs.run import (
    CHECKPOINTS,
    CONFIG,
    DAMAGED,
    DEAD,
    LATEST,
    RECORD,
    RUNNING,
    STATES,
    Run,
    read,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def choose(
    runs: Sequence[Run],
    now: datetime,
    *,
    keep: int | None = None,
    older_than: str | None = None,
    state: str | None = None,
    keep_best: int | None = None,
    by: str | None = None,
    group: str | None = None,
) -> list[Run]:
    """The runs to delete, from all runs listed newest first. They match all given conditions.

    A running run stays, and so does one that a running run still needs.

    Args:
        runs: The runs.
        now: The time at which their age is taken.
        keep: How many of the newest runs to keep in each folder of runs, always.
        older_than: An age such as ``30d``: deletes only runs that began earlier.
        state: Deletes only runs in this state.
        keep_best: How many of the best runs to keep in each folder. Runs without a number for the
            metric stay: they are not compared.
        by: The metric of ``keep_best``, by its best value of all epochs.
        group: A metric, setting or fact whose values make the groups of ``keep_best``, instead of
            the folders.

    Raises:
        UsageError: A value is not an age, number or state, ``keep_best`` and ``by`` are not given
            together, no run measured the metric, or none knows the group.
    """
    if (keep_best is None or by is None) and (keep_best, by, group) != (None, None, None):
        raise UsageError("--keep-best and --by belong together", hint="--keep-best 5 --by val_loss")
    for flag, count in (("--keep-best", keep_best), ("--keep", keep)):
        if count is not None and count < 0:
            raise UsageError(f"{flag} takes 0 or more, not {count}")
    if state is not None:
        _require_removable(state)
    least = age(older_than) if older_than is not None else None
    chosen = [
        run
        for run in _behind(keep or 0, runs, _folder)
        if _is_removable(run)
        and state in (None, run.state)
        and (least is None or (run.started is not None and now - run.started > least))
    ]
    if by is not None:
        others = {run.path for run in _but_the_best(runs, keep_best or 0, by, group)}
        chosen = [run for run in chosen if run.path in others]
    # A running run starts again from the one before if it has no checkpoint of its own.
    readers = [one for one in runs if one.state == RUNNING and not _has_last(one)]
    return [run for run in chosen if not continued_by(run, readers)]


def _require_removable(state: str) -> None:
    if state == RUNNING:
        raise UsageError("a run that is running is never removed", hint="stop it first")
    if state == DAMAGED:
        raise UsageError(
            "a damaged run is never removed: its other files may be complete",
            hint="restore its record from a copy, or remove its folder yourself",
        )
    require_state(state)


def _but_the_best(runs: Sequence[Run], number: int, by: str, named: str | None) -> list[Run]:
    """The runs that are measured, and not among the best of their group."""
    metric = Metric.parse(by)
    ranked = [run for run in by_metric(metric, runs) if has_number(run, metric)]
    if runs and not ranked:
        raise unmeasured(metric, runs)
    group = Known(runs).resolve(named) if named and runs else None
    return _behind(number, ranked, (lambda run: repr(group.value(run))) if group else _folder)


def _behind(number: int, runs: Iterable[Run], place: Callable[[Run], object]) -> list[Run]:
    """The runs behind the first ones of each place."""
    seen = Counter[object]()
    others = []
    for run in runs:
        seen[place(run)] += 1
        if seen[place(run)] > number:
            others.append(run)
    return others


def _folder(run: Run) -> Path:
    return run.path.parent


def age(text: str) -> timedelta:
    """``30d``, ``12h``, ``2w`` as a span of time.

    Raises:
        UsageError: The text is not an age.
    """
    seconds = span(text)
    if seconds is None:
        raise UsageError(
            f"`{text}` is not an age", hint="a number and s, m, h, d or w: 30d is thirty days"
        )
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        return timedelta.max


def require_state(word: str, states: Sequence[str] = STATES) -> str:
    """Return ``word`` if it is a state of a run.

    Raises:
        UsageError: It is not a state.
    """
    if word in states:
        return word
    hint = did_you_mean(word, states, f"one of {', '.join(states)}")
    raise UsageError(f"`{word}` is not a state of a run", hint=hint)


def _is_removable(run: Run) -> bool:
    """Whether it has ended, in a real folder. A link's target may belong to another program."""
    is_folder = run.path.is_dir() and not run.is_linked and not run.path.is_symlink()
    return is_folder and run.state != RUNNING


class Removal(NamedTuple):
    """A run that may go, or only some of its checkpoints.

    Attributes:
        run: The run.
        bytes: The size of what may go.
        files: The checkpoints; empty for the whole run.
        remark: What to know before it is deleted; empty for nothing.
    """

    run: Run
    bytes: int
    files: tuple[str, ...] = ()
    remark: str = ""


def remove(one: Removal) -> bool:
    """Delete a run's folder, or some of its checkpoints. Links are deleted, their targets stay.

    Returns:
        False if it is no longer a run, or is running; then nothing was deleted.

    Raises:
        FdlError: A file cannot be deleted.
    """
    path, current = one.run.path, read(one.run.path)
    if current is None or current.state == RUNNING or not _is_removable(one.run):
        return False
    try:
        if not one.files:
            _remove_folder(path)
        for name in one.files:
            (path / name).unlink(missing_ok=True)
    except OSError as problem:
        raise FdlError(
            f"{path} cannot be deleted: {reason_of(problem)}",
            hint="check the permissions of the folder, then run the command again",
        ) from None
    return True


def _remove_folder(path: Path) -> None:
    """Delete the files that make a folder a run directory last.

    So fdl finds a half-deleted run again and can delete the rest.
    """
    with os.scandir(path) as entries:
        others = [entry for entry in entries if entry.name not in (RECORD, CONFIG)]
    for entry in others:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()
    # Without its record it is not a run. Any other files that remain do no harm.
    (path / CONFIG).unlink()
    (path / RECORD).unlink()
    path.rmdir()


NONE = "none"
KINDS = {name.removesuffix(".fdl"): name for name in CHECKPOINTS}
"""Word of ``--checkpoints`` -> file in a run directory."""

_STOPPED = ("interrupted", "failed", "diverged", DEAD)


def continued_by(run: Run, runs: Iterable[Run]) -> list[Run]:
    """The runs that were resumed from a run."""
    return [one for one in runs if one.continues(run)]


def is_needed(run: Run, runs: Iterable[Run]) -> bool:
    """Whether ``last.fdl`` of a run is what somebody would resume from.

    It is while the run is running or stopped before its end, unless another run continues it and
    has completed or has a checkpoint of its own.
    """
    following = continued_by(run, runs)
    if any(one.state != "complete" and not _has_last(one) for one in following):
        return True
    if run.state == RUNNING:
        return True
    return run.state in _STOPPED and not following


def _has_last(run: Run) -> bool:
    return (run.path / LATEST).is_file()


def kinds(text: str) -> tuple[str, ...]:
    """The files that ``--checkpoints last,best`` keeps.

    Raises:
        UsageError: A word is not a kind of checkpoint.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == [NONE]:
        return ()
    for word in words:
        if word not in KINDS:
            raise UsageError(
                f"`{word}` is not a kind of checkpoint",
                hint=f"{', '.join(KINDS)}, or none to keep no checkpoint",
            )
    if not words:
        raise UsageError("--checkpoints names no kind", hint=f"{', '.join(KINDS)}, or none")
    return tuple(KINDS[word] for word in words)


def surplus(runs: Iterable[Run], known: Sequence[Run], keep: Sequence[str]) -> list[Removal]:
    """The checkpoints of some runs that are not kept; those that a run can resume from stay.

    Args:
        runs: The runs that may lose checkpoints.
        known: All runs, among them those that continue others.
        keep: Names of the files that every run keeps.
    """
    found, resumed = [], [one for one in known if one.resumed_from]
    for run in runs:
        if run.state == RUNNING or run.is_linked:
            continue
        needed = LATEST if LATEST not in keep and is_needed(run, resumed) else ""
        sizes = {
            name: (run.path / name).lstat().st_size
            for name in CHECKPOINTS
            if name not in keep and name != needed and _is_file(run.path / name)
        }
        kept = needed if needed and _is_file(run.path / needed) else ""
        if sizes:
            remark = f"{kept} stays: to resume from" if kept else ""
            found.append(Removal(run, sum(sizes.values()), tuple(sizes), remark))
    return found


def _is_file(path: Path) -> bool:
    return path.is_file() or path.is_symlink()
