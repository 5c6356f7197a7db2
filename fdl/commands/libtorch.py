"""``fdl libtorch``: install, list, choose and use the variants of libtorch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl import output
from fdl.errors import FdlError, UsageError
from fdl.libtorch.store import Store, locate

if TYPE_CHECKING:
    from fdl.app import Call
    from fdl.hardware import Nvidia
    from fdl.libtorch.active import Variant
    from fdl.libtorch.request import Decision, Request

SCHEMA_VERSION = 1


def install(call: Call) -> int:
    """Install what was asked for, put it into use, print the lines a shell needs to use it.

    Raises:
        FdlError: It cannot be installed.
    """
    from fdl.libtorch.request import Request

    request = Request(call.args.variant or "auto", call.args.torch, call.args.source)
    return _install(call, request, activate=True, exports=True)


def download(call: Call) -> int:
    """Install what was asked for into the store, or into a folder with ``--path``.

    Raises:
        FdlError: It cannot be installed.
    """
    from fdl.libtorch.request import AUTO, Request, variant_of_cuda

    if call.args.cpu and call.args.cuda:
        raise UsageError("--cpu and --cuda contradict each other", hint="take one of them")
    variant = "cpu" if call.args.cpu else AUTO
    if call.args.cuda:
        variant = variant_of_cuda(call.args.cuda)
    request = Request(variant, call.args.torch, call.args.source)
    if call.args.path is not None:
        return _install_into(call, request, _absolute(call.args.path))
    store = _store(call)
    activate = not call.args.no_activate
    exports = activate and store.scope == "global"
    return _install(call, request, activate=activate, exports=exports)


def list_(call: Call) -> int:
    """Print the installed variants, sorted."""
    store = _store(call)
    active = store.active
    id = active.id if active else None
    found = store.installed()
    if call.args.json:
        entries = [{"variant": one.id, "active": one.id == id, **_described(one)} for one in found]
        _print_json(entries)
        return 0
    if not found:
        output.note(f"no libtorch is installed in {store.folder}")
    output.write(sys.stdout, _listed(store))
    return 0


def info(call: Call) -> int:
    """Describe the variant in use.

    Raises:
        LibtorchError: There is none.
    """
    variant = _store(call).required()
    described = _described(variant)
    if call.args.json:
        _print_json({"schema_version": SCHEMA_VERSION, "active": variant.id, **described})
        return 0
    labels = (("Version", "torch"), ("CUDA", "cuda"), ("Archs", "archs"), ("Source", "source"))
    rows = [("Active", variant.id)]
    rows += [(label, variant.facts[key]) for label, key in labels if variant.facts.get(key)]
    _print_rows([*rows, ("Path", variant.path)])
    return 0


def activate(call: Call) -> int:
    """Put an installed variant into use.

    Raises:
        LibtorchError: It is not installed.
    """
    store = _store(call)
    id = _id(call, store)
    if call.dry_run:
        output.write(sys.stdout, f"Would put {store.get(id).id} into use in {store.folder}\n")
        return 0
    store.activate(id)
    output.note(f"{id} is active in {store.folder}")
    return 0


def remove(call: Call) -> int:
    """Delete an installed variant.

    Raises:
        LibtorchError: It is not installed, or cannot be deleted.
    """
    store = _store(call)
    id = _id(call, store)
    if call.dry_run:
        output.write(sys.stdout, f"Would delete {store.get(id).path}\n")
        return 0
    was_active = store.active
    store.remove(id)
    output.note(f"removed {id}")
    if was_active is not None and was_active.id == id:
        output.note("no variant is active now; choose one: fdl libtorch activate ID")
    return 0


def env(call: Call) -> int:
    """Print what a shell, CMake, Cargo, direnv or a script needs to use a variant.

    Raises:
        LibtorchError: It is not installed, or none is in use.
    """
    from fdl.libtorch.usage import render

    output.write(sys.stdout, render(call.args.format, _chosen(call), os.environ))
    return 0


def exec_(call: Call) -> int:
    """Become one program, with the variables of the variant in use.

    Raises:
        LibtorchError: None is in use.
        FdlError: The program cannot be started; the exit code is that of a shell.
    """
    from fdl.dispatch.compose import join
    from fdl.libtorch.usage import exports, variables

    command: list[str] = call.args.command
    if not command:
        raise UsageError(
            "there is no program to run", hint="fdl libtorch exec -- ./build/train --epochs 3"
        )
    variant = _store(call).required()
    if call.dry_run:
        output.write(sys.stdout, f"{exports(variant.path, os.environ)}{join(command)}\n")
        return 0
    return _become(command, variables(variant.path).applied_to(os.environ))


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


def _install(call: Call, request: Request, *, activate: bool, exports: bool) -> int:
    from fdl.libtorch import usage
    from fdl.libtorch.install import install as install_variant

    store = _store(call)
    decision = _decide(request)
    # What a file or an index holds is not known before it has been read.
    target = store.folder / "precompiled" / (decision.source.wanted.variant or "VARIANT")
    if _announce(call, decision, target):
        return 0
    done = install_variant(store, decision.source, activate=activate)
    verb = "installed" if done.fresh else "is already installed"
    output.note(f"{done.variant.id} {verb}{', and active' if activate else ''}")
    _show_remedy(decision)
    if exports:
        output.write(sys.stdout, usage.exports(done.variant.path, os.environ))
    elif activate:
        output.note(
            "commands of this project find it by themselves; for other programs:\n"
            "  fdl libtorch exec -- PROGRAM\n"
            "  fdl libtorch env --format cmake|cargo|shell|direnv"
        )
    return 0


def _install_into(call: Call, request: Request, folder: Path) -> int:
    from fdl.libtorch import usage
    from fdl.libtorch.install import install_into, refuse_foreign
    from fdl.libtorch.trust import Trust

    refuse_foreign(folder)
    decision = _decide(request)
    if _announce(call, decision, folder):
        return 0
    done = install_into(folder, decision.source, trust=Trust(_store(call), records=False))
    output.note(f"{folder} {'holds' if done.fresh else 'holds already'} {done.variant.id}")
    _show_remedy(decision)
    output.write(sys.stdout, usage.exports(done.variant.path, os.environ))
    return 0


def _decide(request: Request) -> Decision:
    from fdl.libtorch.request import decide

    return decide(request, _nvidia, Path.cwd(), os.environ)


def _nvidia() -> Nvidia:
    from fdl.hardware import nvidia

    found = nvidia(os.environ)
    for trouble in found.troubles:
        output.warning(trouble.message, trouble.remedy)
    return found


def _announce(call: Call, decision: Decision, target: Path) -> bool:
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
    if call.dry_run:
        _print_rows(rows)
        _show_remedy(decision)
        return True
    for label, text in rows:
        output.note(f"{label:<8}{text}")
    return False


def _show_remedy(decision: Decision) -> None:
    if decision.remedy:
        output.hint(decision.remedy)


def _store(call: Call) -> Store:
    return locate(str(Path.cwd()), os.environ, use_global=vars(call.args)["global"])


def _id(call: Call, store: Store) -> str:
    """The variant that was typed.

    Raises:
        UsageError: None was; the message lists those that are installed.
    """
    if call.args.id is not None:
        return str(call.args.id)
    listed = _listed(store) or "  (nothing is installed)\n"
    raise UsageError(
        f"name a variant: fdl {' '.join(call.names)} ID\ninstalled in {store.folder}:\n"
        + "".join(f"  {line.strip()}\n" for line in listed.splitlines()).rstrip()
    )


def _chosen(call: Call) -> Variant:
    store = _store(call)
    return store.required() if call.args.id is None else store.get(call.args.id)


def _listed(store: Store) -> str:
    active = store.active
    id = active.id if active else None
    return "".join(f"{one.id}{' (active)' if one.id == id else ''}\n" for one in store.installed())


def _described(variant: Variant) -> dict[str, object]:
    facts = variant.facts
    return {
        "torch": facts.get("torch"),
        "cuda": variant.cuda,
        "archs": facts.get("archs"),
        "source": facts.get("source"),
        "path": variant.path,
    }


def _print_json(document: object) -> None:
    output.write(sys.stdout, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _print_rows(rows: list[tuple[str, str]]) -> None:
    palette = output.palette(sys.stdout)
    for label, text in rows:
        title = f"{label}:"
        output.write(sys.stdout, f"{palette.bold(f'{title:<9}')}{text}\n")


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()
