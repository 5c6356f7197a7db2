"""``fdl config``: what the manifest says and where each value was written, and changing one."""

from __future__ import annotations

import sys

from fdl import output
from fdl.commands import RESERVED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.app import Call
    from fdl.manifest import Manifest


def show(call: Call) -> int:
    """Print the merged manifest, or what one command runs with.

    Raises:
        FdlError: There is no manifest, it is broken, or the command does not exist.
    """
    project = call.project(call.args.env)
    if call.args.command is not None:
        return _show_command(call)
    from fdl.inspect.document import listing, records
    from fdl.inspect.manifest import Report

    manifest = project.root
    report = Report(manifest)
    _warn([*manifest.warnings, *_unreachable(manifest)])
    if call.args.json:
        _print_json(records(report.fields))
    else:
        output.write(sys.stdout, listing(report.tree, report.fields, manifest.directory))
    return 0


def _show_command(call: Call) -> int:
    from fdl.inspect.command import look_at
    from fdl.inspect.document import records

    command = look_at(call, call.args.command, call.args.env)
    _warn(command.warnings)
    if call.args.json:
        _print_json({**command.as_dict(), "fields": records(command.fields)})
    else:
        output.write(sys.stdout, command.listing())
    return 0


def set_(call: Call) -> int:
    """Change one value of the manifest where it takes effect.

    Raises:
        FdlError: The change would not take effect, would break the manifest, or cannot be made
            without touching anything else; nothing is written then.
    """
    from fdl.inspect.edit import prepare

    change = prepare(call, call.args.path, call.args.value, call.args.where)
    if call.dry_run:
        output.write(sys.stdout, change.diff())
    else:
        change.write()
        output.write(sys.stdout, change.report())
    return 0


def _warn(texts: list[str]) -> None:
    for text in texts:
        output.warning(text)


def _print_json(document: object) -> None:
    import json

    output.write(sys.stdout, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def _unreachable(manifest: Manifest) -> list[str]:
    """Commands that a built-in of the same name hides."""
    commands = manifest.node.get("commands")
    names = commands.mapping if commands else {}
    return [
        f"command `{name}` cannot be reached: fdl has a built-in of that name; rename it"
        for name in names
        if name in RESERVED
    ]
