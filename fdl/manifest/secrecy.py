"""A manifest to print: the same tree with its secrets blanked out.

A value is secret if it is marked ``!secret``, if it has a secret-looking name, or if a secret has
replaced it. The mark of a mapping holds for everything below. The text of a secret is blanked out
wherever else it appears.
"""

from __future__ import annotations

from fdl.base.masking import KNOWN, redacted_script, secrets_of_script
from fdl.base.secrets import REDACTED, is_secret, is_secret_name
from fdl.manifest.node import Node, Null, Removed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fdl.manifest.inspect.splice import Layout, Span
    from fdl.manifest.load import Manifest

    Path = tuple[str | int, ...]

_SCRIPTS = ("run", "append", "entry")

_NEW = "<new secret>"


def texts(manifest: Manifest) -> Iterator[tuple[str, bool]]:
    """The secret texts of a manifest, and those that they have replaced; whether each is marked."""
    yield from _texts(manifest.node, ())
    for removed in manifest.removed:
        yield from _texts(removed.by, removed.path)


def tree(node: Node, path: Path = (), owner: Node | None = None) -> Node:
    """A copy of a tree to print; ``path`` is its path in the manifest, below ``owner``."""
    secret = is_hidden(node, path, owner)
    made = node.at(_shown(node, path, secret=secret))
    made.losers = tuple(loser.at(_shown(loser, path, secret=secret)) for loser in node.losers)
    return made


def removed(manifest: Manifest) -> list[Removed]:
    """The keys that layers have deleted, to print."""
    return [Removed(one.path, tree(one.by, one.path)) for one in manifest.removed]


def is_hidden(node: Node, path: Path, owner: Node | None = None) -> bool:
    """Whether a value must not be printed, because of its marks, its name or its ``owner``'s."""
    nodes = (node, *node.losers)
    if any(one.secret for one in nodes):
        return True
    if node.secret is None:
        return False
    name = path[-1] if path else ""
    if not isinstance(name, str):
        return False
    if name in ("default", "choices") and len(path) > 1:
        # Part of a declared argument: `api_key: {default: x}` or `{name: api_key, default: x}`.
        named = owner.text("name") if owner else None
        return is_secret_name(named or str(path[-2]))
    as_text = len(path) > 1 and path[-2] == "env"
    # Options may be nested, and what is below a secret name is secret.
    below = path[2:] if path[:1] == ("commands",) else path
    names = below[1:] if below[:1] == ("options",) else (name,)
    return any(
        not isinstance(one.value, dict)
        and is_secret(
            str(part), str(one.value) if as_text and one.value is not None else one.plain()
        )
        for one in nodes
        for part in names
    )


def _shown(
    node: Node, path: Path, *, secret: bool
) -> dict[str, Node] | list[Node] | str | int | float | bool | None:
    value = node.value
    if isinstance(value, dict):
        children = ((key, _marked(child, secret=secret)) for key, child in value.items())
        return {key: tree(child, (*path, key), node) for key, child in children}
    if secret:
        return value if value is None else REDACTED
    if isinstance(value, list):
        return [tree(item, (*path, place)) for place, item in enumerate(value)]
    if isinstance(value, str) and value and not isinstance(value, Null):
        is_script = bool(path) and path[-1] in _SCRIPTS
        return redacted_script(value) if is_script else KNOWN.text(value)
    return value


def _marked(node: Node, *, secret: bool) -> Node:
    if not secret or node.secret:
        return node
    made = node.at(node.value)
    made.secret = True
    return made


def _texts(node: Node, path: Path, owner: Node | None = None) -> Iterator[tuple[str, bool]]:
    """The secret texts below a node, and those that they have replaced."""
    if is_hidden(node, path, owner):
        marked = any(one.secret for one in (node, *node.losers))
        for one in (node, *node.losers):
            yield from ((text, marked) for text in _strings(one))
        return
    for one in (node, *node.losers):
        if isinstance(one.value, dict):
            for key, child in one.value.items():
                yield from _texts(child, (*path, key), one)
        elif isinstance(one.value, list):
            for place, item in enumerate(one.value):
                yield from _texts(item, (*path, place))
        elif isinstance(one.value, str) and path and path[-1] in _SCRIPTS:
            yield from ((text, False) for text in secrets_of_script(one.value))


def _strings(node: Node) -> Iterator[str]:
    value = node.value
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _strings(child)
    elif value not in (None, "") and not isinstance(value, bool):
        yield str(value)


def printable(text: str, node: Node, layout: Layout, changed: Path = ()) -> str:
    """The text of a manifest to print, with its secrets blanked out in place.

    Args:
        text: The text.
        node: The tree of the text.
        layout: The positions of its values.
        changed: The path of a value that has changed; a secret there is shown as a new one.
    """
    places = _secret_places(node, layout.root, (), None) if layout.root else iter(())
    for start, end, path in sorted(places, reverse=True):
        whole = _NEW if changed and path[: len(changed)] == changed else REDACTED
        text = text[:start] + whole + text[end:]
    return "".join(map(redacted_script, text.splitlines(keepends=True)))


def _secret_places(
    node: Node, span: Span, path: Path, owner: Node | None, *, marked: bool = False
) -> Iterator[tuple[int, int, Path]]:
    marked = marked or is_hidden(node, path, owner)
    if span.kind == "mapping" and isinstance(node.value, dict):
        for key, child in span.entries.items():
            yield from _secret_places(node.value[key], child, (*path, key), node, marked=marked)
    elif marked and span.body < span.end:
        yield span.body, span.end, path
    elif span.kind == "list" and isinstance(node.value, list):
        for place, (item, child) in enumerate(zip(node.value, span.items, strict=True)):
            yield from _secret_places(item, child, (*path, place), None)
