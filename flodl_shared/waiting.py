"""How threads of OpenMP wait for the next piece of work, and who has chosen it.

After each operation of torch, its other threads wait for the next one. A thread that spins starts
again within a microsecond, but keeps a core busy. On a shared machine, that core is then missing
where the work is done. A thread that sleeps needs some ten microseconds to start again. So a thread
should spin for about as long as sleeping and waking cost, and then sleep.

libgomp, the OpenMP of torch on Linux, reads its variables when it is loaded. Imported on the warm
path of entries: nothing at module top.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

POLICY_VARIABLE = "OMP_WAIT_POLICY"
SPIN_VARIABLE = "GOMP_SPINCOUNT"

VARIABLES = (POLICY_VARIABLE, SPIN_VARIABLE, "KMP_BLOCKTIME")
"""Each of them says how threads wait. If the user sets one, nothing is added."""

SPIN_COUNT = "1000"
"""Turns of the waiting loop before a thread sleeps. libgomp's own value is 300000."""


def chosen(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to an environment; none if the user has chosen."""
    if any(environ.get(name) for name in VARIABLES):
        return {}
    return {SPIN_VARIABLE: SPIN_COUNT}
