"""Settings without a value: a slip, unless the program has a flag of that name.

Imported on the warm path of entries.
"""

from __future__ import annotations

from fdl.base.errors import ManifestError
from fdl.manifest.node import dotted, relative
from fdl.plan.spelling import written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.plan.spelling import Spelling


def refuse_empty(level: Level, preset: str | None, spelling: Spelling | None = None) -> None:
    """Refuse settings without a value, in the manifest and in the preset that runs.

    Args:
        level: The level.
        preset: Name of the preset, or None.
        spelling: The spelling of a program whose arguments are known, or None.

    Raises:
        ManifestError: The message has the place of the key, and the hint the nearest one.
    """
    holders: list[tuple[tuple[str, ...], Node]] = [((), level.manifest.node)]
    if preset is not None:
        holders.append((("commands", preset), level.commands[preset]))
    for path, holder in holders:
        for section in ("training", "options"):
            found = holder.get(section)
            for key, node in written(found.mapping.items() if found else ()):
                if node.empty and not _is_flag(key, spelling):
                    raise _refusal((*path, section, *key.split(".")), node, level.root, spelling)


def _is_flag(key: str, spelling: Spelling | None) -> bool:
    one = spelling.declared(key) if spelling else None
    return one is not None and one.shape == "flag"


def _refusal(
    path: Sequence[str], node: Node, root: str, spelling: Spelling | None
) -> ManifestError:
    from fdl.manifest.slips import empty

    schema = spelling.schema if spelling else None
    names = [word.lstrip("-").replace("-", "_") for word in schema.spellings] if schema else []
    return ManifestError(
        f"{relative(node.file, root)}:{node.key_line}:{node.key_column}: "
        f"`{dotted(tuple(path))}` has no value",
        hint=empty(path[-1], names),
    )
