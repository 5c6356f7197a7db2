"""Plan a build as a value: its variant, the folders it uses and every command.

The commands are those a user would type. Each can be repeated: after an interruption the same plan
is executed again, and git, pip, ninja and Docker continue with what exists already.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fdl.base.errors import BuildError, UsageError
from fdl.base.files import text_of
from fdl.base.hardware import machine
from fdl.base.shell_words import join, quote
from fdl.libtorch.catalog import Architecture, parse
from fdl.libtorch.store import Store

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

NEEDS = {
    "nvcc": ("nvcc",),
    "cmake": ("cmake",),
    "python3": ("python3",),
    "git": ("git",),
    "gcc or cc": ("gcc", "cc"),
}
"""The tools of a native build, and the programs that provide each. Ninja is not listed: if the
machine has none, it comes with the Python packages."""

_PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that a native build finds.

    Attributes:
        path: ``PATH``, followed by the CUDA toolkit of ``CUDA_HOME`` or ``CUDA_PATH``.
        missing: The missing tools.
        has_ninja: Whether ninja is available.
    """

    path: str
    missing: tuple[str, ...]
    has_ninja: bool


def find_tools(environ: Mapping[str, str]) -> Tools:
    """Look for the tools of a native build."""
    homes = [environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    toolkits = (os.path.join(home, "bin") for home in homes)  # noqa: PTH118
    path = os.pathsep.join(filter(None, (environ.get("PATH", ""), *toolkits)))
    missing = [
        tool
        for tool, names in NEEDS.items()
        if not any(shutil.which(name, path=path) for name in names)
    ]
    return Tools(path, tuple(missing), has_ninja=shutil.which("ninja", path=path) is not None)


def nvcc_version(found: Tools, archs: Sequence[Architecture]) -> str:
    """The CUDA version of the native compiler, after a check that it supports the architectures.

    Raises:
        BuildError: It does not support them, or does not work. A build would fail only after hours.
    """
    release = re.search(r"release (\d+\.\d+)", _ask_nvcc(found, "--version"))
    if release is None:
        raise BuildError(
            "`nvcc --version` names no CUDA release", hint="reinstall the CUDA toolkit"
        )
    listed = re.findall(r"compute_(\d+)(\d[af]?)\b", _ask_nvcc(found, "--list-gpu-arch"))
    known = {f"{major}.{minor}" for major, minor in listed}
    unknown = [str(one) for one in archs if str(one).removesuffix("+PTX").rstrip("af") not in known]
    if known and unknown:
        spelled = " ".join(map(str, parse(" ".join(known))))
        raise BuildError(
            f"nvcc of CUDA {release[1]} ({shutil.which('nvcc', path=found.path)}) cannot compile "
            f"for {', '.join(unknown)}; it knows {spelled}",
            hint="build in a container: fdl libtorch build --docker; or put another CUDA toolkit "
            "first on PATH",
        )
    return release[1]


def _ask_nvcc(found: Tools, question: str) -> str:
    environ = {**os.environ, "PATH": found.path}
    answer = machine.ask(["nvcc", question], environ, patience=_PATIENCE_S)
    if answer is None or answer.code != 0:
        ended = f"exit code {answer.code}" if answer and answer.code is not None else "no answer"
        raise BuildError(f"`nvcc {question}`: {ended}", hint="reinstall the CUDA toolkit")
    return answer.text


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
        return self.mark is not None and text_of(self.mark) == self.settings


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
    phases: tuple[Phase, ...]


def plan(request: Request, back_end: BackEnd, store: Store, tools: Tools) -> BuildPlan:
    """Plan the build of a request; sources and trees are kept in the cache of the store.

    ``tools`` are those that a native build finds on this machine.
    """
    name = request.name
    sources, tree = store.kept("pytorch"), store.kept(f"build-{name}")
    if back_end == "docker":
        phases, result = _docker(request, tree), tree / "libtorch"
    else:
        environment = store.kept("build-python")
        phases, result = _native(request, sources, tree, environment, tools), sources / "torch"
    return BuildPlan(
        request=request,
        back_end=back_end,
        target=store.path(request.id),
        sources=sources,
        tree=tree,
        result=result,
        log=store.kept(f"build-{name}.log"),
        phases=phases,
    )


def _native(
    request: Request, sources: Path, tree: Path, environment: Path, tools: Tools
) -> tuple[Phase, ...]:
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
        ("needs", "docker" if plan.back_end == "docker" else ", ".join(NEEDS)),
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


_DOCKER_PATIENCE_S = 15

_INSTALL = (
    "install Docker, or the missing tools; the CUDA toolkit brings nvcc, the packages of your "
    "system the others (`build-essential cmake git python3` on Debian and Ubuntu)"
)


def docker_problem(environ: Mapping[str, str]) -> str:
    """Why Docker cannot build an image here; empty if it can."""
    program = shutil.which("docker", path=environ.get("PATH", ""))
    if program is None:
        return "there is no docker"
    argv = [program, "version", "--format", "{{.Server.Version}}"]
    try:
        answer = subprocess.run(
            argv,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DOCKER_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not answer within {_DOCKER_PATIENCE_S} s"
    except OSError as problem:
        return f"{program}: {problem.strerror}"
    if answer.returncode == 0:
        return ""
    words = answer.stderr.strip().splitlines()
    return words[-1] if words else f"`docker version` failed with exit code {answer.returncode}"


def require_linux(platform: str) -> None:
    """Check that the platform is Linux: macOS has no CUDA, and the container is a Linux one.

    Raises:
        BuildError: The system is not Linux.
    """
    if platform != "linux":
        raise BuildError(
            f"libtorch for GPUs is built on Linux, and this is {platform}",
            hint="on Windows, build inside WSL2; or install what there is: fdl libtorch install",
        )


def choose(
    wanted: BackEnd | None,
    found: Tools,
    problem: Callable[[], str],
    ask: Callable[[], BackEnd],
) -> BackEnd:
    """Choose the back end: the wanted one, else one that can be used.

    ``problem`` returns the result of :func:`docker_problem`. It is called if the choice depends on
    it, and ``ask`` if both back ends can be used.

    Raises:
        BuildError: The requested back end cannot be used, or none can.
    """
    if wanted == "native":
        if found.missing:
            raise BuildError(f"a native build lacks {', '.join(found.missing)}", hint=_INSTALL)
        return "native"
    trouble = problem()
    if not trouble:
        return "docker" if wanted or found.missing else ask()
    if wanted or found.missing:
        lacks = "" if wanted else f", and a native build lacks {', '.join(found.missing)}"
        raise BuildError(
            f"Docker cannot be used: {trouble}{lacks}",
            hint="start or install Docker, or build without it: fdl libtorch build --native"
            if wanted
            else _INSTALL,
        )
    return "native"
