"""``guards:`` of a training, handed down to the program in a variable."""

from __future__ import annotations

from fdl.manifest.node import Variable, origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.plan.value import Plan

KEY = "guards"
VARIABLE = "FLODL_GUARDS"
"""The section as JSON; the Trainer of flodl reads it."""


def hand_down_guards(plan: Plan, level: Level, preset: str | None) -> None:
    """Set the variable, if the manifest or its preset has ``guards:``; that of a preset counts.

    A null of the preset removes the guards of the manifest.
    """
    node = _guards(level.commands[preset]) if preset else None
    node = node or _guards(level.manifest.node)
    if node is None or node.value is None:
        return
    import json

    value = node.plain()
    if isinstance(value, dict):
        value = {name: one for name, one in value.items() if one is not None}
    text = json.dumps(value, separators=(",", ":"))
    plan.set(Variable(VARIABLE, text, origin(node, plan.root)))


def _guards(holder: Node) -> Node | None:
    training = holder.get("training")
    return training.mapping.get(KEY) if training else None
