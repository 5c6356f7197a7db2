"""``fdl install``: put fdl on the PATH of this user."""

from __future__ import annotations

import os
import sys

from fdl.base import output
from fdl.cli.commands.verb import DryRun, Group, Verb
from fdl.machine.self_install import link, look, path_hint
from fdl.machine.update import upgrade_command

verbs = Group()


@verbs.command("install", cls=Verb)
def install(dry_run: DryRun = False) -> int:
    """Put fdl on your PATH, and print the command that upgrades it.

    Raises:
        FdlError: What stands there is not ours, or cannot be replaced.
    """
    place = look()
    if place.kind == "this":
        line = f"{place.shown} starts this fdl already."
    else:
        link(place, dry_run=dry_run)
        line = f"{'Would link' if dry_run else 'Linked'} {place.shown} to {place.script}."
    lines = [line, path_hint(place, os.environ), f"To upgrade: {upgrade_command()}"]
    output.write(sys.stdout, "".join(f"{one}\n" for one in lines if one))
    return 0
