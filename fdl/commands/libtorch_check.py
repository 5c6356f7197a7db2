"""``fdl libtorch check``: read from the installed libraries what they run on."""

from __future__ import annotations

import os
import sys

from fdl import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from fdl.app import Call
    from fdl.hardware import Gpu, Nvidia


def check(call: Call) -> int:
    """Print what a variant or a folder runs on.

    Returns:
        0 when every card is served and nothing is missing, else 1.

    Raises:
        FdlError: There is no such variant or folder, or it has no libraries.
    """
    from fdl.libtorch.prove import facts_of
    from fdl.libtorch.prove.render import document, text
    from fdl.libtorch.prove.report import examine

    gpus, nvidia = _cards(call.args.archs)
    folder, variant = _target(call)
    report = examine(facts_of(folder), gpus, nvidia, os.environ, variant)
    if call.args.json:
        import json

        shown = json.dumps(document(report), indent=2, ensure_ascii=False) + "\n"
    else:
        shown = text(report, output.palette(sys.stdout))
    output.write(sys.stdout, shown)
    return 0 if report.ok else 1


def _target(call: Call) -> tuple[Path, str]:
    """The folder to read, and the id of the variant where it is one."""
    from pathlib import Path

    from fdl.libtorch.active import is_id
    from fdl.libtorch.store import locate

    wanted = call.args.target
    store = locate(str(Path.cwd()), os.environ, use_global=vars(call.args)["global"])
    if wanted is None:
        variant = store.required()
        return Path(variant.path), variant.id
    if is_id(wanted) and (store.is_installed(wanted) or not Path(wanted).exists()):
        return Path(store.get(wanted).path), wanted
    return Path(wanted).absolute(), ""


def _cards(archs: str | None) -> tuple[tuple[Gpu, ...], Nvidia | None]:
    """The cards to judge for: those that were named, else this machine's with their driver."""
    from fdl.hardware import nvidia
    from fdl.libtorch.prove.verdict import cards_of

    if archs is not None:
        return cards_of(archs), None
    found = nvidia(os.environ)
    for trouble in found.troubles:
        output.warning(trouble.message, trouble.remedy)
    hidden = len(found.gpus) - len(found.visible)
    if hidden and found.visible and found.restriction is not None:
        output.note(
            f"CUDA_VISIBLE_DEVICES={found.restriction} keeps {hidden} of {len(found.gpus)} cards "
            "out of this check"
        )
    return found.visible or found.gpus, found
