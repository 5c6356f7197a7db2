"""``fdl plan``: what a command would start, with which settings, and what it would need."""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.hardware.known_gpus import memory_of
from fdl.base.own_files import read_json
from fdl.base.streams import stdout_as_stderr
from fdl.cli.commands.verb import Call, Context, Group, Json, Open
from fdl.plan.distribution import as_json, as_text
from fdl.plan.heap import uses_flodl
from fdl.plan.inspect import resolved
from fdl.run.chain import steps_of
from fdl.run.step import Where
from fdl.runs.describe import rehearsal_page as page

if TYPE_CHECKING:
    from fdl.manifest.select.project import Project
    from fdl.plan.inspect import Command
    from fdl.plan.value import Plan
    from fdl.run.step import Step

verbs = Group()

GHOST = "flodl.ranks.simulate"


_SIMULATION = "Simulation"
_USAGE = "fdl plan train --simulate 40,100"
_TRIAL = "fdl plan --try train quick"

VARIABLE = "FLODL_REHEARSE"
"""Tells the Trainer of flodl to rehearse, and where to write the result."""

_GPU_VARIABLE = "FLODL_REHEARSE_GPU"
"""Tells it for which GPU to predict the memory: its bytes, and its name."""


def _milliseconds(text: str | None) -> str | None:
    """The value of --simulate, which must be numbers separated by commas."""
    try:
        [float(one) for one in (text or "0").split(",")]
    except ValueError:
        raise typer.BadParameter("expected numbers separated by commas, such as 40,100") from None
    return text


Simulate = Annotated[
    str | None,
    typer.Option(
        help="Predict the throughput of every mode for ranks with these milliseconds per "
        "batch: 40,100",
        callback=_milliseconds,
        rich_help_panel=_SIMULATION,
    ),
]
SyncMs = Annotated[
    float | None,
    typer.Option(
        help="Milliseconds of one average (default: estimated)", rich_help_panel=_SIMULATION
    ),
]
Batches = Annotated[
    int | None,
    typer.Option(
        help="Batches per epoch (default: from the manifest)", rich_help_panel=_SIMULATION
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(help="Number of epochs (default: from the manifest)", rich_help_panel=_SIMULATION),
]
Try = Annotated[
    bool,
    typer.Option(
        "--try", help="Train two steps, and report memory, time per epoch and the first errors"
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="With --try: predict its memory use on this GPU: `RTX 4090`, `24GB`"
    ),
]
On = Annotated[
    str | None,
    typer.Option(metavar="HOST,HOST", help="Check these hosts, and show the ranks of each"),
]


@verbs.command("plan", cls=Open)
def plan(
    ctx: Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="A command with its arguments: `train quick --ranks 2`"),
    ] = None,
    simulate: Simulate = None,
    sync_ms: SyncMs = None,
    batches: Batches = None,
    epochs: Epochs = None,
    tries: Try = False,
    gpu: Gpu = None,
    on: On = None,
    json: Json = False,
) -> int:
    """Show what a command would start, on which devices and with which settings.

    It starts nothing. With --simulate, it prints a prediction. Words after `--` go to the command.

    With --try, it tries a training in a minute. It trains two steps with the largest batches,
    evaluates and writes a checkpoint, on one device. No run directory stays. Commands that the
    training needs run first. The program must use `Trainer.builder` of flodl. With --gpu, it
    predicts the memory on a GPU that this machine does not have.

    Returns:
        0; with ``--simulate`` the exit code of the prediction, with ``--try`` that of the program.

    Raises:
        FdlError: The line names nothing that runs, a manifest on the way is broken, or the ranks
            that are asked for make no sense.
    """
    lengths = {"epochs": epochs, "batches": batches}
    if tries:
        if simulate is not None:
            raise UsageError("--try and --simulate exclude each other", hint=_TRIAL)
        return _try(ctx.obj, _with_own(command or [], lengths), gpu, json=json)
    if gpu is not None:
        raise UsageError("--gpu needs --try", hint='fdl plan --try --gpu "RTX 4090" train')
    if not command:
        raise UsageError("no command is given", hint="fdl plan train --ranks 2")
    if simulate is not None:
        return _simulate(ctx.obj, command, simulate, sync_ms, lengths, json=json)
    if sync_ms is not None:
        raise UsageError("--sync-ms needs --simulate", hint=_USAGE)
    call = ctx.obj
    project, words = call.behind_environment(_with_own(command, lengths))
    if on is not None:
        if json:
            raise UsageError("--on has no JSON to print", hint="leave out one of the two")
        return _on_hosts(project, words, call, on)
    found = resolved(project, words, call.here())
    output.warnings(found.warnings)
    if found.plan.kind != "entry":
        raise UsageError(
            f"`fdl {' '.join(found.plan.command)}` is a shell command: it starts once",
            hint="`fdl --dry-run` shows it; only an `entry` has ranks",
        )
    if json:
        output.print_json(as_json(found))
    else:
        output.write(sys.stdout, as_text(found, output.palette(sys.stdout)))
    return 0


def _on_hosts(project: Project, words: list[str], call: Call, names: str) -> int:
    from fdl.base.global_flags import Work
    from fdl.run.batch.slurm import away
    from fdl.run.hosts.launch import plan_on
    from fdl.run.hosts.machines import prepared

    place = call.here()
    step = steps_of(project, words, away(place))[-1].replaced(words=words)
    return plan_on(*prepared(step, project, place, Work(on=names), str(Path.cwd())))


def _with_own(words: list[str], lengths: dict[str, int | None]) -> list[str]:
    """The command's words, with the program's own ``--epochs`` and ``--batches`` among them."""
    end = words.index("--") if "--" in words else len(words)
    own = [(f"--{name}", str(value)) for name, value in lengths.items() if value is not None]
    return [*words[:end], *(word for pair in own for word in pair), *words[end:]]


def _simulate(
    call: Call,
    words: list[str],
    milliseconds: str,
    sync_ms: float | None,
    lengths: dict[str, int | None],
    *,
    json: bool,
) -> int:
    """Start the prediction with what was typed, and with the manifest's lengths otherwise."""
    from fdl.cli.commands.bundled import start

    project, rest = call.behind_environment(words)
    command = resolved(project, rest, call.here())
    arguments = ["--simulate", milliseconds]
    if sync_ms is not None:
        arguments += ["--sync-ms", f"{sync_ms:g}"]
    for name, field in (("batches", "batches_per_epoch"), ("epochs", "epochs")):
        value = _training(command, field) if lengths[name] is None else lengths[name]
        if value is not None:
            arguments += [f"--{name}", str(value)]
    return start(call, "plan", GHOST, [*arguments, *(["--json"] if json else [])])


def _training(command: Command, field: str) -> int | None:
    """A whole number of the command's ``training`` settings, or None."""
    found = [one.value for one in command.fields if one.path == ("training", field)]
    return found[0] if found and isinstance(found[0], int) else None


def _try(call: Call, typed: list[str], gpu: str | None, *, json: bool) -> int:
    """Two steps, an evaluation and a checkpoint of a training, measured.

    Returns:
        0, or the exit code of the program.

    Raises:
        FdlError: The words name no training, or the program has no Trainer.
    """
    project, words = call.behind_environment(typed)
    if not words:
        raise UsageError("no command is given", hint=_TRIAL)
    # As on another machine: fdl itself starts no ranks.
    steps = steps_of(project, words, call.here().replaced(elsewhere=True))
    output.warnings(project.untold())
    plan = steps[-1].plan
    _check(plan)
    with tempfile.TemporaryDirectory(prefix="fdl-rehearsal-") as folder:
        file = Path(folder) / "rehearsal.json"
        # Of a program that prints, too, stdout holds the one document.
        with stdout_as_stderr() if json else nullcontext():
            code = _run(steps, plan, file, call, gpu)
        result = read_json(file)
    if result is None and not code:
        raise FdlError(
            f"`fdl {' '.join(plan.command)}` ended without a training: its program did not call "
            "`Trainer.builder(…).run()`",
            hint="fdl plan --help",
        )
    if result is None:
        return code
    if json:
        output.write(sys.stdout, output.versioned(result))
    else:
        output.show(page(result))
    return code


def _check(plan: Plan) -> None:
    """Refuse what would train in earnest.

    Raises:
        UsageError: The command is not a program with flodl, or runs in a container.
    """
    typed = f"fdl {' '.join(plan.command)}"
    if plan.kind != "entry" or not uses_flodl(plan):
        raise UsageError(
            f"`{typed}` would really run: its program does not use flodl",
            hint="`fdl plan --try` needs an `entry` whose script trains with `Trainer.builder`",
        )
    if plan.service:
        raise UsageError(
            f"`{typed}` runs in the container `{plan.service}`, and a rehearsal does not",
            hint=f"start a shell in the container and type: {_TRIAL}",
        )


def _run(steps: list[Step], plan: Plan, file: Path, call: Call, gpu: str | None) -> int:
    from fdl.run.execute import execute, start

    work = call.invocation.work
    where = Where(at_once=work.jobs or 0, gpus_each=work.gpus_each, follows=True)
    if (needed := steps[:-1]) and (code := execute(needed, where)):
        return code
    plan.env[VARIABLE] = str(file)
    if gpu is not None:
        plan.env[_GPU_VARIABLE] = f"{memory_of(gpu)} {gpu}"
    plan.record = None
    return start(plan)[0]
