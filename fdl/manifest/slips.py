"""Slips of the pen in a manifest: commands only an overlay has, keys without a value."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fdl.manifest.node import Node


# An entry with one of these is a command of its own, added on purpose.
_COMPLETE = ("description", "run", "path", "entry")


def slips(root: Node, overlays: Collection[str]) -> list[str]:
    """Warnings about commands that only an overlay has, and whose name is close to another one.

    Args:
        root: The merged manifest.
        overlays: The files that were laid over it.
    """
    commands = root.get("commands")
    if commands is None or not overlays:
        return []
    added = {
        name: spec
        for name, spec in commands.mapping.items()
        if spec.file in overlays and not any(spec.get(key) for key in _COMPLETE)
    }
    return _warnings(added, [name for name in commands.mapping if name not in added])


def _warnings(added: dict[str, Node], others: Collection[str]) -> list[str]:
    if not added or not others:
        return []
    from fdl.base.suggest import nearest
    from fdl.manifest.source import shown

    found = []
    for name, spec in added.items():
        # Commands such as gpu1 and gpu2 are not slips of each other.
        words = [other for other in others if _letters(other) != _letters(name)]
        if close := nearest(name, words, 2 if len(name) > 4 else 1):
            found.append(
                f"{shown(spec.file)}:{spec.key_line}:{spec.key_column}: the command `{name}` is "
                f"new and has no description; did you mean `{close}`?"
            )
    return found


def _letters(name: str) -> str:
    return "".join(letter for letter in name if not letter.isdigit())


def empty(key: str, known: Sequence[str] = ()) -> str:
    """What to do about a key without a value.

    Args:
        key: The key.
        known: The keys that there are.
    """
    from fdl.base.suggest import nearest

    for mark, end in ((":", ", with a space after the colon"), ("=", "")):
        name, _, value = key.partition(mark)
        if name and value:
            return f"write `{name}: {value}`{end}"
    close = nearest(key, [name for name in known if name != key])
    meant = f"did you mean `{close}`? " if close else ""
    return f"{meant}write a value; `null` removes an inherited one"
