"""The commands of a level, as completion offers them."""

from __future__ import annotations

from fdl.base.errors import FdlError
from fdl.manifest.builtins import RESERVED
from fdl.manifest.discover import find_in
from fdl.manifest.load import known
from fdl.manifest.select.level import PATH, PRESET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.manifest.select.level import Level
    from fdl.manifest.select.project import Project


def listed(
    level: Level, project: Project, *, describe: bool = True
) -> Iterator[tuple[str, str, str]]:
    """Name, kind and description of the commands of a level, in file order.

    Broken and unreachable ones are left out. A path command without a description has that of the
    manifest it leads to.
    """
    for name, spec in level.commands.items():
        if name.startswith("-") or (not level.names and name in RESERVED):
            continue
        try:
            kind = level.kind(name)
            folder = level.child_directory(name)
        except FdlError:
            continue
        if kind == PRESET and not level.entry:
            continue
        text = (spec.text("description") or "") if describe else ""
        if kind == PATH:
            below = _below(folder, project, describe=describe and not text)
            if below is None:
                continue
            text = text or below
        yield name, kind, text


def _below(directory: str, project: Project, *, describe: bool) -> str | None:
    """What the manifest of a folder says about itself; None when there is no manifest.

    Only what is known without parsing YAML: every folder that has not been used yet would make
    the whole list wait.
    """
    found = find_in(directory)
    if found is None:
        return None
    manifest = known(found, project.env) if describe else None
    return (manifest.node.text("description") or "") if manifest else ""
