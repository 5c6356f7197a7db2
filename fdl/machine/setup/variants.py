"""Decide which libtorch a machine should have; needs neither GPUs nor a network."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fdl.base.errors import LibtorchError
from fdl.base.hardware import Gpu
from fdl.base.questions import Questions
from fdl.libtorch.active import CPU_ID, Variant
from fdl.libtorch.architectures import covers, recorded
from fdl.libtorch.catalog import CPU, Artifact, archs_argument, build_command, choose
from fdl.machine.setup.facts import Facts
from fdl.machine.setup.steps import Activate, Install, Program, Step


@dataclass(frozen=True, slots=True)
class Outcome:
    """The steps for libtorch, with notes for the user.

    Attributes:
        steps: The steps, in order.
        cuda: CUDA version of the variant that is active afterwards; None for CPU.
        notes: What the choice is based on, in sentences.
        hint: A command that would serve the GPUs better; empty for none.
    """

    steps: tuple[Step, ...] = ()
    cuda: str | None = None
    notes: tuple[str, ...] = ()
    hint: str = ""


def decide(facts: Facts, questions: Questions, *, force: bool) -> Outcome:
    """Choose the variants to install and the one to activate.

    A project that does not use libtorch gets none. An active CUDA variant stays, unless ``force``
    or the user says otherwise. Otherwise the CPU variant is installed, because containers without a
    GPU need it. Besides it, the archive that fits the GPUs is installed. If no archive fits, the
    user's own build is activated, or what the user chooses.
    """
    if not facts.needs_libtorch:
        # torch's Python package comes for the same CUDA versions.
        fitting = Outcome() if facts.no_archives else _for_gpus(facts, Questions(on=False))
        return replace(fitting, steps=(), hint="")
    active = facts.active
    if active is not None and (active.cuda or active.id.startswith("builds/")) and not force:
        kept = f"{active.id} is active and stays"
        again = f"{active.id} is active. Install libtorch again?"
        if not questions.confirm(again, default=False):
            return Outcome(cuda=active.cuda, notes=(kept,))
    if active is None:
        require_driver(facts, questions, "a libtorch", "fdl libtorch install cpu, then fdl setup")
    if facts.no_archives is not None:
        return _without_archives(facts)
    chosen = _for_gpus(facts, questions)
    cpu = _cpu(facts, force=force)
    if any(map(_activates, chosen.steps)):
        return replace(chosen, steps=(*cpu, *chosen.steps))
    if active is not None:
        cuda = chosen.cuda or active.cuda
        return replace(chosen, steps=(*cpu, *chosen.steps), cuda=cuda)
    # No other variant is active, or is certain to be.
    used = Install(CPU, activate=True) if cpu else Activate(CPU_ID)
    return replace(chosen, steps=(used, *chosen.steps))


def require_driver(facts: Facts, questions: Questions, what: str, decision: str) -> None:
    """Choose no build for a GPU whose driver fails, unless the user wants that for the processor.

    Args:
        facts: The machine.
        questions: Asks the user.
        what: The thing to choose, for messages: ``a libtorch``.
        decision: The command line that decides for the processor.

    Raises:
        LibtorchError: The user does not want it, or cannot be asked.
    """
    failure = facts.nvidia.failure
    if failure is None:
        return
    build = what.removeprefix("a ")
    asked = f"There is a GPU, but {failure.message}. Install the CPU build of {build}?"
    if questions.confirm(asked, default=False):
        return
    raise LibtorchError(
        f"`fdl setup` cannot choose {what}: {failure.message}",
        hint=f"repair the driver ({failure.remedy}), or decide yourself: {decision}",
    )


def _for_gpus(facts: Facts, questions: Questions) -> Outcome:
    """The steps that serve the GPUs; none without GPUs, or if the user wants none."""
    gpus = facts.nvidia.counted
    if failure := facts.nvidia.failure:
        note = f"the GPUs are left out, because {failure.message}"
        return Outcome(notes=(note,), hint=failure.remedy)
    if not gpus:
        return Outcome(notes=("no NVIDIA GPU found: the CPU build is enough",))
    try:
        choice = choose(gpus, facts.archives, facts.nvidia.driver)
    except LibtorchError as error:
        return Outcome(notes=(error.message,), hint=error.hint)
    best = choice.artifact
    if best.cuda is None:
        return Outcome(notes=("this platform has no variant for NVIDIA GPUs",))
    outdated = (
        f"a newer CUDA would fit the GPUs, but not the driver {facts.nvidia.driver}; "
        "after an update of the driver, run `fdl setup --force`"
    )
    notes = (outdated,) if choice.outdated else ()
    if not choice.uncovered:
        return Outcome((Install(best.variant, activate=True),), best.cuda, notes)
    own = _build_for(gpus, facts.installed)
    if own is not None:
        note = f"{own.id} has code for every GPU, so it is used"
        return Outcome((Activate(own.id),), own.cuda, (*notes, note))
    return _for_mixed_gpus(facts, gpus, choice.uncovered, best, notes, questions)


def _for_mixed_gpus(
    facts: Facts,
    gpus: Sequence[Gpu],
    uncovered: Sequence[Gpu],
    best: Artifact,
    notes: tuple[str, ...],
    questions: Questions,
) -> Outcome:
    """No archive has code for all GPUs: ask the user, or take the best one available."""
    archs = archs_argument(gpus)
    build = build_command(gpus)
    left = ", ".join(f"[{gpu.index}] {gpu.name} ({gpu.sm})" for gpu in uncovered)
    note = f"no archive has code for all GPUs; {best.variant} leaves out {left}"
    if not questions.on:
        step = Install(best.variant, activate=True)
        return Outcome((step,), best.cuda, (*notes, note), build)
    offered = sorted(
        (one for one in facts.archives if one.cuda), key=lambda one: one.variant, reverse=True
    )
    options = [
        f"build libtorch for {archs}: serves every GPU, takes hours",
        *(f"install {one.variant}: {_served(one, gpus)}" for one in offered),
        "leave it for now",
    ]
    answer = questions.choose(
        "No archive of libtorch has code for all of your GPUs.", options, default=len(options) - 1
    )
    if answer == len(options) - 1:
        return Outcome(notes=notes, hint=build)
    if answer == 0:
        argv = (sys.executable, "-P", "-m", "fdl", "libtorch", "build", "--archs", archs)
        job = Program(argv, facts.root, optional=True, consequence="what was in use stays in use")
        return Outcome((job,), best.cuda, notes)
    taken = offered[answer - 1]
    return Outcome((Install(taken.variant, activate=True),), taken.cuda, notes, build)


def _served(artifact: Artifact, gpus: Sequence[Gpu]) -> str:
    left = [gpu.name for gpu in gpus if not artifact.serves(gpu)]
    return f"leaves out {', '.join(left)}" if left else "serves every GPU"


def _build_for(gpus: Sequence[Gpu], installed: Sequence[Variant]) -> Variant | None:
    """A build of the user with code for every GPU."""
    for one in installed:
        archs = recorded(one.facts.get("archs", ""))
        if one.id.startswith("builds/") and all(covers(archs, gpu.capability) for gpu in gpus):
            return one
    return None


def _without_archives(facts: Facts) -> Outcome:
    """Use torch's Python package for other processors on Linux; elsewhere nothing is available."""
    problem = facts.no_archives
    if facts.active is not None:
        return Outcome(cuda=facts.active.cuda, notes=(f"{facts.active.id} is active and stays",))
    if sys.platform != "linux" or problem is None:
        return Outcome(
            notes=(problem.message,) if problem else (), hint=problem.hint if problem else ""
        )
    variant = "auto" if facts.nvidia.counted else CPU
    note = "there are no archives for this processor, so torch's Python package is taken"
    return Outcome((Install(variant, activate=True, source="wheel"),), None, (note,))


def _cpu(facts: Facts, *, force: bool) -> list[Step]:
    """The CPU variant, unless it is installed already."""
    there = any(
        one.id == CPU_ID and one.facts.get("torch") == facts.torch for one in facts.installed
    )
    return [] if there and not force else [Install(CPU, activate=False)]


def _activates(step: Step) -> bool:
    return isinstance(step, Activate) or (isinstance(step, Install) and step.activate)
