"""``fdl libtorch build`` and ``check``: libtorch from source, and what installed ones run on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.base.errors import BuildError, UsageError
from fdl.base.terminal import ask
from fdl.cli.commands.verb import Complete, DryRun, Json
from fdl.libtorch.active import is_id
from fdl.libtorch.store import locate

if TYPE_CHECKING:
    from fdl.base.hardware import Gpu, Nvidia
    from fdl.libtorch.build.plan import BackEnd, BuildPlan, Request, Tools
    from fdl.libtorch.catalog import Architecture
    from fdl.libtorch.store import Store

Torch = Annotated[
    str | None,
    typer.Option(help="PyTorch version (default: 2.10.0)"),
    Complete("torch-versions"),
]
Global = Annotated[
    bool, typer.Option("--global", help="Use the store of this user, not the project's")
]


def build(
    archs: Annotated[
        str | None,
        typer.Option(help='GPU architectures, such as "6.1;12.0" (default: your GPUs\')'),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of files to compile at the same time")] = 6,
    docker: Annotated[bool, typer.Option("--docker", help="Build in a container")] = False,
    native: Annotated[
        bool, typer.Option("--native", help="Build with the tools of this machine")
    ] = False,
    torch: Torch = None,
    repository: Annotated[
        str | None, typer.Option(help="Git repository of the sources (default: PyTorch's own)")
    ] = None,
    everywhere: Global = False,
    dry_run: DryRun = False,
) -> int:
    """Build libtorch from source for exactly your GPU architectures.

    A build takes hours. After an interruption, the same command continues it.

    Raises:
        FdlError: The arguments make no sense, no back end can be used, or the build failed.
    """
    from fdl.libtorch import usage
    from fdl.libtorch.build.execute import installed
    from fdl.libtorch.build.plan import find_tools, plan, render

    wanted = _wanted(docker=docker, native=native)
    request = _request(archs, torch, jobs, repository)
    store = locate(str(Path.cwd()), os.environ, use_global=everywhere)
    found = find_tools(os.environ)
    if dry_run:
        planned = plan(request, _likely(wanted, found), store, found)
        output.show(render(planned))
        return 0
    built = installed(request, store) is not None
    if not built:
        _build(plan(request, _back_end(wanted, found), store, found), store, found)
    variant = store.activate(request.id)
    again = f" already (to build it again: fdl libtorch remove {variant.id})" if built else ""
    output.note(f"{variant.id} is built{again}, and active")
    if store.scope == "global":
        output.write(sys.stdout, usage.render("shell", variant, os.environ))
    else:
        output.note("what it runs on: fdl libtorch check; how to use it: fdl libtorch env")
    return 0


def _wanted(*, docker: bool, native: bool) -> BackEnd | None:
    if docker and native:
        raise UsageError(
            "--docker and --native exclude each other",
            hint="leave out one of them, or both: fdl takes what is there",
        )
    if docker:
        return "docker"
    return "native" if native else None


def _request(archs: str | None, torch: str | None, jobs: int, repository: str | None) -> Request:
    from fdl.libtorch.build.plan import REPOSITORY, Request
    from fdl.libtorch.catalog import default_version, parse

    return Request(
        archs=parse(archs) if archs is not None else _archs_of_gpus(),
        torch=torch or default_version(),
        jobs=jobs,
        repository=_address(repository or REPOSITORY),
    )


def _address(repository: str) -> str:
    """A folder's absolute path, since git will not run where it was typed; else the address."""
    folder = Path(repository)
    return str(folder.absolute()) if folder.is_dir() else repository


def _archs_of_gpus() -> tuple[Architecture, ...]:
    """The architectures of the GPUs that programs may use, or of all when none is visible."""
    from fdl.base.hardware import nvidia
    from fdl.libtorch.catalog import Architecture

    found = nvidia(os.environ)
    archs = {Architecture(*gpu.capability) for gpu in found.counted}
    if not archs:
        because = f" ({found.problem})" if found.problem else ""
        raise BuildError(
            f"no NVIDIA GPU is found here to take the architectures from{because}",
            hint='name them: fdl libtorch build --archs "6.1;12.0"',
        )
    return tuple(sorted(archs))


def _back_end(wanted: BackEnd | None, found: Tools) -> BackEnd:
    from fdl.libtorch.build.plan import choose, docker_problem, require_linux

    require_linux(sys.platform)
    return choose(wanted, found, lambda: docker_problem(os.environ), _ask)


def _likely(wanted: BackEnd | None, found: Tools) -> BackEnd:
    """What a dry run shows: nobody is asked, and nothing has to be there."""
    from fdl.libtorch.build.plan import docker_problem

    if wanted is not None:
        return wanted
    return "docker" if found.missing or not docker_problem(os.environ) else "native"


def _ask() -> BackEnd:
    answer = ask("Build in Docker, or natively with the tools of this machine? [D/n] ") or ""
    return "native" if answer.lower() in ("n", "native", "natively") else "docker"


def _build(planned: BuildPlan, store: Store, found: Tools) -> None:
    from fdl.libtorch.build.execute import execute, remarks
    from fdl.libtorch.build.plan import nvcc_version

    for remark in remarks(planned, store):
        output.warning(remark)
    if planned.back_end == "native":
        execute(planned, store, nvcc_version(found, planned.request.archs))
    else:
        execute(planned, store)


def check(
    target: Annotated[
        str | None,
        typer.Argument(
            help="Installed variant, or a folder with lib/ (default: the active variant)"
        ),
        Complete("variants"),
    ] = None,
    archs: Annotated[
        str | None,
        typer.Option(help='GPU architectures to check, such as "6.1;12.0" (default: your GPUs\')'),
    ] = None,
    json: Json = False,
    everywhere: Global = False,
) -> int:
    """Check which GPUs and systems the installed libraries run on.

    Returns:
        0 when every GPU is served and nothing is missing, else 1.

    Raises:
        FdlError: There is no such variant or folder, or it has no libraries.
    """
    from fdl.libtorch.prove import facts_of
    from fdl.libtorch.prove.report import document, examine, text

    gpus, nvidia = _gpus(archs)
    folder, variant = _target(target, everywhere=everywhere)
    report = examine(facts_of(folder), gpus, nvidia, os.environ, variant)
    if json:
        output.print_json(document(report))
    else:
        output.show(text(report))
    return 0 if report.ok else 1


def _target(wanted: str | None, *, everywhere: bool) -> tuple[Path, str]:
    """The folder to read, and the id of the variant where it is one."""
    store = locate(str(Path.cwd()), os.environ, use_global=everywhere)
    if wanted is None:
        variant = store.required()
        return Path(variant.path), variant.id
    if is_id(wanted) and (store.is_installed(wanted) or not Path(wanted).exists()):
        return Path(store.get(wanted).path), wanted
    return Path(wanted).absolute(), ""


def gpus_here() -> Nvidia:
    """The GPUs of this machine; what is wrong with them is a warning."""
    from fdl.base.hardware import nvidia

    found = nvidia(os.environ)
    for trouble in found.troubles:
        output.warning(trouble.message, trouble.remedy)
    return found


def _gpus(archs: str | None) -> tuple[tuple[Gpu, ...], Nvidia | None]:
    """The GPUs to judge for: those that were named, else this machine's with their driver."""
    from fdl.libtorch.prove.facts import cards_of

    if archs is not None:
        return cards_of(archs), None
    found = gpus_here()
    hidden = len(found.gpus) - len(found.visible)
    if hidden and found.visible and found.restriction is not None:
        output.note(
            f"CUDA_VISIBLE_DEVICES={found.restriction} keeps {hidden} of {len(found.gpus)} GPUs "
            "out of this check"
        )
    return found.counted, found
