"""How the threads of a training program wait for work: a short spin, unless the user has chosen.

libgomp reads the variable when a program loads torch. So the process that starts the program sets
it. Imported on the warm path of entries.
"""

from __future__ import annotations

from fdl.plan import Variable
from flodl_shared.waiting import chosen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from fdl.plan import Plan


def set_waiting(plan: Plan, shell: Mapping[str, str]) -> None:
    """Set the spin count for an entry's program that uses flodl.

    Args:
        plan: With the variables of the manifest.
        shell: The variables that the program inherits; those of a container are not known.
    """
    added = chosen({**({} if plan.service else shell), **plan.env})
    if not added:
        return
    from fdl.planning.imports import program_mentions

    if program_mentions(plan, "flodl"):
        for name, value in added.items():
            plan.set(Variable(name, value, "fdl"))
