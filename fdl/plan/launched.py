"""Whether a launcher has already started this process as one of several."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_INTERACTIVE = ("bash", "sh", "zsh", "interactive")
_NEIGHBOURS = frozenset(("WORLD_SIZE", "MASTER_ADDR"))
_NO_STEPS = range(0xFFFFFFF0, 0xFFFFFFFF)
"""Step numbers that SLURM gives to batch scripts and interactive shells."""


def launcher(environ: Mapping[str, str]) -> str:
    """Which fact shows that another launcher starts the ranks, as subject and verb; else empty.

    torchrun or a PyTorchJob on Kubernetes sets ``RANK``. Pods of an indexed Job have numbers as
    well, and so have the tasks of ``srun``. A batch script, a shell opened by SLURM, or a job of
    one task is not a launch. The framework reads the same variables in the same way.
    """
    if "RANK" in environ:
        return f"RANK={environ['RANK']} is set"
    if "JOB_COMPLETION_INDEX" in environ and not _NEIGHBOURS.isdisjoint(environ):
        return f"JOB_COMPLETION_INDEX={environ['JOB_COMPLETION_INDEX']} is set"
    if "SLURM_PROCID" in environ and not _is_alone(environ):
        return f"this is task {environ['SLURM_PROCID']} of SLURM"
    return ""


def _is_alone(environ: Mapping[str, str]) -> bool:
    """Whether a task of SLURM is a shell, a batch script, or the only task."""
    step = environ.get("SLURM_STEP_ID", "")
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS")
    return (
        environ.get("SLURM_JOB_NAME") in _INTERACTIVE
        or (step.isdecimal() and int(step) in _NO_STEPS)
        or tasks == "1"
    )
