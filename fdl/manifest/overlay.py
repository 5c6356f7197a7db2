"""Layers of one manifest -> one tree that remembers what each value replaced.

Maps merge key by key. Any other value replaces the weaker one as a whole. Null deletes, as in JSON
Merge Patch (RFC 7396), so the values that an overlay adds never hold nulls either, at any depth.
In a command they stay: there a null removes what a preset inherits from its manifest.
A setting without any value deletes nothing: it is a slip, or switches a flag on. A list tagged
``!append``, ``!prepend`` or ``!merge-by:KEY`` joins the weaker one instead. Keys keep
the order of the weakest layer that has them. ``ddp.mode`` and ``ddp.policy`` or ``ddp.backend`` set
the same thing, so a layer that sets one of them drops the other from weaker layers.
"""

from __future__ import annotations

from fdl.manifest.node import Node, Removed
from fdl.manifest.source import refusal_of, shown
from fdl.manifest.words import RIVALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def merge(layers: Sequence[Node]) -> tuple[Node, list[Removed]]:
    """Merge manifests.

    Args:
        layers: Root mappings, weakest first; at least one. They are not changed.

    Returns:
        The merged root mapping, and the keys that were removed from it.

    Raises:
        ManifestError: A list tag is over a value that is not a list.
    """
    root = layers[0]
    for layer in layers[1:]:
        root = _over(root, layer, ())
    removed: list[Removed] = []
    return _with_marks_below(_without_deleted(root, (), removed)), removed


def _is_setting(path: tuple[str, ...]) -> bool:
    """Whether a path leads to an option of a program: only the program knows its flags."""
    below = _in_scope(path)
    return len(below) > 1 and below[0] in ("options", "training")


def _in_scope(path: tuple[str, ...]) -> tuple[str, ...]:
    """A path without the command that it is in."""
    return path[2:] if path[:1] == ("commands",) else path


def _over(below: Node, above: Node, path: tuple[str, ...]) -> Node:
    """Merge one value over a weaker one."""
    if isinstance(below.value, dict) and isinstance(above.value, dict):
        return _maps(below, above, path)
    if above.merge and below.value is not None:
        made = _lists(below, above)
    else:
        made = _brought_in(above, path)
        made.merge = None
    made.losers = (below, *below.losers)
    made.secret = above.secret or below.secret or above.secret
    return made


def _maps(below: Node, above: Node, path: tuple[str, ...]) -> Node:
    merged = dict(below.mapping)
    for key, child in above.mapping.items():
        if _in_scope(path) == ("ddp",) and child.value is not None:
            for rival in RIVALS.get(key, ()):
                if rival in merged and merged[rival].value is not None:
                    merged[rival] = _over(merged[rival], child.at(None), (*path, rival))
        if key in merged:
            merged[key] = _over(merged[key], child, (*path, key))
        elif not _is_nothing(child, (*path, key)):
            merged[key] = _brought_in(child, (*path, key))
    made = below.at(merged)
    made.secret = above.secret or below.secret or above.secret
    return made


def _deletes(node: Node, path: tuple[str, ...]) -> bool:
    return node.value is None and not (node.empty and _is_setting(path))


def _is_nothing(node: Node, path: tuple[str, ...]) -> bool:
    """Whether a null has no effect where no weaker layer has a value.

    In a command it has one: it removes what the command inherits from its manifest. So has
    `~callbacks`, which deletes a setting of Hydra.
    """
    in_command = path[:1] == ("commands",) and len(path) > 2
    return _deletes(node, path) and not in_command and not path[-1].startswith("~")


def _brought_in(node: Node, path: tuple[str, ...]) -> Node:
    """What an overlay adds where there was no mapping. Its nulls delete nothing and are dropped."""
    if not isinstance(node.value, dict):
        return node.at(node.value)
    kept = {
        key: _brought_in(child, (*path, key))
        for key, child in node.mapping.items()
        if not _is_nothing(child, (*path, key))
    }
    return node.at(kept)


def _lists(below: Node, above: Node) -> Node:
    mine, theirs = above.value, below.value
    if not isinstance(mine, list) or not isinstance(theirs, list):
        kind = "a mapping" if isinstance(theirs, dict) else "no list"
        place = f"{shown(below.file)}:{below.line}"
        raise refusal_of(
            above,
            f"`!{above.merge}` needs a list below it, and {place} holds {kind}",
            "remove the tag to replace the value",
        )
    if above.merge == "append":
        return above.at([*theirs, *mine])
    if above.merge == "prepend":
        return above.at([*mine, *theirs])
    return above.at(_by_key(theirs, above, (above.merge or "").partition(":")[2]))


def _by_key(below: list[Node], above: Node, key: str) -> list[Node]:
    """Merge items of equal ``key`` in place, and append the others."""
    merged = list(below)
    places = {_identity(item, key): index for index, item in reversed(list(enumerate(below)))}
    for item in above.value if isinstance(above.value, list) else []:
        name = _identity(item, key)
        if name is None:
            raise refusal_of(
                item,
                f"`!{above.merge}` needs items with `{key}`, and this one has none",
                f"give every item a `{key}`, or use `!append`",
            )
        if name in places:
            merged[places[name]] = _over(merged[places[name]], item, ())
        else:
            places[name] = len(merged)
            merged.append(item)
    return merged


def _identity(item: Node, key: str) -> tuple[str, str] | None:
    """What identifies an item; None for an item without ``key``."""
    value = item.get(key)
    if value is None or isinstance(value.value, dict | list):
        return None
    return type(value.value).__name__, str(value.value)


def _with_marks_below(node: Node, *, secret: bool | None = False) -> Node:
    """The tree in which ``!secret`` or ``!public`` on a mapping or list marks every value in it."""
    made = node.at(node.value)
    made.secret = secret = secret or node.secret or (None if secret is None else node.secret)
    if isinstance(node.value, dict):
        made.value = {
            key: _with_marks_below(child, secret=secret) for key, child in node.value.items()
        }
    elif isinstance(node.value, list):
        made.value = [_with_marks_below(item, secret=secret) for item in node.value]
    return made


def _without_deleted(node: Node, path: tuple[str, ...], removed: list[Removed]) -> Node:
    """The tree without the nulls that deleted something. A single layer keeps its own nulls."""
    if not isinstance(node.value, dict):
        return node
    kept = {}
    for key, child in node.value.items():
        deletes = child.losers and _deletes(child, (*path, key))
        # A null over a null has not deleted a value.
        if deletes and any(loser.value is not None for loser in child.losers):
            removed.append(Removed((*path, key), child))
        elif not (deletes and _is_nothing(child, (*path, key))):
            kept[key] = _without_deleted(child, (*path, key), removed)
    return node.at(kept)
