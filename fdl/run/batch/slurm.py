"""The ``slurm:`` key of a command -> what submitit asks ``sbatch`` for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
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
from fdl.manifest.words import minutes
from fdl.plan.redaction import redacted
from fdl.run.batch.cluster import Cluster, Ended
from fdl.run.batch.queue import FOLDER, GONE, queued
from fdl.run.batch.task import Task
from fdl.run.step import DONE, FAILED, STOPPED, Outcome, Step

if TYPE_CHECKING:
    from fdl.base.global_flags import Work
    from fdl.manifest.node import Node
    from fdl.plan.planner import Host
    from fdl.plan.value import Plan
    from fdl.run.step import Watch, Where


_NOTICE_S = 90
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
        kinds: The settings as submitit names them, for each kind of machine.
        setup: Lines of shell that run before.

    Raises:
        ManifestError: There is no time limit.
    """

    def __init__(self, plan: Plan) -> None:
        found: dict[str, Node] = {}
        for one in plan.slurm:
            found.update(one.mapping)
        self.place = origin(plan.slurm[-1], plan.root) if plan.slurm else ""
        requeues = _plain(found.get("requeues"))
        self.requeues = _REQUEUES if requeues is None else int(requeues)
        self.setup = [str(one.value) for one in _plain(found.get("setup")) or ()]
        limit = minutes(found["time"].value) if "time" in found else None
        if limit is None:
            # submitit would take five minutes, which no training expects.
            raise ManifestError(
                f"{self.place or plan.origin}: `fdl {' '.join(plan.command)}` has no time limit "
                "for the cluster",
                hint='add it to the manifest: slurm: {time: "4:00:00"}',
            )
        job = {"job_name": "fdl-" + "-".join(plan.command), "time": ceil(limit)}
        unequal = [{**found, **one.mapping} for one in _plain(found.get("het")) or ()]
        self.kinds = [{**job, **_machines(kind)} for kind in unequal or [found]]
        self.nodes = sum(kind.get("nodes", 1) for kind in self.kinds)

    @property
    def parameters(self) -> dict[str, Any]:
        """What submitit takes, where all machines are equal."""
        # A machine that fails would leave the others waiting for it.
        srun = ["--kill-on-bad-exit=1"]
        setup = {"setup": self.setup} if self.setup else {}
        return {**self.kinds[0], **setup, "srun_args": srun, "signal_delay_s": _NOTICE_S}

    def flags(self) -> list[list[str]]:
        """The flags of ``sbatch`` for each kind of machine."""
        return [_flags(kind) for kind in self.kinds]


def _machines(found: Mapping[str, Node]) -> dict[str, Any]:
    """What a job asks for machines of one kind, as submitit names it."""
    # The cluster's own queue goes on with a job whose node has failed.
    more: dict[str, Any] = {"requeue": True}
    if "extra" in found:
        more |= {name: node.value for name, node in found["extra"].mapping.items()}
    same = {key: str(found[key].value) for key in _SAME if key in found}
    renamed = {name: found[key].value for key, name in _RENAMED.items() if key in found}
    return {"ntasks_per_node": 1, **same, **renamed, "additional_parameters": more}


def _flags(kind: Mapping[str, Any]) -> list[str]:
    named = {**kind, **kind["additional_parameters"]}
    del named["additional_parameters"]
    flags = {key.replace("_", "-"): value for key, value in sorted(named.items())}
    return [
        *(f"--{key}" if value is True else f"--{key}={value}" for key, value in flags.items()),
        f"--signal=USR1@{_NOTICE_S}",
    ]


def _plain(node: Node | None) -> Any:
    return None if node is None else node.value


def prepared(step: Step, env: str | None, place: Host, *, forced: bool) -> Step:
    """A command that a node plans again, with those that it needs.

    Raises:
        FdlError: It cannot be a job.
    """
    settings_of(step.plan)
    return step.replaced(words=words_of(step.words, env, place, forced=forced))


def as_text(step: Step) -> str:
    """What a dry run shows: what is submitted, and what the node runs."""
    flags = " : ".join(join(kind) for kind in settings_of(step.plan).flags())
    submitted = f"sbatch {flags}"
    return f"{submitted}\n{join(['fdl', *step.words])}\n"


def run_all(steps: Sequence[Step], where: Where, watch: Watch | None) -> list[Outcome]:
    """Run a command as a job, or the runs of a sweep as a job array.

    Args:
        steps: The plans. Of a command the last one: the node runs what it needs.
        where: How many run at the same time.
        watch: Is told about the runs of a sweep; None for a command, whose logs are copied.

    Returns:
        The outcomes, in their order.

    Raises:
        FdlError: The cluster refuses them, or one of them is in the queue already.
    """
    steps = steps if watch else steps[-1:]
    root, settings = steps[0].plan.root, settings_of(steps[0].plan)
    cluster = Cluster(root, settings)
    if watch:
        _refuse_twice(steps, root)
        for step in steps:
            watch.begin(step)
    names = [step.name if watch else join(redacted(step.plan).command) for step in steps]
    began = time.monotonic()
    found = cluster.submit([_task(step, settings) for step in steps], names, where.at_once)
    if watch:
        first = found[0].job_id.partition("_")[0]
        output.note(f"job {first}: {len(steps)} runs; Ctrl-C cancels them")
    else:
        job = found[0]
        output.note(f"job {job.job_id}: fdl {names[0]}; its log is {job.paths.stdout}")
        output.note("Ctrl-C cancels it; `fdl runs list` shows it in the queue")
    outcomes: dict[int, Outcome] = {}

    def note(place: int, state: str, code: int, number: int = 0) -> None:
        took = time.monotonic() - began
        outcomes[place] = Outcome(steps[place], state, code, took, "", number)
        if watch:
            watch.ended(outcomes[place])

    def ended(place: int, how: Ended) -> None:
        code = _code(found[place].job_id, how)
        state = DONE if code == 0 else STOPPED if how.canceled else FAILED
        if watch:
            output.note(f"{steps[place].name}: {state}")
        note(place, state, code)

    try:
        cluster.wait(found, ended)
    except KeyboardInterrupt as stop:
        number = asked_by(stop)
        for place in range(len(steps)):
            if place not in outcomes:
                note(place, STOPPED, 128 + number, number)
    return [outcomes[place] for place in range(len(steps))]


def _task(step: Step, settings: Settings) -> Task:
    row = {"folder": step.directory, "varied": dict(step.varied)} if step.directory else None
    return Task(step.words, str(Path.cwd()), nodes=settings.nodes, row=row)


def refuse(work: Work, *, sweep: bool = False) -> None:
    """Refuse flags that go with this machine only.

    Args:
        work: The flags.
        sweep: Whether they are those of a sweep, which may have several jobs.

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
    if work.jobs and not sweep:
        raise UsageError(
            "`--on slurm` takes one command", hint="fdl --on slurm COMMAND, once for each"
        )


def away(place: Host) -> Host:
    """Where a command is planned that another machine runs."""
    return place.replaced(terminal=False, elsewhere=True)


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


def words_of(tokens: Sequence[str], env: str | None, place: Host, *, forced: bool) -> list[str]:
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
    if not place.append:
        flags.append("--no-append")
    if forced:
        flags.append("--force")
    return [*flags, *tokens]


def refuse_array(plan: Plan) -> None:
    """Refuse a sweep as jobs whose machines differ.

    Raises:
        ManifestError: They differ.
    """
    settings = settings_of(plan)
    if len(settings.kinds) > 1:
        raise ManifestError(
            f"{settings.place}: SLURM has no array of jobs whose machines differ (`het`)",
            hint="type the command once for each value, or ask for equal machines",
        )


def _refuse_twice(steps: Sequence[Step], root: str) -> None:
    busy = {one.directory: one.id for one in queued(root) if one.directory}
    for step in steps:
        if step.directory in busy:
            raise FdlError(
                f"{step.name} is job {busy[step.directory]} in the queue of the cluster",
                hint=f"wait for it, or cancel it: scancel {busy[step.directory]}",
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
