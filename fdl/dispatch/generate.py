"""Sections and presets of a manifest -> the arguments of its entry, each with its origin."""

from __future__ import annotations

from fdl.args.parameter import is_number
from fdl.manifest import origin
from fdl.plan import Flag
from fdl.secrets import is_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fdl.manifest import Node
    from fdl.plan import Loser

    Section = dict[str, Node]
    Settings = dict[str, Section]

_FIELD_NAMES = {
    "ddp": (
        "mode", "policy", "backend", "anchor", "max_anchor", "overhead_target",
        "divergence_threshold", "no_divergence_guard", "max_batch_diff", "max_overshoot",
        "max_grad_norm", "snapshot_timeout", "checkpoint_every", "progressive", "speed_hint",
        "partition_ratios", "lr_scale_ratio", "timeline", "ranks", "nodes", "rdzv", "max_restarts",
        "simulate_ms",
    ),
    "training": ("epochs", "batch_size", "batches_per_epoch", "lr", "seed"),
    "output": ("dir", "monitor", "timeline"),
}  # fmt: skip
_OTHER_FLAGS = {"batches_per_epoch": "--batches", "dir": "--output"}

FIELDS = tuple(
    (section, name, _OTHER_FLAGS.get(name) or "--" + name.replace("_", "-"))
    for section, names in _FIELD_NAMES.items()
    for name in names
)
"""Section, field, flag. Generated arguments come in this order."""

RIVALS = {"mode": ("policy", "backend"), "policy": ("mode",), "backend": ("mode",)}
"""Field of ``ddp`` -> the fields that it replaces, because both set the same thing."""

SWITCHES = ("timeline", "no_divergence_guard")
"""Fields that become bare flags without a value."""


def settings(manifest: Node, preset: Node | None) -> Settings:
    """The sections of a manifest merged with a preset, field by field.

    A null inherits. ``mode`` sets ``policy`` and ``backend`` in one word. So a preset that sets
    ``mode`` does not inherit the other two, and the other way round. ``options`` come from the
    preset only.
    """
    merged: Settings = {}
    for section in _FIELD_NAMES:
        base = _present(manifest.get(section))
        own = _present(preset.get(section) if preset else None)
        for rival in (one for name in own for one in RIVALS.get(name, ())):
            base.pop(rival, None)
        merged[section] = {**base, **{name: _over(base.get(name), own[name]) for name in own}}
    merged["options"] = _present(preset.get("options") if preset else None)
    return merged


def _over(below: Node | None, above: Node) -> Node:
    """A value of a preset that remembers the manifest's value, which it replaces."""
    if below is None:
        return above
    made = above.at(above.value)
    made.losers = (*above.losers, below, *below.losers)
    made.secret = above.secret or below.secret
    return made


def _present(section: Node | None) -> Section:
    mapping = section.mapping if section else {}
    return {name: node for name, node in mapping.items() if node.value is not None}


def generate(merged: Mapping[str, Section], start: int, root: str) -> tuple[list[str], list[Flag]]:
    """The arguments that carry the settings.

    Args:
        merged: The result of :func:`settings`, or some of its sections.
        start: Number of tokens before the generated ones.
        root: Directory of the project. Origins are relative to it.

    Returns:
        The tokens, and the position, field and origin of every flag.
    """
    argv: list[str] = []
    flags: list[Flag] = []
    seen: set[str] = set()

    def add(name: str, field: str, node: Node, groups: Iterable[list[str]]) -> None:
        place, losers = origin(node, root), _losers(node, root)
        secret = _is_marked(node) or is_secret(name, node.value)
        for tokens in groups:
            index, count = start + len(argv), len(tokens)
            flags.append(Flag(index, count, name, field, place, secret=secret, losers=losers))
            argv.extend(tokens)

    for section, field, name in FIELDS:
        node = merged.get(section, {}).get(field)
        if node is None or (field in SWITCHES and (node.value is False or name in seen)):
            continue
        seen.add(name)
        add(name, f"{section}.{field}", node, _section_groups(field, name, node))
    for key, node in sorted(merged.get("options", {}).items()):
        name = "--" + key.replace("_", "-")
        add(name, f"options.{key}", node, _option_groups(name, node))
    return argv, flags


def _section_groups(field: str, name: str, node: Node) -> list[list[str]]:
    if field in SWITCHES:
        return [[name]]
    if field == "speed_hint":
        hint = node.mapping
        return [[name, f"{text(hint['slow_rank'].value)}:{text(hint['ratio'].value)}"]]
    return _option_groups(name, node, switch=False)


def _option_groups(name: str, node: Node, *, switch: bool = True) -> list[list[str]]:
    """The token groups of one value: none, one, or one per item of a list that needs it.

    With ``switch``, a boolean is a bare flag; else its value is written out.
    """
    value = node.value
    if isinstance(value, list):
        items = [text(item.value) for item in value if item.value is not None]
        if any("," in item for item in items):
            return [valued(name, item) for item in items]
        return [valued(name, ",".join(items))] if items else []
    if switch and isinstance(value, bool):
        return [[name]] if value else []
    return [valued(name, text(value))]


def _is_marked(node: Node) -> bool:
    items = node.value if isinstance(node.value, list) else []
    return node.secret or any(item.secret for item in items)


def _losers(node: Node, root: str) -> list[Loser]:
    """The values a node has replaced, strongest first, without nulls."""
    # Layers of one manifest merge a mapping key by key, so each key there has its own losers.
    parts = [loser for part in node.mapping.values() for loser in part.losers]
    return [
        (_loser_text(loser), origin(loser, root))
        for loser in (*node.losers, *parts)
        if loser.value is not None
    ]


def _loser_text(node: Node) -> str:
    if isinstance(node.value, list):
        return ",".join(text(item.value) for item in node.value)
    if isinstance(node.value, dict):
        parts = [node.get("slow_rank"), node.get("ratio")]
        return ":".join(text(part.value) for part in parts if part)
    return text(node.value)


def valued(name: str, value: str) -> list[str]:
    """Flag and value; one token if a parser would take the value for another flag."""
    if len(value) > 1 and value.startswith("-") and not is_number(value):
        return [f"{name}={value}"]
    return [name, value]


def text(value: object) -> str:
    """A scalar as a program's parser expects it: ``true`` instead of Python's ``True``."""
    return str(value).lower() if isinstance(value, bool) else str(value)
