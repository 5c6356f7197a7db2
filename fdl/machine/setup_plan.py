"""Plan a setup: turn facts and answers into a list of steps, without running them.

The steps are values that can be shown before they run. Only ``gather`` accesses the machine.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from fdl.base.compose_file import services
from fdl.base.errors import FdlError, LibtorchError
from fdl.base.hardware import Gpu
from fdl.base.shell_words import join
from fdl.base.terminal import Questions
from fdl.base.venv import python_of, site_packages
from fdl.libtorch.active import CPU_ID, Variant
from fdl.libtorch.catalog import (
    CPU,
    Artifact,
    Choice,
    archs_argument,
    artifacts,
    build_command,
    choose,
    covers,
    default_version,
    recorded,
    this_platform,
)
from fdl.libtorch.layout import WHEELS, cuda_variant
from fdl.machine.facts import Facts, find as project_environment, survey


@dataclass(frozen=True, slots=True)
class Install:
    """Install a libtorch variant.

    Attributes:
        variant: ``cpu``, ``cu128`` …, or ``auto``.
        activate: Whether to activate it; only ``cpu`` is ever installed without activation.
        source: ``archive``, or ``wheel`` if there are no archives.
    """

    variant: str
    activate: bool
    source: str = "archive"

    @property
    def typed(self) -> str:
        """The command that does the same."""
        if not self.activate:
            return f"fdl libtorch download --{self.variant} --no-activate"
        source = "" if self.source == "archive" else f" --source {self.source}"
        return f"fdl libtorch install {self.variant}{source}"


@dataclass(frozen=True, slots=True)
class Activate:
    """Activate an installed variant."""

    id: str

    @property
    def typed(self) -> str:
        """The command that does the same."""
        return f"fdl libtorch activate {self.id}"


@dataclass(frozen=True, slots=True)
class Program:
    """Run a program.

    Attributes:
        argv: The program and its arguments.
        cwd: The working directory.
        images: Whether it builds images, and so needs the variables of the compose file.
        optional: Whether its failure is only a warning.
        consequence: What its failure means, for that warning.
    """

    argv: tuple[str, ...]
    cwd: Path
    images: bool = False
    optional: bool = False
    consequence: str = ""

    @property
    def typed(self) -> str:
        """The command line, from :attr:`cwd`."""
        return join(list(self.argv))


Step = Install | Activate | Program


VENV = ".venv"
"""The virtual environment of a project, used by the commands of its manifest."""


@dataclass(frozen=True, slots=True)
class ProjectFacts:
    """The project to prepare.

    Attributes:
        root: Its folder.
        services: The services in its compose file.
        is_package: Whether it can be installed: it has a ``pyproject.toml``.
        has_venv: Whether it has a virtual environment.
        venv_has_pip: Whether that environment has pip.
        venv_has_torch: Whether that environment has torch.
        venv_torch_is_cpu: Whether that torch is built without CUDA.
    """

    root: Path
    services: tuple[str, ...] = ()
    is_package: bool = False
    has_venv: bool = False
    venv_has_pip: bool = False
    venv_has_torch: bool = False
    venv_torch_is_cpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFacts(Facts):
    """The facts that ``fdl diagnose`` judges, and what a setup chooses from.

    Attributes:
        archives: The archives of the default torch version for this platform.
        no_archives: Why there are none; None if there are some.
        makes_venvs: Whether this interpreter can make virtual environments with pip.
        own_pip: Whether this interpreter has pip.
        project: The project; None if the user's store is to be prepared.
    """

    archives: tuple[Artifact, ...] = ()
    no_archives: LibtorchError | None = None
    makes_venvs: bool = True
    own_pip: bool = True
    project: ProjectFacts | None = None

    @property
    def needs_libtorch(self) -> bool:
        """Whether the project uses libtorch; True for the user's store."""
        return self.stock.store.scope == "global" or bool(self.stock.needed_by)

    @property
    def has_docker(self) -> bool:
        """Whether images can be built here; not possible inside a container."""
        return self.system.docker not in ("", "container")

    @property
    def has_uv(self) -> bool:
        """Whether uv is installed, which needs neither pip nor ensurepip."""
        return "uv" in self.system.tools

    @property
    def has_toolchain(self) -> bool:
        """Whether virtual environments can be made."""
        return self.makes_venvs or self.has_uv


def gather(start: str, environ: Mapping[str, str]) -> SetupFacts:
    """Gather facts about the machine and the project of the folder ``start``."""
    archives: tuple[Artifact, ...] = ()
    no_archives = None
    try:
        archives = tuple(artifacts(default_version(), this_platform()))
    except LibtorchError as error:
        no_archives = error
    found = survey(start, environ, None)
    store = found.stock.store
    return SetupFacts(
        **{one.name: getattr(found, one.name) for one in fields(found)},
        archives=archives,
        no_archives=no_archives,
        makes_venvs=_has("venv") and _has("ensurepip"),
        own_pip=_has("pip"),
        project=_project(store.root) if store.scope == "project" else None,
    )


def _project(root: Path) -> ProjectFacts:
    venv = root / VENV
    has_venv = (venv / "pyvenv.cfg").is_file()
    packages = [Path(one) for one in site_packages(str(venv))]

    def holds(name: str) -> bool:
        return has_venv and any((folder / name / "__init__.py").is_file() for folder in packages)

    torch = project_environment(root, {}).torch if has_venv else None
    return ProjectFacts(
        root=root,
        services=tuple(services(str(root))),
        is_package=(root / "pyproject.toml").is_file(),
        has_venv=has_venv,
        venv_has_pip=holds("pip"),
        venv_has_torch=holds("torch"),
        venv_torch_is_cpu=torch is not None and not torch.cuda,
    )


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a setup, with notes for the user.

    Attributes:
        steps: The steps, in order.
        cuda: CUDA version of the variant that is active afterwards; None for CPU.
        notes: What the plan is based on, in sentences.
        hint: A command that would serve the GPUs better; empty for none.
        next: The commands to run afterwards, each with its purpose.
    """

    steps: tuple[Step, ...] = ()
    cuda: str | None = None
    notes: tuple[str, ...] = ()
    hint: str = ""
    next: tuple[tuple[str, str], ...] = ()


def decide(facts: SetupFacts, questions: Questions, *, force: bool) -> Plan:
    """Choose the variants to install and the one to activate.

    A project that does not use libtorch gets none. An active CUDA variant stays, unless ``force``
    or the user says otherwise. Otherwise the CPU variant is installed, because containers without a
    GPU need it. Besides it, the archive that fits the GPUs is installed. If no archive fits, the
    user's own build is activated, or what the user chooses.
    """
    if not facts.needs_libtorch:
        # torch's Python package comes for the same CUDA versions.
        fitting = Plan() if facts.no_archives else _for_gpus(facts, Questions(on=False))
        return replace(fitting, steps=(), hint="")
    active = facts.stock.active
    if active is not None and (active.cuda or active.id.startswith("builds/")) and not force:
        kept = f"{active.id} is active and stays"
        again = f"{active.id} is active. Install libtorch again?"
        if not questions.confirm(again, default=False):
            return Plan(cuda=active.cuda, notes=(kept,))
    if active is None:
        require_driver(facts, questions, "a libtorch", "fdl libtorch install cpu, then fdl setup")
    if facts.no_archives is not None:
        return _without_archives(facts, facts.no_archives)
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


def require_driver(facts: SetupFacts, questions: Questions, what: str, decision: str) -> None:
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


def _for_gpus(facts: SetupFacts, questions: Questions) -> Plan:
    """The steps that serve the GPUs; none without GPUs, or if the user wants none."""
    gpus = facts.nvidia.counted
    if failure := facts.nvidia.failure:
        note = f"the GPUs are left out, because {failure.message}"
        return Plan(notes=(note,), hint=failure.remedy)
    if not gpus:
        return Plan(notes=("no NVIDIA GPU found: the CPU build is enough",))
    try:
        choice = choose(gpus, facts.archives, facts.nvidia.driver)
    except LibtorchError as error:
        return Plan(notes=(error.message,), hint=error.hint)
    best = choice.artifact
    if best.cuda is None:
        return Plan(notes=("this platform has no variant for NVIDIA GPUs",))
    outdated = (
        f"a newer CUDA would fit the GPUs, but not the driver {facts.nvidia.driver}; "
        "after an update of the driver, run `fdl setup --force`"
    )
    notes = (outdated,) if choice.outdated else ()
    if not choice.uncovered:
        return Plan((Install(best.variant, activate=True),), best.cuda, notes)
    own = _build_for(gpus, facts.stock.installed)
    if own is not None:
        note = f"{own.id} has code for every GPU, so it is used"
        return Plan((Activate(own.id),), own.cuda, (*notes, note))
    return _for_mixed_gpus(facts, gpus, choice, notes, questions)


def _for_mixed_gpus(
    facts: SetupFacts,
    gpus: Sequence[Gpu],
    choice: Choice,
    notes: tuple[str, ...],
    questions: Questions,
) -> Plan:
    """No archive has code for all GPUs: ask the user, or take the best one available."""
    archs = archs_argument(gpus)
    build = build_command(gpus)
    best = choice.artifact
    if not questions.on:
        step = Install(best.variant, activate=True)
        return Plan((step,), best.cuda, (*notes, choice.left_out), build)
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
        return Plan(notes=notes, hint=build)
    if answer == 0:
        argv = (sys.executable, "-P", "-m", "fdl", "libtorch", "build", "--archs", archs)
        root = facts.project.root if facts.project else Path.cwd()
        job = Program(argv, root, optional=True, consequence="what was in use stays in use")
        return Plan((job,), best.cuda, notes)
    taken = offered[answer - 1]
    return Plan((Install(taken.variant, activate=True),), taken.cuda, notes, build)


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


def _without_archives(facts: SetupFacts, problem: LibtorchError) -> Plan:
    """Use torch's Python package for other processors on Linux; elsewhere nothing is available."""
    active = facts.stock.active
    if active is not None:
        return Plan(cuda=active.cuda, notes=(f"{active.id} is active and stays",))
    if sys.platform != "linux":
        return Plan(notes=(problem.message,), hint=problem.hint)
    variant = "auto" if facts.nvidia.counted else CPU
    note = "there are no archives for this processor, so torch's Python package is taken"
    return Plan((Install(variant, activate=True, source="wheel"),), notes=(note,))


def _cpu(facts: SetupFacts, *, force: bool) -> list[Step]:
    """The CPU variant, unless it is installed already."""
    there = any(
        one.id == CPU_ID and one.facts.get("torch") == default_version()
        for one in facts.stock.installed
    )
    return [] if there and not force else [Install(CPU, activate=False)]


def _activates(step: Step) -> bool:
    return isinstance(step, Activate) or (isinstance(step, Install) and step.activate)


TORCH_INDEX = "FLODL_TORCH_INDEX"
"""Variable with the index for torch, instead of PyTorch's own."""


def images(project: ProjectFacts, *, cuda: bool) -> Iterator[Program]:
    """The steps that build a project's images; ``cuda``: there is a GPU, and a variant for it."""
    wanted = ["dev", "cuda"] if cuda else ["dev"]
    for service in wanted:
        if service in project.services:
            yield Program(
                ("docker", "compose", "build", service),
                project.root,
                images=True,
                optional=True,
                consequence=f"commands that run in `{service}` will try to build it first",
            )


def native(
    facts: SetupFacts, project: ProjectFacts, cuda: str | None, environ: Mapping[str, str]
) -> Iterator[Program]:
    """The steps that make a virtual environment with torch and the project in it.

    torch comes from the index for the CUDA version, without its dependencies. These are installed
    with the project, from the user's own index, which holds more versions of them. A torch without
    CUDA is replaced if a CUDA version is given.
    """
    if not project.has_venv:
        uses_venv = facts.makes_venvs
        make = (sys.executable, "-m", "venv") if uses_venv else ("uv", "venv", "--seed")
        yield Program((*make, VENV), project.root)
    install = _install(facts, project)
    # pip takes a torch without CUDA for the one that is asked for.
    again = ("--force-reinstall",) if cuda and project.venv_torch_is_cpu else ()
    if again or not project.venv_has_torch:
        index = environ.get(TORCH_INDEX) or f"{WHEELS}/{cuda_variant(cuda) if cuda else CPU}"
        yield Program(
            (*install, *again, "--no-deps", "--index-url", index, "torch"),
            project.root,
            optional=True,
            consequence="torch is taken from your own index instead",
        )
    editable = ("--editable", ".") if project.is_package else ()
    yield Program((*install, *editable, "torch"), project.root)


def _install(facts: SetupFacts, project: ProjectFacts) -> tuple[str, ...]:
    """The command that installs into the project's environment, without the packages."""
    python = python_of(VENV)
    own = (python, "-m", "pip", "install")
    if not project.has_venv or project.venv_has_pip:
        return own
    if facts.own_pip:
        return (sys.executable, "-m", "pip", "--python", python, "install")
    return ("uv", "pip", "install", "--python", python) if facts.has_uv else own


_WITHOUT_DOCKER = (
    "the project has a compose file, and Docker is not installed",
    "this is the inside of a container: images are built outside of it",
)

_DOCKER, _NATIVE, _BOTH = range(3)
_MODES = (
    "Docker: build the images of the compose file",
    "native: a virtual environment in .venv",
    "both",
)


def plan(
    facts: SetupFacts, questions: Questions, environ: Mapping[str, str], *, force: bool = False
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
    chosen = decide(facts, questions, force=force)
    steps, notes, project = [*chosen.steps], [*chosen.notes], facts.project
    if project is not None:
        mode = _mode(facts, project, questions)
        if mode in (_DOCKER, _BOTH):
            has_gpu = bool(facts.nvidia.counted) and chosen.cuda is not None
            steps += images(project, cuda=has_gpu)
        if mode in (_NATIVE, _BOTH):
            decided = facts.needs_libtorch or project.venv_has_torch or environ.get(TORCH_INDEX)
            if not decided:
                choice = f"{TORCH_INDEX}={WHEELS}/{CPU} fdl setup"
                require_driver(facts, questions, "a torch", choice)
            steps += native(facts, project, chosen.cuda, environ)
        if project.services and not facts.has_docker:
            notes.append(_WITHOUT_DOCKER[facts.system.docker == "container"])
    following = tuple(_next(facts, chosen))
    return replace(chosen, steps=tuple(steps), notes=tuple(notes), next=following)


def _mode(facts: SetupFacts, project: ProjectFacts, questions: Questions) -> int:
    """How the project should run; modes that the machine or project lacks are not offered."""
    docker = facts.has_docker and bool(project.services)
    if docker and facts.has_toolchain:
        return questions.choose("How shall the project run?", _MODES, default=_DOCKER)
    return _DOCKER if docker else _NATIVE


def _next(facts: SetupFacts, chosen: Plan) -> Iterator[tuple[str, str]]:
    if facts.project is None:
        yield "fdl libtorch env", "what a shell, CMake or Cargo needs to use libtorch"
        yield "fdl init NAME", "a new project"
    else:
        yield "fdl --help", "the commands of this project"
    if facts.nvidia.gpus or chosen.cuda:
        yield "fdl diagnose", "check GPUs, driver and libtorch"
