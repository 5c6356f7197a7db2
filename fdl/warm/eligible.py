"""Which plans a warm process may start at all. Imported after every program on a terminal."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.plan import Plan
    from fdl.planning.torchrun import Program

SWITCH = "FDL_WARM"
"""``0`` starts a program without the warm process."""


def program_of(plan: Plan) -> Program | None:
    """The Python program of a plan that a warm process may start; None for any other plan."""
    if plan.kind != "entry" or plan.service or plan.ranks is not None or os.name == "nt":
        return None
    from fdl.planning.torchrun import read

    found = read(plan.launch)
    # Flags of the interpreter change how modules are imported.
    return None if found is None or found.flags or found.target.endswith(".pyc") else found
