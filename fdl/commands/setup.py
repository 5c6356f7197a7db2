"""``fdl setup``: prepare this machine or project."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl import output
from fdl.libtorch.store import locate
from fdl.self_install import look, path_hint, write
from fdl.setup import report
from fdl.setup.execute import execute
from fdl.setup.facts import gather
from fdl.setup.plan import plan
from fdl.setup.questions import Questions

if TYPE_CHECKING:
    from fdl.app import Call


def setup(call: Call) -> int:
    """Report on the machine, then install libtorch and make what the project runs in.

    Raises:
        FdlError: There is nothing to run a project in, or a step has failed.
    """
    palette = output.palette(sys.stdout)
    questions = Questions(on=not (call.args.non_interactive or call.yes or call.dry_run))
    store = locate(str(Path.cwd()), os.environ)
    facts = gather(store, os.environ)
    output.write(sys.stdout, report.machine(facts, palette) + "\n")
    for problem, remedy in report.troubles(facts):
        output.warning(problem, remedy)
    found = plan(facts, questions, os.environ, force=call.args.force)
    for note in found.notes:
        output.note(note)
    if found.hint:
        output.hint(found.hint)
    title = "Would do:" if call.dry_run else "Steps:"
    output.write(sys.stdout, report.steps(found, title, palette) + "\n")
    if call.dry_run:
        return 0
    sys.stdout.flush()
    failed = execute(found, store, facts.nvidia, os.environ)
    if failed:
        output.warning(f"{failed} of {len(found.steps)} steps failed; the warnings above say why")
    output.write(sys.stdout, report.following(found, palette))
    _offer_install(questions)
    return 0


def _offer_install(questions: Questions) -> None:
    """Where a person answers and no fdl is in the way, offer to put this one on the PATH."""
    if not questions.on:
        return
    place = look()
    if place.kind != "free":
        return
    if questions.confirm(f"Put fdl on your PATH, as {place.shown}?", default=False):
        write(place)
        output.write(sys.stdout, f"Wrote {place.shown}.\n")
        hint = path_hint(place, os.environ)
        if hint:
            output.write(sys.stdout, f"{hint}\n")
