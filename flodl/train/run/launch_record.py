"""What a run records about its launch and its batch job, so that a new start finds it again."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from fdl.base.run_record import host, started_ticks
from flodl.ranks.launch.interrupt import JOB_VARIABLE
from flodl.train.run.run_records import run_of_launch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flodl.ranks.launch.launcher import Launched

_runs: Counter[str] = Counter()
"""Number of run directories that this process made, by launch: a program may make several."""

IDENTITY = ("launch", "launch_run")


def launch_record(launched: Launched) -> dict[str, Any]:
    """The entries of a record about its launch; a restart finds its run by them."""
    name = launched.run_id or _nameless(launched)
    _runs[name] += 1
    return {
        "launch": name,
        "launch_run": _runs[name],
        "rendezvous": f"{launched.address}:{launched.port} ({launched.restart})",
        "restarts": launched.restart,
    }


def job_record(environ: Mapping[str, str]) -> dict[str, Any]:
    """The entry of a record about its batch job, whose number stays when it is queued again."""
    number = environ.get(JOB_VARIABLE)
    return {"job": f"slurm-{number}"} if number else {}


def _nameless(launched: Launched) -> str:
    """A name for a launch without one: the launcher's process on one host, else the address."""
    if launched.local_world_size == launched.world_size:
        launcher = os.getppid()
        if (began := started_ticks(launcher)) is not None:
            return f"{host()}:{launcher}:{began}"
    return f"{launched.address}:{launched.port}"


def earlier_run(
    folder: Path, launched: Launched | None, launch: Mapping[str, Any], config: Mapping[str, Any]
) -> Path | None:
    """Return the run that this start continues; None for a new run.

    It is the run of the same launch, or of the same job if SLURM has queued it again.

    Args:
        folder: The folder of all runs.
        launched: How the launcher started this process; None without a launcher.
        launch: The entries of the record about it.
        config: The configuration, which must be the same.
    """
    if launched is not None and (launched.restart > 0 or launched.run_id):
        wanted = {name: launch[name] for name in IDENTITY}
        found = run_of_launch(folder, wanted, restarted=launched.restart > 0, config=config)
        if found is not None:
            return found
    job = job_record(os.environ)
    if job and int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        return run_of_launch(folder, job, restarted=False, config=config)
    return None
