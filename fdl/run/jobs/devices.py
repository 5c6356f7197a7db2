"""``--gpus-each N``: disjoint groups of the GPUs that programs may use here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from fdl.base.errors import UsageError
from fdl.base.hardware import Gpu, nvidia
from fdl.base.hardware.troubles import VARIABLE as DEVICES_VARIABLE, restrict

__all__ = ["DEVICES_VARIABLE", "groups"]


def groups(each: int, environ: Mapping[str, str]) -> list[str]:
    """The values of ``CUDA_VISIBLE_DEVICES``, one for each job that can run at the same time.

    Args:
        each: GPUs of each job.
        environ: The variables of fdl; their own ``CUDA_VISIBLE_DEVICES`` is the supply.

    Raises:
        UsageError: There are fewer GPUs than one job is to have.
    """
    found = nvidia(environ)
    names = _names(found.gpus, found.restriction)
    if len(names) < each:
        counted = f"{len(names)} usable GPU{'' if len(names) == 1 else 's'}"
        trouble = f": {found.problem}" if found.problem else ""
        raise UsageError(
            f"`--gpus-each {each}`: this machine has {counted if names else 'no usable GPU'}"
            f"{trouble}",
            hint="`fdl diagnose` lists the GPUs; without the flag, all jobs share all GPUs",
        )
    whole = len(names) // each * each
    return [",".join(names[start : start + each]) for start in range(0, whole, each)]


def _names(gpus: Sequence[Gpu], value: str | None) -> list[str]:
    """The visible GPUs, named as the user names them; else by index, or by UUID with slices."""
    visible = [gpu for gpu in gpus if gpu.visible]
    if value is not None and visible:
        words = (word.strip() for word in value.split(","))
        return list(takewhile(lambda word: any(g.visible for g in restrict(gpus, word)[0]), words))
    if any(gpu.mig or not gpu.visible for gpu in gpus):
        return [gpu.uuid for gpu in visible]
    return [str(gpu.index) for gpu in visible]
