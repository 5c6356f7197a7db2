"""Whether a launcher has already started this process as one of several."""

from __future__ import annotations

from fdl.base.slurm_task import is_one_of_several

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NEIGHBOURS = frozenset(("WORLD_SIZE", "MASTER_ADDR"))


def launcher(environ: Mapping[str, str]) -> str:
    """Which fact shows that another launcher starts the ranks, as subject and verb; else empty.

    torchrun or a PyTorchJob on Kubernetes sets ``RANK``. Pods of an indexed Job have numbers as
    well, and so have the tasks of ``srun``. A batch script, a shell opened by SLURM, or a job of
    one task is not a launch. The framework reads the same variables.
    """
    if "RANK" in environ:
        return f"RANK={environ['RANK']} is set"
    if "JOB_COMPLETION_INDEX" in environ and not _NEIGHBOURS.isdisjoint(environ):
        return f"JOB_COMPLETION_INDEX={environ['JOB_COMPLETION_INDEX']} is set"
    if is_one_of_several(environ):
        return f"this is task {environ['SLURM_PROCID']} of SLURM"
    return ""
