"""Plan a build as a value: its variant, the folders it uses and every command.

The commands are those a user would type. Each can be repeated: after an interruption the same plan
is executed again, and git, pip, ninja and Docker continue with what exists already.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fdl.base.errors import UsageError
from fdl.base.shell_words import join, quote
from fdl.libtorch.active import read_text
from fdl.libtorch.architectures import Architecture
from fdl.libtorch.build.tools import NEEDS, Tools
from fdl.libtorch.store import Store

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

BackEnd = Literal["docker", "native"]

REPOSITORY = "https://github.com/pytorch/pytorch"
"""The default repository of the sources."""

CONTAINER = Path(__file__).parent / "container"
"""The folder with the Dockerfile: the build context of the image."""

CONTAINER_CUDA = "12.8"
"""CUDA version inside the container; the tag of the base image belongs to it."""

RESULTS = ("lib", "include", "share")
"""The folders of a variant."""

_VERSION = re.compile(r"\d+\.\d+\.\d+(-rc\d+)?\Z")


@dataclass(frozen=True, slots=True)
class Request:
    """A requested build.

    Attributes:
        archs: The architectures, sorted, each once.
        torch: Version of torch; the sources are those of the tag ``v`` followed by this version.
        jobs: Files to compile at the same time.
        repository: Git repository of the sources.

    Raises:
        UsageError: There are no architectures, fewer than one job, no version of torch, or the
            address contains a password.
    """

    archs: tuple[Architecture, ...]
    torch: str
    jobs: int = 6
    repository: str = REPOSITORY

    def __post_init__(self) -> None:
        if not self.archs:
            raise UsageError("nothing to build for: no GPU architectures", hint=_ARCHS_HINT)
        if self.jobs < 1:
            raise UsageError(
                f"--jobs is {self.jobs}, and at least one file has to be compiled at a time",
                hint="leave the flag out, or give a number from 1 up",
            )
        if not _VERSION.match(self.torch):
            raise UsageError(
                f"`{self.torch}` is not a version of torch; write it as 2.10.0",
                hint="fdl libtorch build --torch 2.10.0",
            )
        if _CREDENTIALS.match(self.repository):
            raise UsageError(
                "the address of --repository holds a password, and would appear in logs with it",
                hint="leave it out, and let git ask its credential helper",
            )

    @property
    def name(self) -> str:
        """The variant's name, from its architectures: ``sm61-sm120``."""
        return "-".join(arch.sm.replace("_", "") for arch in self.archs)

    @property
    def id(self) -> str:
        """The variant: ``builds/sm61-sm120``."""
        return f"builds/{self.name}"

    @property
    def arch_list(self) -> str:
        """The architectures in the form of PyTorch's build: ``6.1;12.0+PTX``."""
        return ";".join(map(str, self.archs))


_CREDENTIALS = re.compile(r"https?://[^/]*@")
_ARCHS_HINT = 'name them: fdl libtorch build --archs "6.1;12.0"'


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        argv: Program and arguments.
        cwd: Where it runs.
        env: Variables in addition to the inherited ones.
        if_there: Run it only if this file exists.
        if_missing: Run it only if this file does not exist.
        counts: Whether ninja reports its progress in the output.
        may_fail: Whether the build continues if it fails.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    if_there: Path | None = None
    if_missing: Path | None = None
    counts: bool = False
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps with one purpose.

    Attributes:
        title: What they do: ``fetch the sources``.
        steps: The commands, in order.
        mark: A file with the settings that the phase was finished with; the phase is then skipped.
            None for a phase that always runs.
        settings: The required content of the mark.
    """

    title: str
    steps: tuple[Step, ...]
    mark: Path | None = None
    settings: str = ""

    def is_done(self) -> bool:
        """Whether an earlier call finished it."""
        return self.mark is not None and read_text(self.mark) == self.settings


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """A build, ready to be printed or executed.

    Attributes:
        back_end: Where it is compiled.
        target: The folder of the new variant.
        sources: The checkout of a native build.
        tree: Folder of files that are kept between calls and belong only to this variant.
        result: Folder with ``lib``, ``include`` and ``share`` after the last phase.
        log: File for all output.
    """

    request: Request
    back_end: BackEnd
    target: Path
    sources: Path
    tree: Path
    result: Path
    log: Path
    needs: tuple[str, ...]
    phases: tuple[Phase, ...]


def plan(request: Request, back_end: BackEnd, store: Store, tools: Tools) -> BuildPlan:
    """Plan the build of a request; sources and trees are kept in the cache of the store.

    ``tools`` are those that a native build finds on this machine.
    """
    cache, name = store.cache, request.name
    sources, tree = cache / "pytorch", cache / f"build-{name}"
    if back_end == "docker":
        phases, result = _docker(request, tree), tree / "libtorch"
    else:
        phases, result = _native(request, sources, tree, tools), sources / "torch"
    return BuildPlan(
        request=request,
        back_end=back_end,
        target=store.path(request.id),
        sources=sources,
        tree=tree,
        result=result,
        log=cache / f"build-{name}.log",
        needs=("docker",) if back_end == "docker" else tuple(NEEDS),
        phases=phases,
    )


def _native(request: Request, sources: Path, tree: Path, tools: Tools) -> tuple[Phase, ...]:
    environment = sources.parent / "build-python"
    python = environment / "bin" / "python"
    variables = {
        "TORCH_CUDA_ARCH_LIST": request.arch_list,
        "MAX_JOBS": str(request.jobs),
        "USE_CUDA": "1",
        "BUILD_PYTHON": "0",
        "BUILD_TEST": "0",
        # Some of PyTorch's submodules need policies that CMake 4 has removed.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        # The progress is read from this format, so it must not depend on the user's setting.
        "NINJA_STATUS": "[%f/%t] ",
        "PATH": os.pathsep.join(filter(None, (str(python.parent), tools.path))),
        "PYTHONUNBUFFERED": "1",
    }
    script = str(sources / "tools" / "build_libtorch.py")
    installed = [f"torch/{folder}" for folder in ("bin", *RESULTS)]
    return (
        Phase(
            "fetch the sources",
            tuple(_fetch(request, sources)),
            mark=sources / ".git" / "flodl-sources",
            settings=f"{request.repository} v{request.torch}\n",
        ),
        Phase(
            "install the Python packages of the build",
            tuple(_packages(sources, environment, python, tools)),
            mark=environment / "flodl-packages",
            settings=f"v{request.torch} {sys.executable}\n",
        ),
        Phase(
            "compile; this takes hours",
            (
                # Remove what an earlier build for other architectures installed there.
                Step(("git", "clean", "-ffdxq", "--", *installed), sources),
                Step((str(python), script), tree, variables, counts=True),
            ),
        ),
    )


def _fetch(request: Request, sources: Path) -> Iterator[Step]:
    """Commands that work in an empty folder, after an interruption and after another tag."""
    tag = f"refs/tags/v{request.torch}"
    quiet = {"GIT_TERMINAL_PROMPT": "0"}
    yield Step(("git", "init", "--quiet", str(sources)), sources.parent, quiet)
    for words in (
        ("config", "remote.origin.url", request.repository),
        ("fetch", "--depth", "1", "--force", "origin", f"{tag}:{tag}"),
        ("checkout", "--quiet", "--force", "--detach", tag),
        # Otherwise files that another version generated in the sources would be used.
        ("clean", "-ffdxq"),
        ("submodule", "sync", "--quiet", "--recursive"),
        (
            *("submodule", "update", "--init", "--recursive", "--force", "--depth", "1"),
            *("--jobs", str(request.jobs)),
        ),
    ):
        yield Step(("git", *words), sources, quiet)


def _packages(sources: Path, environment: Path, python: Path, tools: Tools) -> Iterator[Step]:
    def pip(*words: str, if_there: Path | None = None, if_missing: Path | None = None) -> Step:
        argv = (str(python), "-m", "pip", "install", *words)
        return Step(argv, sources, if_there=if_there, if_missing=if_missing)

    # Versions before 2.8 list the build requirements among all other requirements.
    listed, older = sources / "requirements-build.txt", sources / "requirements.txt"
    yield Step((sys.executable, "-m", "venv", "--clear", str(environment)), sources)
    yield pip("-r", str(listed), if_there=listed)
    yield pip("-r", str(older), if_there=older, if_missing=listed)
    if not tools.has_ninja:
        yield pip("ninja")


def _docker(request: Request, tree: Path) -> tuple[Phase, ...]:
    name = f"flodl-libtorch-{request.name}".replace("+", "-")
    image = f"{name}:{request.torch}"
    arguments = {
        "REPOSITORY": request.repository,
        "TORCH_VERSION": request.torch,
        "TORCH_CUDA_ARCH_LIST": request.arch_list,
        "MAX_JOBS": str(request.jobs),
    }
    words = [word for item in arguments.items() for word in ("--build-arg", "=".join(item))]
    build = ("docker", "build", "--progress=plain", *words, "--tag", image, str(CONTAINER))

    def step(*words: str, may_fail: bool = False) -> Step:
        return Step(("docker", *words), tree, may_fail=may_fail)

    return (
        Phase(
            "compile in a container; this takes hours",
            # Clients before 23.0 use BuildKit only with this, and the Dockerfile needs its caches.
            (Step(build, tree, {"DOCKER_BUILDKIT": "1"}, counts=True),),
        ),
        Phase(
            "copy the libraries out of the image",
            (
                step("rm", "--force", name, may_fail=True),
                step("create", "--name", name, image, "none"),
                step("cp", f"{name}:/usr/local/libtorch", str(tree)),
                step("rm", name, may_fail=True),
                step("image", "rm", image, may_fail=True),
            ),
        ),
    )


def render(plan: BuildPlan) -> Group:
    """The plan as text for people; its commands can be pasted into a shell."""
    from rich.console import Group

    from fdl.base.tables import lines, pairs

    place = f"in a container, CUDA {CONTAINER_CUDA}" if plan.back_end == "docker" else "natively"
    archs = " ".join(map(str, plan.request.archs))
    rows = (
        ("variant", f"{plan.request.id} (libtorch {plan.request.torch} for {archs}, {place})"),
        ("target", str(plan.target)),
        ("log", str(plan.log)),
        ("jobs", str(plan.request.jobs)),
        ("needs", ", ".join(plan.needs)),
    )
    parts: list[RenderableType] = [pairs(rows, "bold")]
    for phase in plan.phases:
        commands = "\n".join(f"  {text}" for text in _commands(phase.steps))
        parts += ["", lines(phase.title, "bold"), lines(commands)]
    return Group(*parts)


def _commands(steps: Iterable[Step]) -> Iterator[str]:
    folder = None
    for step in steps:
        if step.cwd != folder:
            folder = step.cwd
            place = join([str(folder)])
            yield f"mkdir -p {place} && cd {place}"
        assignments = "".join(f"{name}={_value(name, step)} " for name in step.env)
        yield assignments + join(step.argv) + _condition(step)


def _condition(step: Step) -> str:
    conditions = []
    if step.if_there is not None:
        conditions.append(f"if there is a {step.if_there.name}")
    if step.if_missing is not None:
        conditions.append(f"if there is no {step.if_missing.name}")
    return f"    # {' and '.join(conditions)}" if conditions else ""


def _value(name: str, step: Step) -> str:
    if name == "PATH":
        return f'{quote(step.env[name].partition(os.pathsep)[0])}:"$PATH"'
    return quote(step.env[name])
