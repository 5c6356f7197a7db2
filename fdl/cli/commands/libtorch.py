"""``fdl libtorch``: install, list, choose and use the variants of libtorch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.shell_words import join
from fdl.cli.commands.libtorch_build import Global, Torch, build, check, gpus_here
from fdl.cli.commands.verb import Complete, DryRun, Group, Json, Verb, print_json
from fdl.libtorch.store import Store, locate

if TYPE_CHECKING:
    from rich.table import Table

    from fdl.libtorch.active import Variant
    from fdl.libtorch.request import Decision, Request

verbs = Group("libtorch", "Install, choose, use and check the C++ library of PyTorch.")

Source = Annotated[
    str | None,
    typer.Option(
        help="archive (the official one, default), wheel (pip's torch), or a local file or folder"
    ),
    Complete("libtorch-sources"),
]
From = Annotated[
    Path | None,
    typer.Option("--from", help="Install from this archive, wheel or folder, without a network"),
]
VariantId = Annotated[
    str | None,
    typer.Argument(help="Installed variant, such as precompiled/cu128"),
    Complete("variants"),
]


@verbs.command("install", cls=Verb)
def install(
    variant: Annotated[
        str,
        typer.Argument(help="auto (fits your GPUs), cpu, or a CUDA build such as cu128"),
        Complete("libtorch-names"),
    ] = "auto",
    torch: Torch = None,
    source: Source = None,
    given: From = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Install only what libtorch.lock names")
    ] = False,
    everywhere: Global = False,
    dry_run: DryRun = False,
) -> int:
    """Install the variant for this machine and activate it.

    It prints how a shell, CMake or Cargo uses it.

    Raises:
        FdlError: It cannot be installed.
    """
    from fdl.libtorch.request import Request
    from fdl.libtorch.trust import Trust

    store = _store(everywhere)
    names = [*Trust(store).read()] if locked else None
    request = Request(variant or "auto", torch, source, given, names)
    return _install(store, request, activate=True, exports=True, dry_run=dry_run)


@verbs.command("download", cls=Verb)
def download(
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Download the CPU variant, even if there are GPUs")
    ] = False,
    cuda: Annotated[
        str | None,
        typer.Option(help="Download the variant of this CUDA version: 12.6, 12.8, ..."),
        Complete("cuda-versions"),
    ] = None,
    torch: Torch = None,
    source: Source = None,
    given: From = None,
    path: Annotated[
        Path | None, typer.Option(help="Unpack into this folder, not into the store")
    ] = None,
    no_activate: Annotated[
        bool, typer.Option("--no-activate", help="Install only; do not activate it")
    ] = False,
    everywhere: Global = False,
    dry_run: DryRun = False,
) -> int:
    """Download the variant that --cpu or --cuda names, else the one for your GPUs.

    Raises:
        FdlError: It cannot be installed.
    """
    from fdl.libtorch.request import AUTO, Request, variant_of_cuda

    if cpu and cuda:
        raise UsageError("--cpu and --cuda contradict each other", hint="take one of them")
    variant = variant_of_cuda(cuda) if cuda else "cpu" if cpu else AUTO
    request = Request(variant, torch, source, given)
    store = _store(everywhere)
    if path is not None:
        return _install_into(store, request, path.expanduser().absolute(), dry_run=dry_run)
    activate = not no_activate
    exports = activate and store.scope == "global"
    return _install(store, request, activate=activate, exports=exports, dry_run=dry_run)


verbs.command("build", cls=Verb)(build)


@verbs.command("list", cls=Verb)
def list_(json: Json = False, everywhere: Global = False) -> int:
    """List the installed variants."""
    store = _store(everywhere)
    active = store.active
    id = active.id if active else None
    found = store.installed()
    if json:
        entries = [{"variant": one.id, "active": one.id == id, **_described(one)} for one in found]
        output.print_json(entries)
        return 0
    if not found:
        output.note(f"no libtorch is installed in {store.folder}; type: fdl libtorch install")
    else:
        output.show(_listed(found, id))
    return 0


@verbs.command("info", cls=Verb)
def info(json: Json = False, everywhere: Global = False) -> int:
    """Describe the active variant.

    Raises:
        LibtorchError: There is none.
    """
    store = _store(everywhere)
    variant = store.required()
    described = _described(variant)
    if json:
        return print_json({"active": variant.id, **described})
    labels = (("Version", "torch"), ("CUDA", "cuda"), ("Archs", "archs"), ("Source", "source"))
    rows = [("Active", variant.id)]
    rows += [(label, variant.facts[key]) for label, key in labels if variant.facts.get(key)]
    _print_rows([*rows, ("Path", variant.path)])
    return 0


@verbs.command("activate", cls=Verb)
def activate(id: VariantId = None, everywhere: Global = False, dry_run: DryRun = False) -> int:
    """Activate an installed variant.

    Raises:
        LibtorchError: It is not installed.
    """
    store = _store(everywhere)
    id = id or _missing_id("activate", store)
    if dry_run:
        output.write(sys.stdout, f"Would put {store.get(id).id} into use in {store.folder}\n")
        return 0
    store.activate(id)
    output.note(f"{id} is active in {store.folder}")
    return 0


@verbs.command("remove", cls=Verb)
def remove(id: VariantId = None, everywhere: Global = False, dry_run: DryRun = False) -> int:
    """Delete an installed variant.

    Raises:
        LibtorchError: It is not installed, or cannot be deleted.
    """
    store = _store(everywhere)
    id = id or _missing_id("remove", store)
    if dry_run:
        output.write(sys.stdout, f"Would delete {store.get(id).path}\n")
        return 0
    was_active = store.active
    store.remove(id)
    output.note(f"removed {id}")
    if was_active is not None and was_active.id == id:
        output.note("no variant is active now; choose one: fdl libtorch activate ID")
    return 0


@verbs.command("env", cls=Verb)
def env(
    id: VariantId = None,
    format: Annotated[
        Literal["shell", "cmake", "cargo", "json", "direnv"],
        typer.Option(help="What to print it for"),
    ] = "shell",
    everywhere: Global = False,
) -> int:
    """Print what a shell, CMake, Cargo or direnv needs to use a variant.

    Raises:
        LibtorchError: It is not installed, or none is in use.
    """
    from fdl.libtorch.usage import render

    store = _store(everywhere)
    variant = store.required() if id is None else store.get(id)
    output.write(sys.stdout, render(format, variant, os.environ))
    return 0


@verbs.command("exec", cls=Verb)
def exec_(
    command: Annotated[
        list[str] | None, typer.Argument(help="The program and its arguments, after `--`")
    ] = None,
    everywhere: Global = False,
    dry_run: DryRun = False,
) -> int:
    """Run one program with the variables of the active variant.

    Raises:
        LibtorchError: None is in use.
        FdlError: The program cannot be started; the exit code is that of a shell.
    """
    from fdl.libtorch.usage import render, variables

    if not command:
        raise UsageError(
            "no program is given", hint="fdl libtorch exec -- ./build/train --epochs 3"
        )
    variant = _store(everywhere).required()
    if dry_run:
        output.write(sys.stdout, f"{render('shell', variant, os.environ)}{join(command)}\n")
        return 0
    return _become(command, variables(variant.path).applied_to(os.environ))


verbs.command("check", cls=Verb)(check)


def _become(command: list[str], environ: dict[str, str]) -> int:
    import shutil

    program = shutil.which(command[0], path=environ.get("PATH", os.defpath))
    if program is None:
        there = Path(command[0]).exists() and Path(command[0]).name != command[0]
        raise FdlError(
            f"`{command[0]}` cannot be executed" if there else f"no such program: `{command[0]}`",
            hint=f"chmod +x {command[0]}" if there else "is it installed, and on PATH?",
            exit_code=126 if there else 127,
        )
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if sys.platform == "win32":
            import subprocess

            return subprocess.run([program, *command[1:]], env=environ, check=False).returncode
        os.execve(program, command, environ)  # noqa: S606
    except OSError as error:
        raise FdlError(
            f"cannot start `{command[0]}`: {error.strerror}",
            hint="a script needs a first line such as #!/bin/sh",
            exit_code=126,
        ) from None


def _install(
    store: Store, request: Request, *, activate: bool, exports: bool, dry_run: bool
) -> int:
    from fdl.libtorch import usage
    from fdl.libtorch.install import install as install_variant

    decision = _decide(request)
    # What a file or an index holds is not known before it has been read.
    target = store.folder / "precompiled" / (decision.source.wanted.variant or "VARIANT")
    if _announce(decision, target, dry_run=dry_run):
        return 0
    locked = request.locked is not None
    done = install_variant(store, decision.source, activate=activate, locked=locked)
    verb = "installed" if done.fresh else "is already installed"
    output.note(f"{done.variant.id} {verb}{', and active' if activate else ''}")
    _show_remedy(decision)
    if exports:
        output.write(sys.stdout, usage.render("shell", done.variant, os.environ))
    elif activate:
        output.note(
            "commands of this project find it by themselves; for other programs:\n"
            "  fdl libtorch exec -- PROGRAM\n"
            "  fdl libtorch env --format cmake|cargo|shell|direnv"
        )
    return 0


def _install_into(store: Store, request: Request, folder: Path, *, dry_run: bool) -> int:
    from fdl.libtorch import usage
    from fdl.libtorch.install import install_into, refuse_foreign
    from fdl.libtorch.trust import Trust

    refuse_foreign(folder)
    decision = _decide(request)
    if _announce(decision, folder, dry_run=dry_run):
        return 0
    done = install_into(folder, decision.source, trust=Trust(store, records=False))
    output.note(f"{folder} {'holds' if done.fresh else 'holds already'} {done.variant.id}")
    _show_remedy(decision)
    output.write(sys.stdout, usage.render("shell", done.variant, os.environ))
    return 0


def _decide(request: Request) -> Decision:
    from fdl.libtorch.request import decide

    return decide(request, gpus_here, Path.cwd(), os.environ)


def _announce(decision: Decision, target: Path, *, dry_run: bool) -> bool:
    """Say what is about to happen; True when that is all that was asked for."""
    source = decision.source
    rows = []
    if source.wanted.torch:
        rows.append(
            ("Version", " ".join(filter(None, (source.wanted.torch, source.wanted.variant))))
        )
    rows += [("URL" if "://" in source.shown else "Source", source.shown), ("Path", str(target))]
    for note in decision.notes:
        output.note(note)
    if dry_run:
        _print_rows(rows)
        _show_remedy(decision)
        return True
    for label, text in rows:
        output.note(f"{label:<8}{text}")
    return False


def _show_remedy(decision: Decision) -> None:
    if decision.remedy:
        output.hint(decision.remedy)


def _store(everywhere: bool) -> Store:
    return locate(str(Path.cwd()), os.environ, use_global=everywhere)


def _missing_id(name: str, store: Store) -> NoReturn:
    """Say that a variant must be named, and list those that are installed."""
    found = ", ".join(one.id for one in store.installed())
    raise UsageError(
        f"no variant is named; installed in {store.folder}: {found or 'none'}",
        hint=f"fdl libtorch {name} ID" if found else "fdl libtorch install",
    )


def _listed(found: list[Variant], active: str | None) -> Table:
    from fdl.base.tables import table

    rows = [
        (
            f"{one.id} (active)" if one.id == active else one.id,
            one.facts.get("torch", ""),
            one.cuda or "",
            one.facts.get("archs", ""),
        )
        for one in found
    ]
    return table(rows, ("VARIANT", "TORCH", "CUDA", "GPU CODE"), styles=("cyan",))


def _described(variant: Variant) -> dict[str, object]:
    facts = variant.facts
    return {
        "torch": facts.get("torch"),
        "cuda": variant.cuda,
        "archs": facts.get("archs"),
        "source": facts.get("source"),
        "path": variant.path,
    }


def _print_rows(rows: list[tuple[str, str]]) -> None:
    output.write(sys.stdout, "".join(f"{label + ':':<9}{text}\n" for label, text in rows))
