"""Turn facts and answers into a list of steps, without running them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fdl.base.errors import FdlError
from fdl.base.questions import Questions
from fdl.machine.setup import environment
from fdl.machine.setup.facts import Facts, ProjectFacts
from fdl.machine.setup.steps import Step
from fdl.machine.setup.variants import Outcome, decide

_DOCKER, _NATIVE, _BOTH = range(3)
_MODES = (
    "Docker: build the images of the compose file",
    "native: a virtual environment in .venv",
    "both",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a setup, with notes for the user.

    Attributes:
        steps: The steps, in order.
        notes: What the plan is based on, in sentences.
        hint: A command that would serve the GPUs better; empty for none.
        next: The commands to run afterwards, each with its purpose.
    """

    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    hint: str
    next: tuple[tuple[str, str], ...]


def plan(
    facts: Facts, questions: Questions, environ: Mapping[str, str], *, force: bool = False
) -> Plan:
    """Plan the setup; ``force`` installs libtorch again if a CUDA variant is active.

    Raises:
        FdlError: A project could not run here: there is neither Docker nor virtual environments.
            Or there is a GPU whose driver fails, and the user has not decided what to install.
    """
    if not facts.has_docker and not facts.has_toolchain:
        raise FdlError(
            "there is neither Docker nor a Python that can make virtual environments",
            hint="on Debian and Ubuntu: sudo apt install python3-venv; elsewhere install Docker "
            "or a complete Python 3.11, then run `fdl setup` again",
        )
    outcome = decide(facts, questions, force=force)
    steps = list(outcome.steps)
    notes = list(outcome.notes)
    if facts.project is not None:
        mode = _mode(facts, facts.project, questions)
        if mode in (_DOCKER, _BOTH):
            has_gpu = bool(facts.nvidia.counted) and outcome.cuda is not None
            steps += environment.images(facts.project, cuda=has_gpu)
        if mode in (_NATIVE, _BOTH):
            if not facts.needs_libtorch:
                environment.require_choice(facts, facts.project, questions, environ)
            steps += environment.native(facts, facts.project, outcome.cuda, environ)
        notes += _about_docker(facts, facts.project)
    return Plan(tuple(steps), tuple(notes), outcome.hint, tuple(_next(facts, outcome)))


def _mode(facts: Facts, project: ProjectFacts, questions: Questions) -> int:
    """How the project should run; modes that the machine or project lacks are not offered."""
    docker = facts.has_docker and bool(project.services)
    if docker and facts.has_toolchain:
        return questions.choose("How shall the project run?", _MODES, default=_DOCKER)
    return _DOCKER if docker else _NATIVE


def _about_docker(facts: Facts, project: ProjectFacts) -> Iterator[str]:
    if project.services and not facts.has_docker:
        inside = facts.system.docker == "container"
        yield (
            "this is the inside of a container: images are built outside of it"
            if inside
            else "the project has a compose file, and Docker is not installed"
        )


def _next(facts: Facts, outcome: Outcome) -> Iterator[tuple[str, str]]:
    if facts.project is None:
        yield "fdl libtorch env", "what a shell, CMake or Cargo needs to use libtorch"
        yield "fdl init NAME", "a new project"
    else:
        yield "fdl --help", "the commands of this project"
    if facts.nvidia.gpus or outcome.cuda:
        yield "fdl diagnose", "check GPUs, driver and libtorch"
