"""``fdl adopt SCRIPT``: a manifest beside a script that exists."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fdl.base import output
from fdl.cli.commands.add import print_next
from fdl.cli.commands.verb import DryRun, Group, Verb
from fdl.manifest.source import shown
from fdl.scaffold.adopt import adopted

verbs = Group()


@verbs.command("adopt", cls=Verb)
def adopt(
    script: Annotated[Path, typer.Argument(help="The program, such as train.py")],
    dry_run: DryRun = False,
) -> int:
    """Write fdl.yml beside an existing script. The script does not change and does not run.

    fdl reads the options from the source. The manifest lists them, has a first preset, and suggests
    patterns for metrics. An existing manifest is never changed.

    Raises:
        ScaffoldError: There is no such script, or its folder has a manifest.
    """
    made = adopted(script)
    if dry_run:
        output.write(sys.stdout, made.text)
        return 0
    made.write()
    options = output.counted(made.options, "option")
    sys.stdout.write(f"Created {shown(str(made.file))} for {script} ({options} read from it)\n")
    if not output.is_quiet():
        folder = "" if made.file.parent == Path.cwd() else shown(str(made.file.parent))
        steps = (
            (f"fdl {made.command} --help", "show its options and presets"),
            (f"fdl -n {made.command} {made.preset}", "show what would run"),
            (f"fdl {made.command} {made.preset}", "run it"),
        )
        print_next(folder, steps)
    return 0
