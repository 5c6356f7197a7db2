"""Options of a manifest that are passed as a guess, because the source of the program is unclear.

Imported for programs whose source was read.
"""

from __future__ import annotations

from fdl.manifest.node import Null
from fdl.plan.generate import settings
from fdl.plan.planner import UNCHECKED
from fdl.plan.spelling import AS_WRITTEN, Key, Spelling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.programs.parameters.contract import Schema
    from fdl.programs.parameters.parameter import Parameter

_MOST_NAMES = 3


def note(schema: Schema, level: Level, preset: str | None) -> str:
    """What to say about the options of a manifest that are not checked; empty if all are."""
    spelling = Spelling(schema, level.style)
    if spelling.bare:
        # The grammar of such a program says itself how a value is written.
        return ""
    spec = level.commands[preset] if preset else None
    options = settings(level.manifest.node, spec)["options"]
    names = [key for key, node in options.items() if _is_guess(key, node, spelling)]
    if not names:
        return ""
    shown = [f"`{name}`" for name in names[:_MOST_NAMES]]
    if len(names) > _MOST_NAMES:
        shown.append(f"{len(names) - _MOST_NAMES} more")
    listed = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    one = spelling.declared(names[0])
    return (
        f"not checked: {listed}: the source of the program does not say how it reads the "
        f"value; the key `{spelling.flag(names[0], one)}` {UNCHECKED}"
    )


def _is_guess(key: str, node: Node, spelling: Spelling) -> bool:
    """Whether the words of a value are a guess."""
    if key.startswith(AS_WRITTEN):
        return False
    one = spelling.declared(key)
    if one is None:
        return not (isinstance(key, Key) and spelling.mapping(key))
    return "type" in one.computed and not one.literal and _has_several_spellings(node.value, one)


def _has_several_spellings(value: object, one: Parameter) -> bool:
    if isinstance(value, bool):
        is_bare = value and one.nargs == "?" and "true" not in one.words
        return not (is_bare or "false" in one.words)
    if isinstance(value, list):
        return one.shape != "list" and one.kind == "option"
    return isinstance(value, Null) and "null" not in one.words
