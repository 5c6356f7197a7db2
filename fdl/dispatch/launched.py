"""Whether this process is one of several that a launcher has started already."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_INTERACTIVE = ("bash", "sh", "zsh", "interactive")
_NEIGHBOURS = frozenset(("WORLD_SIZE", "MASTER_ADDR"))
_NO_STEPS = range(0xFFFFFFF0, 0xFFFFFFFF)
"""Step numbers that SLURM gives to batch scripts and interactive shells."""


def launcher(environ: Mapping[str, str]) -> str:
    """What shows that somebody else starts the ranks, as a subject and a verb; empty for nothing.

    ``RANK`` comes from torchrun or from a PyTorchJob on Kubernetes; the pods of an indexed Job are
    numbered as well, and so are the tasks of ``srun``. A batch script or a shell that SLURM has
    opened, or a job of one task, is no launch. The framework reads the same variables the same
    way.

    Args:
        environ: The environment variables.
    """
    if "RANK" in environ:
        return f"RANK={environ['RANK']} is set"
    if "JOB_COMPLETION_INDEX" in environ and not _NEIGHBOURS.isdisjoint(environ):
        return f"JOB_COMPLETION_INDEX={environ['JOB_COMPLETION_INDEX']} is set"
    if "SLURM_PROCID" in environ and not _is_alone(environ):
        return f"this is task {environ['SLURM_PROCID']} of SLURM"
    return ""


def _is_alone(environ: Mapping[str, str]) -> bool:
    """Whether a task of SLURM is a shell, a batch script, or the only one."""
    step = environ.get("SLURM_STEP_ID", "")
    tasks = environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS")
    return (
        environ.get("SLURM_JOB_NAME") in _INTERACTIVE
        or (step.isdecimal() and int(step) in _NO_STEPS)
        or tasks == "1"
    )
