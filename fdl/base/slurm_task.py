"""Whether SLURM started this process as one of several."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_INTERACTIVE = ("bash", "sh", "zsh", "interactive")
_NO_STEPS = range(0xFFFFFFF0, 0xFFFFFFFF)
"""Step numbers that SLURM gives to batch scripts and interactive shells."""


def is_one_of_several(environ: Mapping[str, str]) -> bool:
    """Whether the environment is that of a task of SLURM: no shell, no batch script, not alone."""
    if "SLURM_PROCID" not in environ or environ.get("SLURM_JOB_NAME") in _INTERACTIVE:
        return False
    step = environ.get("SLURM_STEP_ID", "")
    if step.isdecimal() and int(step) in _NO_STEPS:
        return False
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS")
    return tasks != "1"
