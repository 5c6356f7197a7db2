"""``fdl libtorch check``: read from the installed libraries what they run on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fdl.base import output
from fdl.cli.commands.libtorch_build import Global
from fdl.cli.commands.verb import Complete, Json
from fdl.libtorch.active import is_id
from fdl.libtorch.store import locate

if TYPE_CHECKING:
    from fdl.base.hardware import Gpu, Nvidia


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
