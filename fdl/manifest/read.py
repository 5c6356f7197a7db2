"""Read the file of a manifest: JSON if its name says so, else YAML."""

from __future__ import annotations

from fdl.manifest.node import Node
from fdl.manifest.read_json import read_json
from fdl.manifest.source import read_text, refusal_of

_KINDS = {list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}


def read(file: str) -> Node:
    """Read ``file`` into a tree whose root is always a mapping.

    Raises:
        ManifestError: The file cannot be read, is broken, or is not a mapping.
    """
    return parse(read_text(file), file)


def is_json(file: str) -> bool:
    """Whether the name of a manifest says that it is JSON."""
    return file.removesuffix(".example").removesuffix(".dist").endswith(".json")


def parse(text: str, file: str) -> Node:
    """Parse a text that is, or would be, the content of ``file``.

    The text is JSON if the name says so (before ``.example`` or ``.dist``), else YAML. An empty
    document, or one that is only ``null``, is an empty mapping.

    Raises:
        ManifestError: The text is broken, or is not a mapping.
    """
    if is_json(file):
        root = read_json(text, file)
    else:
        from fdl.manifest.read_yaml import read_yaml

        root = read_yaml(text, file)
    if root.value is None:
        return Node({}, file, root.line, root.column)
    if not isinstance(root.value, dict):
        problem = f"a manifest must be a mapping of keys, not {_KINDS[type(root.value)]}"
        hint = "begin with `commands:` and indent the commands below it"
        raise refusal_of(root, problem, hint)
    return root
