"""The ``slurm:`` key of a command -> what submitit asks ``sbatch`` for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdl.base import output
from fdl.base.errors import FdlError, ManifestError, UsageError
from fdl.base.masking import KNOWN
from fdl.base.secrets import redact_tokens
from fdl.base.shell_words import join
from fdl.base.signals import asked_by
from fdl.manifest.node import origin
from fdl.manifest.select.project import Project
from fdl.manifest.words import minutes
from fdl.plan.planner import Host, here
from fdl.plan.redaction import redacted
from fdl.run.batch.cluster import Cluster, Ended
from fdl.run.batch.queue import FOLDER, GONE, Record, queued
from fdl.run.batch.task import Task
from fdl.run.jobs.job import DONE, FAILED, STOPPED, Job, Outcome
from fdl.run.jobs.start import chain_of

if TYPE_CHECKING:
    from fdl.base.global_flags import Work
    from fdl.cli.prepass import Invocation
    from fdl.manifest.discover import Found
    from fdl.manifest.node import Node
    from fdl.plan.value import Plan


NOTICE_S = 90
"""How long before its time limit a job is told to write a checkpoint."""

_SAME = ("partition", "account", "qos", "constraint", "mem")
_RENAMED = {"nodes": "nodes", "gpus": "gpus_per_node", "cpus": "cpus_per_task"}
_REQUEUES = 10


class Settings:
    """What a job asks for.

    Args:
        plan: The plan of the command; ``plan.slurm`` has its settings, the strongest ones last.

    Attributes:
        nodes: How many machines take part.
        requeues: How often a job that reached its time limit is queued again.
        place: Where the settings stand, as ``file:line:column``; empty without any.
        parameters: The settings as submitit names them.

    Raises:
        ManifestError: There is no time limit.
    """

    def __init__(self, plan: Plan) -> None:
        found: dict[str, Node] = {}
        for one in plan.slurm:
            found.update(one.mapping)
        self.place = origin(plan.slurm[-1], plan.root) if plan.slurm else ""
        self.nodes = int(_plain(found.get("nodes")) or 1)
        requeues = _plain(found.get("requeues"))
        self.requeues = _REQUEUES if requeues is None else int(requeues)
        self.parameters: dict[str, Any] = {
            "job_name": "fdl-" + "-".join(plan.command),
            "ntasks_per_node": 1,
            "signal_delay_s": NOTICE_S,
            # The cluster's own queue goes on with a job whose node has failed.
            "additional_parameters": {"requeue": True},
            # A machine that fails would leave the others waiting for it.
            "srun_args": ["--kill-on-bad-exit=1"],
        }
        for key in _SAME:
            if key in found:
                self.parameters[key] = str(found[key].value)
        for key, name in _RENAMED.items():
            if key in found:
                self.parameters[name] = found[key].value
        limit = minutes(found["time"].value) if "time" in found else None
        if limit is None:
            # submitit would take five minutes, which no training expects.
            raise ManifestError(
                f"{self.place or plan.origin}: `fdl {' '.join(plan.command)}` has no time limit "
                "for the cluster",
                hint='add it to the manifest: slurm: {time: "4:00:00"}',
            )
        self.parameters["time"] = ceil(limit)
        if "setup" in found:
            self.parameters["setup"] = found["setup"].plain()
        if "extra" in found:
            extra = {name: node.value for name, node in found["extra"].mapping.items()}
            self.parameters["additional_parameters"].update(extra)

    def flags(self) -> list[str]:
        """The settings as flags of ``sbatch``, for a dry run."""
        named = {**self.parameters, **self.parameters["additional_parameters"]}
        notice = named.pop("signal_delay_s")
        for key in ("additional_parameters", "setup", "srun_args"):
            named.pop(key, None)
        flags = {key.replace("_", "-"): value for key, value in sorted(named.items())}
        return [
            *(f"--{key}" if value is True else f"--{key}={value}" for key, value in flags.items()),
            f"--signal=USR1@{notice}",
        ]


def _plain(node: Node | None) -> Any:
    return None if node is None else node.value


def run(found: Found, env: str | None, invocation: Invocation, host: Host | None) -> int:
    """Run the command that is typed as a job; the exit code of the call is that of the job.

    Raises:
        FdlError: The words are not a command, or the cluster refuses the job.
    """
    refuse(invocation.work)
    acts = not invocation.dry_run
    project = Project(found, env, executes=acts, write_cache=acts)
    place = away(host or here())
    plan = chain_of(project, [invocation.tokens], invocation, place).steps[-1].plan
    output.warnings(project.untold())
    settings = settings_of(plan)
    words = words_of(invocation, env, invocation.tokens)
    if invocation.dry_run:
        shown = join(["sbatch", *settings.flags()])
        command = join(["fdl", *words])
        output.write(sys.stdout, f"{shown}\n{command}\n")
        return 0
    if plan.confirm:
        from fdl.run.confirm import require_yes

        require_yes(plan.confirm, plan.command)
    cluster = Cluster(project.directory, settings)
    task = Task(words, str(Path.cwd()), nodes=settings.nodes)
    name = join(redacted(plan).command)
    (job,) = cluster.submit([task], [Record(name)], 0)
    output.note(f"job {job.job_id}: fdl {name}; its log is {job.paths.stdout}")
    output.note("Ctrl-C cancels it; `fdl runs list` shows it in the queue")
    codes: list[int] = []
    cluster.wait([job], lambda _, how: codes.append(_code(job.job_id, how)))
    return codes[0]


def run_all(
    jobs: Sequence[Job],
    words: Sequence[Sequence[str]],
    *,
    at_once: int,
    ended: Callable[[Outcome], None],
) -> list[Outcome]:
    """Run the jobs of a sweep as a job array.

    Args:
        jobs: The jobs.
        words: The command line of each, after ``fdl``.
        at_once: How many run at the same time, at most; 0 leaves it to the cluster.
        ended: Called with every outcome as soon as it is known.

    Returns:
        The outcomes, in the order of the jobs.

    Raises:
        FdlError: The cluster refuses them, or one of them is in the queue already.
    """
    root, settings = jobs[0].plan.root, settings_of(jobs[0].plan)
    cluster = Cluster(root, settings)
    _refuse_twice(jobs, root)
    tasks = [
        Task(
            line, str(Path.cwd()), nodes=settings.nodes,
            row={"folder": job.directory, "varied": dict(job.varied)},
        )
        for job, line in zip(jobs, words, strict=True)
    ]  # fmt: skip
    began = time.monotonic()
    found = cluster.submit(tasks, [Record(job.name, job.directory) for job in jobs], at_once)
    first = found[0].job_id.partition("_")[0]
    output.note(f"job {first}: {len(jobs)} runs; Ctrl-C cancels them")
    outcomes: dict[int, Outcome] = {}

    def note(place: int, how: Ended) -> None:
        job = jobs[place]
        code = _code(found[place].job_id, how)
        state = DONE if code == 0 else STOPPED if how.canceled else FAILED
        outcomes[place] = Outcome(job, state, code, time.monotonic() - began, "")
        output.note(f"{job.name}: {state}")
        ended(outcomes[place])

    try:
        cluster.wait(found, note)
    except KeyboardInterrupt as stop:
        number = asked_by(stop)
        for place, job in enumerate(jobs):
            if place not in outcomes:
                took = time.monotonic() - began
                outcomes[place] = Outcome(job, STOPPED, 128 + number, took, "", number)
                ended(outcomes[place])
    return [outcomes[place] for place in range(len(jobs))]


def refuse(work: Work) -> None:
    """Refuse flags that go with this machine only.

    Raises:
        UsageError: One of them was given.
    """
    if work.gpus_each:
        raise UsageError(
            "`--gpus-each` divides the GPUs of this machine, not those of a cluster",
            hint="slurm: {gpus: 1}",
        )
    if work.search:
        raise UsageError(
            "`--search` chooses values by what finished runs have measured, and the jobs of an "
            "array are submitted together",
            hint="leave out `--on slurm`, or give the values: --each lr=1e-3,3e-3",
        )
    if work.jobs and not work.wants_sweep():
        raise UsageError(
            "`--on slurm` takes one command", hint="fdl --on slurm COMMAND, once for each"
        )


def away(place: Host) -> Host:
    """Where a command is planned that another machine runs."""
    return Host(place.variables, place.in_container, False, elsewhere=True)


def settings_of(plan: Plan) -> Settings:
    """What a job for a plan asks for.

    Raises:
        ManifestError: Several machines are asked for a shell command.
    """
    settings = Settings(plan)
    if settings.nodes > 1 and plan.kind != "entry":
        raise ManifestError(
            f"{settings.place}: `nodes: {settings.nodes}` starts one torchrun on each machine, and "
            f"`fdl {' '.join(plan.command)}` is a shell command",
            hint="give the program as `entry`, or ask for one machine",
        )
    return settings


def words_of(invocation: Invocation, env: str | None, tokens: Sequence[str]) -> list[str]:
    """The command line for a node, with the global flags that matter there.

    Raises:
        UsageError: It has a secret.
    """
    if KNOWN.texts(redact_tokens(tokens)) != list(tokens):
        raise UsageError(
            "the command line has a secret, and the files of a job would hold it in clear",
            hint="pass it in a variable: `options: {api_key: ${API_KEY}}`, and `export API_KEY=…`",
        )
    flags = ["--env", env] if env else []
    if not invocation.append:
        flags.append("--no-append")
    if invocation.work.force:
        flags.append("--force")
    return [*flags, *tokens]


def _refuse_twice(jobs: Sequence[Job], root: str) -> None:
    busy = {one.record.directory: one.id for one in queued(root) if one.record.directory}
    for job in jobs:
        if job.directory in busy:
            raise FdlError(
                f"{job.name} is job {busy[job.directory]} in the queue of the cluster",
                hint=f"wait for it, or cancel it: scancel {busy[job.directory]}",
            )


def _code(id: str, how: Ended) -> int:
    """The exit code of a job; the reason is told if the cluster has ended it."""
    if how.code is not None:
        return how.code
    if how.state == GONE:
        log = f"{FOLDER}/*/{id}_0_log.err"
        output.error(f"job {id} is {GONE}, and has left no result", f"cat {log}")
    else:
        output.error(f"job {id} was ended by the cluster: {how.state}", f"scontrol show job {id}")
    return 130 if how.canceled else 1
