"""Hides the programs of a cluster from tests, and finds them for those that need one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

CLIENTS = (
    "sbatch", "srun", "salloc", "squeue", "sacct", "sacctmgr", "scancel", "scontrol", "sinfo",
)  # fmt: skip

_VARIABLE = "FLODL_TESTS_PATH"
"""The PATH of this machine, for the processes of the tests."""


def hide(folder: Path) -> None:
    """Set a PATH where SLURM's programs are not found, unless the process that started this did."""
    if _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = without_slurm(os.environ[_VARIABLE], folder)


def found(name: str) -> str | None:
    """Where this machine has a program of SLURM."""
    return shutil.which(name, path=os.environ[_VARIABLE])


def without_slurm(path: str, folder: Path) -> str:
    """A PATH where SLURM's programs are not found.

    Args:
        path: The PATH of this machine.
        folder: Where links to the other programs are made, if they share a folder with SLURM's.
    """
    kept: dict[Path, str] = {}
    for one in path.split(os.pathsep):
        there = Path(one).resolve()
        if there not in kept:
            hides = any((there / name).exists() for name in CLIENTS)
            kept[there] = str(_linked(there, folder / str(len(kept)))) if hides else one
    return os.pathsep.join(kept.values())


def _linked(there: Path, folder: Path) -> Path:
    folder.mkdir()
    for program in there.iterdir():
        if program.name not in CLIENTS:
            (folder / program.name).symlink_to(program)
    return folder
