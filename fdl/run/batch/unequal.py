"""A job of machines that differ: the one batch script that submitit cannot write.

SLURM calls it a heterogeneous job: components, each with its own request, that start together
(https://slurm.schedmd.com/heterogeneous_jobs.html). One step spans them, in which tasks are
numbered over all machines, and the job has the number of its first component.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_BETWEEN = "#SBATCH hetjob"


def script(
    components: Sequence[Sequence[str]], setup: Sequence[str], folder: Path, command: str
) -> str:
    """The batch script.

    Args:
        components: The flags of ``sbatch`` for each kind of machine.
        setup: Lines of shell that run before.
        folder: Where logs go, named as submitit names them.
        command: The command line of each task.
    """
    first = [
        *components[0], f"--output={folder}/%j_0_log.out", f"--error={folder}/%j_0_log.err",
        "--open-mode=append",
    ]  # fmt: skip
    requests = [_request(flags) for flags in (first, *components[1:])]
    # srun would name a log by the number of the component and count on from the one before.
    log = f'{shlex.quote(str(folder))}/"$SLURM_JOB_ID"_"$SLURM_PROCID"_log'
    task = shlex.quote(f"exec {command} >>{log}.out 2>>{log}.err")
    groups = ",".join(str(number) for number in range(len(components)))
    return "\n".join((
        "#!/bin/bash",
        f"\n{_BETWEEN}\n".join(requests),
        *setup,
        "export SUBMITIT_EXECUTOR=slurm",
        f"srun --het-group={groups} --unbuffered --kill-on-bad-exit=1 bash -c {task}",
        "",
    ))  # fmt: skip


def _request(flags: Sequence[str]) -> str:
    return "\n".join("#SBATCH " + flag.replace(" ", "\\ ") for flag in flags)


def executor(slurm: Any, folder: Path, requeues: int, settings: Any) -> Any:
    """An executor of submitit that submits such a job.

    Args:
        slurm: The module ``submitit.slurm.slurm``.
        folder: Where its files go.
        requeues: How often a job that reached its time limit is queued again.
        settings: What the job asks for, as :class:`fdl.run.batch.slurm.Settings`.
    """

    class Unequal(slurm.SlurmExecutor):  # type: ignore[misc]  # a class of an optional package
        def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002
            return script(settings.flags(), settings.setup, Path(self.folder), command)

        def _num_tasks(self) -> int:
            return int(settings.nodes)

    return Unequal(folder, max_num_timeout=requeues)
