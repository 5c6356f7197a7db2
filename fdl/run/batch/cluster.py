"""Jobs on a SLURM cluster: submit them, follow them, cancel them.

submitit writes the batch file, but for unequal machines, and calls ``sbatch``
(https://github.com/facebookincubator/submitit). It would learn from ``sacct`` how a job is, which
not every cluster has and which is told late, so fdl asks ``squeue`` itself.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.signals import handled, interrupt
from fdl.run.batch.queue import GONE, OVER, States, folder_of_call, remember
from fdl.run.lines import write_all

if TYPE_CHECKING:
    from fdl.run.batch.slurm import Settings
    from fdl.run.batch.task import Task

_POLL_S = 0.5
_LATE_FILE_S = 5.0
"""How long a shared file system may take to show the file of a job that has ended."""

_BY_ITSELF = ("COMPLETED", "FAILED", GONE)
"""How a job ends whose program has ended."""


class Ended(NamedTuple):
    """How a job ended.

    Attributes:
        code: Its exit code; None if the cluster ended it.
        state: Its state as ``squeue`` names it.
    """

    code: int | None
    state: str

    @property
    def canceled(self) -> bool:
        """Whether somebody has canceled it."""
        return self.code is None and self.state == "CANCELLED"


class Cluster:
    """The jobs that one call of fdl submits.

    Args:
        root: The project.
        settings: What a job asks for.

    Raises:
        FdlError: submitit is not installed, or this is not a machine of a SLURM cluster.
    """

    def __init__(self, root: str, settings: Settings) -> None:
        self._root = root
        self._settings = settings
        self._submitit = _library()
        absent = [one for one in ("sbatch", "srun", "squeue") if shutil.which(one) is None]
        if absent:
            raise FdlError(
                f"`--on slurm`: this machine is not part of a cluster; `{absent[0]}` is not found",
                hint="run fdl on a login node of the cluster",
            )

    def submit(self, tasks: Sequence[Task], names: Sequence[str], at_once: int) -> list[Any]:
        """Submit tasks, several of them as one job array.

        Args:
            tasks: What runs.
            names: What ``fdl runs list`` calls each.
            at_once: How many run at the same time, at most; 0 leaves it to the cluster.

        Returns:
            submitit's jobs, in their order.

        Raises:
            FdlError: The cluster refuses them.
        """
        folder = folder_of_call(self._root)
        slurm, core = self._submitit.slurm.slurm, self._submitit.core
        parameters = self._settings.parameters
        if len(self._settings.kinds) > 1:
            executor = _unequal(slurm, folder, self._settings)
        else:
            executor = slurm.SlurmExecutor(folder, max_num_timeout=self._settings.requeues)
        if at_once:
            parameters["array_parallelism"] = at_once
        try:
            executor.update_parameters(**parameters)
            if len(tasks) == 1:
                jobs = [executor.submit(tasks[0])]
            else:
                with executor.batch():
                    jobs = [executor.submit(task) for task in tasks]
        except core.utils.FailedJobError as problem:
            raise self._refused(str(problem)) from None
        for job, task, name in zip(jobs, tasks, names, strict=True):
            directory = task.row["folder"] if task.row else ""
            remember(folder, job.job_id, name, directory)
        return jobs

    def wait(self, jobs: Sequence[Any], ended: Callable[[int, Ended], None]) -> None:
        """Wait until all jobs have ended, and copy the logs of a single one to the terminal.

        Ctrl-C and SIGTERM cancel the jobs. After SIGHUP, as when a connection is lost, they
        continue.

        Args:
            jobs: What :meth:`submit` gave.
            ended: Called with the place of a job and how it ended.

        Raises:
            KeyboardInterrupt: Ctrl-C; the jobs are canceled.
        """
        logs = _logs(jobs[0]) if len(jobs) == 1 else []
        waiting = {place: _Waiting(job, quiet=len(jobs) > 1) for place, job in enumerate(jobs)}
        states = States(job.job_id for job in jobs)
        with self._canceling(waiting):
            while waiting:
                said = states.asked(soon=any(one.is_ending() for one in waiting.values()))
                for place, one in list(waiting.items()):
                    one.note(*said.get(one.job.job_id, ("", "")))
                    if found := one.end():
                        del waiting[place]
                        ended(place, found)
                for log in logs:
                    log.copy()
                if waiting:
                    time.sleep(_POLL_S)
        for log in logs:
            log.copy()

    @contextmanager
    def _canceling(self, waiting: dict[int, _Waiting]) -> Iterator[None]:
        with handled(("SIGTERM",), interrupt):
            try:
                yield
            except KeyboardInterrupt:
                ids = sorted({one.job.job_id.partition("_")[0] for one in waiting.values()})
                with suppress(OSError, subprocess.CalledProcessError):
                    subprocess.run(["scancel", *ids], check=True, capture_output=True)
                    output.note(f"canceled {_counted(ids)}")
                raise

    def _refused(self, text: str) -> FdlError:
        lines = [line for line in text.splitlines() if "sbatch: error" in line]
        said = lines[-1].partition("sbatch: error: ")[2] if lines else text.splitlines()[-1]
        place = self._settings.place
        return FdlError(
            f"{place}{': ' if place else ''}sbatch refused the job: {said.strip()}",
            hint="correct `slurm`" if place else "add `slurm: {partition: NAME}` to the manifest",
        )


class _Waiting:
    """A job that has not ended, as far as is known.

    Its program has ended when every machine has written a result. A machine that SLURM stopped
    writes none, so what the cluster says counts as well.
    """

    def __init__(self, job: Any, *, quiet: bool) -> None:
        self.job = job
        self._quiet = quiet
        self._state = self._reason = ""
        self._over_since = 0.0
        self._tasks = [job.task(number) for number in range(job.num_tasks)]

    def note(self, state: str, reason: str) -> None:
        """Take what the cluster says; tell why the job waits when that changes."""
        if not state:
            return
        shown = {"PENDING": f"waits: {reason}", "SUSPENDED": "is suspended"}.get(state, "")
        # A job that has just come waits for no reason yet.
        news = (state, reason) not in ((self._state, self._reason), ("PENDING", "None"))
        if shown and news and not self._quiet:
            output.note(f"job {self.job.job_id} {shown}")
        self._state, self._reason = state, reason
        if state in (*OVER, GONE) and not self._over_since:
            self._over_since = time.monotonic()

    def is_ending(self) -> bool:
        """Whether some of its machines have ended."""
        return bool(self._over_since) or bool(self._results())

    def end(self) -> Ended | None:
        """How it ended; None while it goes on."""
        results = self._results()
        if len(results) < len(self._tasks) and not self._over_since:
            return None
        # What failed first has stopped the others, whose torchrun may end with 1 meanwhile.
        codes = [_code_of(task) for task in sorted(results, key=_written)]
        if any(codes):
            return Ended(next((code for code in codes if code > 1), 1), "FAILED")
        if len(results) == len(self._tasks):
            return Ended(0, "COMPLETED")
        if self._state in _BY_ITSELF and time.monotonic() - self._over_since < _LATE_FILE_S:
            return None
        if results and self._state == "COMPLETED":
            return Ended(0, "COMPLETED")
        return Ended(None, self._state)

    def _results(self) -> list[Any]:
        return [task for task in self._tasks if task.paths.result_pickle.exists()]


class _Log:
    """A file that a job writes, copied to a stream of fdl."""

    def __init__(self, path: Path, stream: int) -> None:
        self._path = path
        self._stream = stream
        self._at = 0

    def copy(self) -> None:
        """Copy what is new."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._at)
            while data := file.read(1 << 16):
                self._at += len(data)
                write_all(self._stream, data)


def _logs(job: Any) -> list[_Log]:
    """The logs of every machine: torchrun may put rank 0 on any of them."""
    every = [job.task(number).paths for number in range(job.num_tasks)]
    return [log for one in every for log in (_Log(one.stderr, 2), _Log(one.stdout, 1))]


def _library() -> Any:
    # SLURM's users know this signal; flodl writes a checkpoint on it.
    os.environ["SUBMITIT_PREEMPT_SIGNAL"] = "USR1"
    # It would write to the output of the program.
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "CRITICAL")
    try:
        import submitit
    except ImportError:
        raise FdlError(
            "`--on slurm` needs submitit, which is not installed",
            hint="pip install 'flodl[slurm]'",
        ) from None
    return submitit


def _written(task: Any) -> int:
    return int(task.paths.result_pickle.stat().st_mtime_ns)


def _code_of(task: Any) -> int:
    """The exit code that a machine of a job has written."""
    problem = task.exception()
    if problem is None:
        return 0
    # The last line of the traceback stands before a line of dashes.
    trace = str(problem).rpartition("\n---")[0].strip() or str(problem)
    last = trace.splitlines()[-1]
    code = last.rpartition("FailedError: exit code ")[2]
    if code.isdigit():
        return int(code)
    output.error(f"job {task.job_id}: {last.rpartition('Error: ')[2]}")
    return 1


def _counted(ids: Sequence[str]) -> str:
    return f"job{'' if len(ids) == 1 else 's'} {', '.join(ids)}"


def _unequal(slurm: Any, folder: Path, settings: Settings) -> Any:
    """An executor of submitit that submits a job of machines that differ."""

    class Unequal(slurm.SlurmExecutor):  # type: ignore[misc]  # a class of an optional package
        def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002
            return _script(settings.flags(), settings.setup, Path(self.folder), command)

        def _num_tasks(self) -> int:
            return int(settings.nodes)

    return Unequal(folder, max_num_timeout=settings.requeues)


def _script(
    components: Sequence[Sequence[str]], setup: Sequence[str], folder: Path, command: str
) -> str:
    """The batch script of a job of machines that differ, the one that submitit cannot write.

    SLURM calls it a heterogeneous job: components, each with its own request, that start together
    (https://slurm.schedmd.com/heterogeneous_jobs.html). One step spans them, in which tasks are
    numbered over all machines, and the job has the number of its first component.

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
    requests = [
        "\n".join("#SBATCH " + flag.replace(" ", "\\ ") for flag in flags)
        for flags in (first, *components[1:])
    ]
    # srun would name a log by the number of the component and count on from the one before.
    log = f'{shlex.quote(str(folder))}/"$SLURM_JOB_ID"_"$SLURM_PROCID"_log'
    task = shlex.quote(f"exec {command} >>{log}.out 2>>{log}.err")
    groups = ",".join(str(number) for number in range(len(components)))
    return "\n".join((
        "#!/bin/bash",
        "\n#SBATCH hetjob\n".join(requests),
        *setup,
        "export SUBMITIT_EXECUTOR=slurm",
        f"srun --het-group={groups} --unbuffered --kill-on-bad-exit=1 bash -c {task}",
        "",
    ))  # fmt: skip
