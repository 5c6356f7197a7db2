"""``fdl verify-run``: have it proved that a run trained every sample as often as it should."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fdl.commands.module import start

if TYPE_CHECKING:
    from fdl.app import Call

MODULE = "flodl.distributed.verify"


def verify_run(call: Call) -> int:
    """Check one run's record of samples.

    Returns:
        0 where it is proved, 1 where it is not, 2 where it cannot be read.

    Raises:
        FdlError: The word means no run, or Python cannot be started.
    """
    from fdl.project import locate
    from fdl.run_directory.find import choose, folders

    places = folders(call.project() if locate() else None)
    run = choose(call.args.run or "last", places)
    return start(call, MODULE, [str(run.path), *(["--json"] if call.args.json else [])])
