"""The command that continues a training which was interrupted or has lost a rank."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.run_record import RESUME, without_resume
from flodl.errors import RunDirectoryError
from flodl.ranks.launch.launcher import has_begun
from flodl.train.run.program_record import typed_words
from flodl.train.run.run_records import LAST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flodl.errors import DistributedError, WorkersFailed
    from flodl.ranks.launch.launcher import Launched
    from flodl.train.run.run_directory import RunDirectory


def add_hint(stop: BaseException, run: RunDirectory | None, checkpoint: Path | None) -> None:
    """Add the command that continues the training to the exception that ends it.

    Without a checkpoint, or if the program has no option ``resume``, nothing is added.

    Args:
        stop: The exception.
        run: The run directory, with the configuration of the program.
        checkpoint: The checkpoint that ``--resume last`` finds.
    """
    if run is not None and checkpoint is not None and "resume" in run.config:
        stop.add_note(_continue_with())


def extend_error(error: DistributedError, run: RunDirectory | None, launched: Launched) -> None:
    """Add what follows to the message of a rank that ends, because the launcher does not say it.

    If the training has begun and restarts are left, it starts the ranks again. Otherwise the
    message gets the last checkpoint of the run and the command. Rank 0 tells it, and rank 1 on the
    same host, because rank 0 may be the one that was lost.

    Args:
        error: Says what happened.
        run: The run directory, as this rank has it.
        launched: The place of this rank.
    """
    tells = launched.rank == 0 or (launched.rank == 1 and launched.node == 0)
    if run is None or not tells:
        return
    if launched.restarts_left and has_begun():
        times = f"{launched.restart + 1} of {launched.restart + launched.restarts_left}"
        error.args = (f"{error}; the launcher starts all ranks again ({times})", *error.args[1:])
        return
    try:
        kept = run.last_checkpoint.is_file()
    except RunDirectoryError:  # rank 0 has made none that this rank can see
        return
    if kept:
        _append(error, f"; the last checkpoint is {Path(run.typed, LAST)}", run)


def extend_failure(error: WorkersFailed, run: RunDirectory | None) -> None:
    """Add the command to the message about ranks that the program has started itself.

    It names the last checkpoint, if there is one.
    """
    if run is not None and error.last_checkpoint is not None:
        _append(error, "", run)


def _append(error: DistributedError, text: str, run: RunDirectory) -> None:
    command = f"\n{_continue_with()}" if "resume" in run.config else ""
    error.args = (f"{error}{text}{command}", *error.args[1:])


def _continue_with() -> str:
    return f"continue with: {_command(os.environ)}"


def _command(environ: Mapping[str, str]) -> str:
    words = typed_words(environ)
    if words is None:
        return f"the same command and {RESUME} last"
    return shlex.join([*without_resume(words), RESUME, "last"])
