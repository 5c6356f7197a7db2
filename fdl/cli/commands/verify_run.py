"""``fdl verify-run``: have it proved that a run trained every sample as often as it should."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fdl.base.errors import FdlError
from fdl.cli.commands.bundled import start
from fdl.cli.commands.runs_group import OneRun
from fdl.cli.commands.verb import Call, DryRun, Group, Json, Verb

if TYPE_CHECKING:
    from fdl.runs.run import Run

verbs = Group()

MODULE = "flodl.train.run.verify"

_LEDGER = "samples.ledger"


@verbs.command("verify-run", cls=Verb)
def verify_run(
    ctx: typer.Context, run: OneRun = "last", json: Json = False, dry_run: DryRun = False
) -> int:
    """Prove that a run trained every sample once per epoch.

    The exit code is 0 if it is proved, 1 if not, and 2 if the run has no record of samples.

    Returns:
        0 where it is proved, 1 where it is not, 2 where it cannot be read.

    Raises:
        FdlError: The word means no run, or Python cannot be started.
    """
    from fdl.manifest.select.project import locate
    from fdl.runs.find import choose, folders

    call: Call = ctx.obj
    found = choose(run or "last", folders(call.project() if locate() else None))
    if not dry_run:
        _require_ledger(found)
    arguments = [str(found.path), *(["--json"] if json else [])]
    return start(call, "verify-run", MODULE, arguments, dry_run=dry_run)


def _require_ledger(run: Run) -> None:
    """Refuse a run that cannot have a sample ledger, with exit code 2.

    Raises:
        FdlError: It was trained on one device.
    """
    from fdl.runs.find import shortened

    record = run.record
    # Anything but a complete record of one process is for flodl to explain.
    alone = "launched_ranks" in record and record["launched_ranks"] in (None, 1)
    if (run.path / _LEDGER).exists() or "ledger" in record or not alone:
        return
    raise FdlError(
        f"{shortened(run.path)} has no sample ledger: it was trained on one device, and only a "
        "training in several processes writes one",
        hint="name a run of several processes: fdl verify-run RUN",
        exit_code=2,
    )
