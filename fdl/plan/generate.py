"""Sections and presets of a manifest -> the arguments of its entry, each with its origin."""

from __future__ import annotations

from fdl.base.errors import ManifestError
from fdl.base.light_record import Record
from fdl.base.secrets import is_secret
from fdl.manifest.node import dotted, origin, relative, text
from fdl.manifest.slips import empty
from fdl.manifest.words import RIVALS
from fdl.plan.spelling import Key, Spelling, flattened, output_keys, written
from fdl.plan.value import Flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fdl.manifest.node import Loser, Node
    from fdl.programs.parameters.parameter import Parameter

    Section = dict[str, Node]
    Settings = dict[str, Section]
    from collections.abc import Sequence

    from fdl.manifest.select.level import Level


_FIELD_NAMES = {
    "ddp": (
        "mode", "policy", "backend", "anchor", "max_anchor", "overhead_target",
        "divergence_threshold", "no_divergence_guard", "max_batch_diff", "max_overshoot",
        "max_grad_norm", "snapshot_timeout", "checkpoint_every", "progressive", "speed_hint",
        "partition_ratios", "lr_scale_ratio", "timeline", "ranks", "nodes", "rdzv", "max_restarts",
        "simulate_ms", "min_ranks", "elastic", "exchange", "micro_batch",
    ),
    "training": ("epochs", "batch_size", "batches_per_epoch", "lr", "seed", "engine"),
    "output": ("dir", "monitor", "timeline"),
}  # fmt: skip
_OTHER_FLAGS = {"batches_per_epoch": "--batches", "dir": "--output"}

FIELDS = tuple(
    (section, name, _OTHER_FLAGS.get(name) or "--" + name.replace("_", "-"))
    for section, names in _FIELD_NAMES.items()
    for name in names
)
"""Section, field, flag. Generated arguments come in this order."""

SWITCHES = ("timeline", "no_divergence_guard")
"""Fields that become bare flags without a value."""


def settings(manifest: Node, preset: Node | None) -> Settings:
    """The sections of a manifest merged with a preset, field by field.

    A null of the preset removes what the manifest sets. ``mode`` sets ``policy`` and ``backend`` in
    one word. So a preset that sets ``mode`` does not inherit the other two, and the other way
    round.
    """
    merged: Settings = {}
    for section in (*_FIELD_NAMES, "options"):
        base = present(section, manifest)
        own = present(section, preset)
        # Elsewhere, an option of the program may have one of these names.
        rivals = RIVALS if section == "ddp" else {}
        for rival in (one for name in own for one in rivals.get(name, ())):
            base.pop(rival, None)
        for name in removed_by(section, preset, base):
            del base[name]
        merged[section] = {**base, **{name: _over(base.get(name), own[name]) for name in own}}
    return merged


def _over(below: Node | None, above: Node) -> Node:
    """A value of a preset that remembers the manifest's value, which it replaces."""
    if below is None:
        return above
    made = above.at(above.value)
    made.losers = (*above.losers, below, *below.losers)
    made.secret = above.secret or below.secret
    return made


def present(section: str, holder: Node | None) -> Section:
    """The settings of a section. Mappings inside become dotted keys, except those of ``ddp``."""
    found = holder.get(section) if holder else None
    mapping = found.mapping if found else {}
    if section != "ddp":
        return dict(flattened(mapping.items()))
    return {name: node for name, node in mapping.items() if node.value is not None}


def removed_by(section: str, preset: Node | None, base: Section) -> dict[str, Node]:
    """The settings of a manifest that a preset removes: name -> its null."""
    found = preset.get(section) if preset else None
    nulls = {key: node for key, node in written(found.mapping.items() if found else ())
             if node.value is None and not node.empty and not key.startswith("~")}  # fmt: skip
    return {
        name: node
        for key, node in nulls.items()
        for name in base
        if name == key or name.startswith(f"{key}.")
    }


class Group(Record):
    """The tokens of one generated argument.

    Attributes:
        tokens: The tokens.
        name: The flag, or the key of an argument without dashes.
        field: Dotted manifest path.
        node: The value.
        declared: The parameter that it fills, if the program is known to have one.
    """

    tokens: list[str]
    name: str
    field: str
    node: Node
    declared: Parameter | None


def groups(merged: Mapping[str, Section], spelling: Spelling) -> Iterator[Group]:
    """The settings as tokens: flags in the order of the sections, then positional arguments."""
    found = [*_of_sections(merged, spelling), *_of_options(merged, spelling)]
    yield from (one for one in found if one.declared is None or one.declared.kind == "option")
    for argument in spelling.schema.arguments if spelling.schema else ():
        yield from (one for one in found if one.declared is argument)


def flag_of(group: Group, index: int, root: str) -> Flag:
    """What a plan knows about a generated argument that begins at a position."""
    node = group.node
    # Layers merge a mapping key by key. The value that a layer has changed is the one to name.
    decisive = max(node.mapping.values(), key=lambda one: len(one.losers), default=node)
    return Flag(
        index,
        len(group.tokens),
        group.name,
        group.field,
        origin(decisive if decisive.losers else node, root),
        secret=_secrecy(group),
        losers=_losers(node, root),
        reference=node.reference,
    )


def _of_sections(merged: Mapping[str, Section], spelling: Spelling) -> Iterator[Group]:
    seen: set[str] = set()
    for section, field, name in FIELDS:
        node = merged.get(section, {}).get(field)
        if node is None or (field in SWITCHES and (node.value is False or name in seen)):
            continue
        seen.add(name)
        yield from _section_groups(section, field, name, node, spelling)
    for key, node in merged.get("training", {}).items():
        # Guards reach the program in a variable, as flodl reads them.
        if key not in _FIELD_NAMES["training"] and key.partition(".")[0] != "guards":
            yield from _made(key, f"training.{key}", node, spelling)


def _of_options(merged: Mapping[str, Section], spelling: Spelling) -> Iterator[Group]:
    for key, node in sorted(_whole(merged.get("options", {}), spelling).items()):
        yield from _made(key, f"options.{key}", node, spelling)


def _whole(options: Section, spelling: Spelling) -> Section:
    """Settings where each mapping that a program takes as one value is one again."""
    made: Section = {}
    for key, node in options.items():
        count = spelling.mapping(key) if isinstance(key, Key) else 0
        if not isinstance(key, Key) or not count:
            made[key] = node
            continue
        name = ".".join(key.path[:count])
        holder = made.setdefault(name, _holder(node))
        for word in key.path[count:-1]:
            holder = holder.mapping.setdefault(word, _holder(node))
        holder.mapping[key.path[-1]] = node
    return made


def _holder(first: Node) -> Node:
    """An empty mapping where its first value is written."""
    made = first.at({})
    made.losers, made.secret = (), False
    return made


def _section_groups(
    section: str, field: str, name: str, node: Node, spelling: Spelling
) -> Iterator[Group]:
    key, flag, one = spelled(field, name, spelling)
    if field in SWITCHES and not spelling.bare:
        yield Group([flag], flag, f"{section}.{field}", node, one)
    elif field == "speed_hint":
        value = _hint(node.mapping)
        tokens = [f"{flag}={value}"] if spelling.bare else [flag, value]
        yield Group(tokens, flag, f"{section}.{field}", node, one)
    else:
        for tokens in spelling.groups(key, node, one, switch=False):
            yield Group(tokens, flag, f"{section}.{field}", node, one)


def spelled(field: str, name: str, spelling: Spelling) -> tuple[str, str, Parameter | None]:
    """The key, the flag and the parameter of a section's field.

    It is the first of the field's names that the program declares. ``name`` is fdl's own flag.
    """
    key = name[2:]
    keys = output_keys(spelling.style) if field == "dir" else (key, field)
    one = spelling.declared(*keys)
    if one is None and spelling.bare:
        key = keys[0] if field == "dir" else field
    return key, spelling.flag(key, one), one


def _made(key: str, field: str, node: Node, spelling: Spelling) -> Iterator[Group]:
    # A key that is written as a flag is passed as it stands.
    one = None if key.startswith("-") else spelling.declared(key)
    flag = spelling.flag(key, one)
    for tokens in spelling.groups(key, node, one):
        # The word that turns a flag off is another one.
        is_option = one is not None and one.kind == "option"
        name = tokens[0].partition("=")[0] if is_option else flag
        yield Group(tokens, name, field, node, one)


def _secrecy(group: Group) -> bool | None:
    """Whether a value is secret; None for one marked ``!public``."""
    if is_marked(group.node):
        return True
    if group.node.secret is None:
        return None
    names = (group.name, *group.field.split("."))
    return any(is_secret(part, group.node.value) for part in names) or _holds_secret(group.node)


def _holds_secret(node: Node) -> bool:
    """Whether the name of a key inside a value says that it is secret."""
    found = ((key, child) for key, child in node.mapping.items() if child.secret is not None)
    return any(is_secret(key, child.value) or _holds_secret(child) for key, child in found)


def is_marked(node: Node) -> bool:
    """Whether a value, or one inside of it, is marked as secret."""
    items = node.value if isinstance(node.value, list) else node.mapping.values()
    return bool(node.secret) or any(map(is_marked, items))


def _losers(node: Node, root: str) -> list[Loser]:
    """The values a node has replaced, strongest first, without nulls."""
    found = [(_loser_text(loser), loser) for loser in node.losers]
    # Layers of one manifest merge a mapping key by key, so each key there has its own losers.
    for key, part in node.mapping.items():
        found += [(_loser_text(node.at({**node.mapping, key: one})), one) for one in part.losers]
    return [(said, origin(loser, root)) for said, loser in found if loser.value is not None]


def _hint(mapping: Mapping[str, Node]) -> str:
    return ":".join(text(mapping[key].value) for key in ("slow_rank", "ratio") if key in mapping)


def _loser_text(node: Node) -> str:
    if isinstance(node.value, list):
        return ",".join(map(_loser_text, node.value))
    if isinstance(node.value, dict):
        return _hint(node.mapping) or str(node.plain())
    return text(node.value)


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
    schema = spelling.schema if spelling else None
    names = [word.lstrip("-").replace("-", "_") for word in schema.spellings] if schema else []
    return ManifestError(
        f"{relative(node.file, root)}:{node.key_line}:{node.key_column}: "
        f"`{dotted(tuple(path))}` has no value",
        hint=empty(path[-1], names),
    )
