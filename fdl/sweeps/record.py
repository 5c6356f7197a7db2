"""The record of a run whose program keeps none: a run directory that ``fdl runs`` can read."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

from fdl.jobs.job import DONE, STOPPED, Outcome
from fdl.own_files import put_own
from fdl.redaction import redacted
from fdl.run_directory.run import CONFIG, RECORD
from flodl_shared.masking import KNOWN

DIRECTORY_VARIABLE = "FDL_RUN_DIR"
"""Names the directory of a run of a sweep to its program, which may write its metrics there."""

_STATES = {DONE: "complete", STOPPED: "interrupted"}


def write(outcome: Outcome) -> None:
    """Write ``run.json`` and ``config.json`` into the directory of a job that has ended."""
    job, folder = outcome.job, Path(outcome.job.directory)
    ended = datetime.now().astimezone()
    began = ended - timedelta(seconds=outcome.seconds)
    record = {
        "state": _STATES.get(outcome.state, "failed"),
        "started": began.isoformat(timespec="seconds"),
        "finished": ended.isoformat(timespec="seconds"),
        "seconds": outcome.seconds,
        "error": None if outcome.state == DONE else f"exit code {outcome.code}",
        "exit_code": outcome.code,
        "argv": redacted(job.plan).launch,
        "project_root": job.plan.root,
    }
    config = {key: {"value": value, "origin": "--each"} for key, value in job.varied.items()}
    for name, content in ((CONFIG, config), (RECORD, record)):
        text = json.dumps(KNOWN.data(content), indent=2) + "\n"
        put_own(folder, folder / name, text.encode())


def forget(folder: Path) -> None:
    """Remove the record, because the run begins again."""
    for name in (RECORD, CONFIG):
        (folder / name).unlink(missing_ok=True)
