"""``fdl config``: what the manifest says and where each value was written."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fdl import output
from fdl.commands import BUILTINS, HIDDEN
from fdl.errors import ManifestError
from fdl.manifest import find, load, settle
from fdl.manifest.show import records
from fdl.manifest.show import show as shown

if TYPE_CHECKING:
    from fdl.manifest import Manifest

app = typer.Typer()


@app.callback()
def config() -> None:
    """Show the manifest's values and where each was written."""


@app.command()
def show(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON list of values with their origins.")
    ] = False,
) -> None:
    """Print the manifest as YAML with the file and line of every value.

    Raises:
        ManifestError: There is no manifest, or it is broken.
    """
    start = os.getcwd()  # noqa: PTH109 -- the manifest's paths are strings
    found = find(start)
    if found is None:
        raise ManifestError(
            f"no fdl.yml found in {start} or any directory above it",
            hint="create one here, or type `fdl init NAME` for a new project",
        )
    manifest = load(settle(found, executes=False), write_cache=False)
    for warning in (*manifest.warnings, *_unreachable(manifest)):
        output.warning(warning)
    if as_json:
        leaves = records(manifest.node, manifest.directory)
        text = json.dumps(leaves, indent=2, ensure_ascii=False) + "\n"
    else:
        text = shown(manifest.node, manifest.directory)
    output.write(sys.stdout, text)


def _unreachable(manifest: Manifest) -> list[str]:
    """Commands that a built-in of the same name hides."""
    commands = manifest.node.get("commands")
    names = commands.mapping if commands else {}
    return [
        f"command `{name}` cannot be reached: fdl has a built-in of that name; rename it"
        for name in names
        if name in BUILTINS or name in HIDDEN
    ]
