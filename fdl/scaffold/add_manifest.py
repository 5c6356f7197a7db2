"""Add a command to the text of a manifest, and leave everything else unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fdl.base.errors import ManifestError, ScaffoldError
from fdl.manifest.discover import EXAMPLES, NAMES
from fdl.manifest.inspect.layer import is_only_change, lookup
from fdl.manifest.inspect.splice import Layout, NewValue, Span, candidates, json_layout, yaml_layout
from fdl.manifest.node import Node
from fdl.manifest.source import parse

_COMMANDS = "commands"


def manifests(root: Path) -> list[Path]:
    """The manifests of a folder and their examples; a link without a target is left out."""
    return [root / name for name in (*NAMES, *EXAMPLES) if (root / name).is_file()]


def with_command(text: str, file: Path, name: str, keys: dict[str, str]) -> str:
    """The text of a manifest with one more command, at the end of its ``commands:``.

    The same text if the command is there already. The name of the file says whether it is JSON.

    Raises:
        ManifestError: The text is broken.
        ScaffoldError: It cannot be changed without changing anything else.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    made = text.removeprefix(mark)
    if lookup(parse(made, str(file)), (_COMMANDS, name)) is not None:
        return text
    for key, value in keys.items():
        made = _with_value(made, str(file), (_COMMANDS, name, key), value)
    return mark + made


def _with_value(text: str, file: str, path: tuple[str, ...], value: str) -> str:
    # A block at the end of the file without a line end gets one, because text is added below it.
    old = parse(text if text.endswith("\n") else f"{text}\n", file)
    is_json = file.removesuffix(".example").removesuffix(".dist").endswith(".json")
    read = json_layout if is_json else yaml_layout
    layout = read(text)
    new = NewValue(Node(value, file, 1, 1), value)
    for made in (
        *_in_empty_block(text, layout, path, value),
        *candidates(text, layout, path, new, is_json=is_json),
    ):
        try:
            found = parse(made, file)
            kept = read(made).comments == layout.comments
        except ManifestError:
            continue
        if kept and is_only_change(old, found, path, new):
            return made
    raise ScaffoldError(
        f"{Path(file).name} cannot take the command `{path[1]}` without a change to what is "
        "around it; nothing was written",
        hint=f"write it by hand, under `{_COMMANDS}:`, and try again",
    )


def _in_empty_block(text: str, layout: Layout, path: tuple[str, ...], value: str) -> Iterator[str]:
    """The command on separate lines below a ``commands:`` that is still empty."""
    span = layout.root.entries.get(_COMMANDS) if layout.root else None
    if span is None or span.kind != "scalar" or span.start != span.end or path[0] != _COMMANDS:
        return
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = " " * _column(text, span)
    end = text.find("\n", span.key_end)
    end = len(text) if end < 0 else end - text[:end].endswith("\r")
    _, name, key = path
    lines = f"{newline}{indent}  {name}:{newline}{indent}    {key}: {value}"
    yield f"{text[:end]}{lines}{text[end:]}"


def _column(text: str, span: Span) -> int:
    return span.key_start - (text.rfind("\n", 0, span.key_start) + 1)
