"""``fdl verify-run``: have it proved that a run trained every sample as often as it should."""

from __future__ import annotations

import typer

from fdl.commands.module import start
from fdl.commands.runs_group import OneRun
from fdl.commands.verb import Call, DryRun, Group, Json, Verb

verbs = Group()

MODULE = "flodl.distributed.verify"


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
    from fdl.run_directory.find import choose, folders
    from fdl.select.project import locate

    call: Call = ctx.obj
    found = choose(run or "last", folders(call.project() if locate() else None))
    arguments = [str(found.path), *(["--json"] if json else [])]
    return start(call, "verify-run", MODULE, arguments, dry_run=dry_run)
