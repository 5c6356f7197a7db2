"""The JSON Schema of ``fdl.yml``, by which editors complete, explain and check a manifest."""

# The paths of a manifest are strings.
# ruff: noqa: PTH105, PTH107, PTH118, PTH120, PTH123
from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import cache
from typing import Any

from fdl.args.parameter import RESERVED_LONG, RESERVED_SHORT, TYPES
from fdl.manifest.schema import Root
from fdl.schema.contract import LIST_TYPES

DIALECT = "https://json-schema.org/draft/2020-12/schema"

EDITOR_COPY = ".fdl/manifest.schema.json"
"""Where a manifest's first line can send the editor, without a network: fdl keeps it up to date."""

_HEADER = f"# yaml-language-server: $schema={EDITOR_COPY}"

_SCALAR = {"type": ["string", "number", "boolean"]}


@cache
def as_json() -> str:
    """The document as text, ending in a newline."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def document() -> dict[str, Any]:
    """The document: what one manifest file may hold, overlays included.

    It refuses nothing that fdl accepts; rules over several keys or files are left to fdl.
    """
    made: dict[str, Any] = _plain(Root.model_json_schema())
    definitions = made.pop("$defs")
    made["properties"]["schema"]["anyOf"] = [_contract(), {"type": "null"}]
    # A layer may leave to the others what the whole must have.
    definitions["SpeedHint"].pop("required")
    definitions["Ddp"]["not"] = {"anyOf": [_both("mode", "policy"), _both("mode", "backend")]}
    # An empty file is an empty manifest.
    made["type"] = ["object", "null"]
    return {"$schema": DIALECT, "title": "fdl.yml", **made, "$defs": definitions}


def keep_editor_copy(manifest: str) -> None:
    """Write the editor's copy beside a manifest whose first lines name it, unless it is there.

    What cannot be written is left: the manifest works without it.

    Args:
        manifest: Absolute path of the manifest.
    """
    directory = os.path.dirname(manifest)
    target = os.path.join(directory, *EDITOR_COPY.split("/"))
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        with open(manifest, encoding="utf-8") as stream:
            if _HEADER not in (line.strip() for line in stream.readlines(4096)):
                return
        if _content(target) == as_json():
            return
        from fdl.manifest.cache import make_folder

        make_folder(os.path.dirname(target))
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(as_json())
        os.replace(temporary, target)
    except (OSError, ValueError):
        with suppress(OSError):
            os.remove(temporary)


def _content(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, ValueError):
        return ""


def _plain(schema: Any) -> Any:
    """A schema without what says nothing: generated titles, and defaults that are null."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _plain(one) for name, one in value.items()}
        if key in ("properties", "$defs")
        else _plain(value)
        for key, value in schema.items()
        if key != "title" and not (key == "default" and value is None)
    }


def _both(one: str, other: str) -> dict[str, Any]:
    given = {"not": {"type": "null"}}
    return {"required": [one, other], "properties": {one: given, other: given}}


def _contract() -> dict[str, Any]:
    """What ``schema:`` may hold: the document that ``--fdl-schema`` prints."""
    shared = {
        "type": {
            "description": "Type of one value, or of each value of a list",
            "enum": [*TYPES, *LIST_TYPES],
        },
        "description": _text("One sentence for the help page"),
        "default": {
            "description": "Value when it is not given",
            "anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}, {"type": "null"}],
        },
        "choices": {
            "description": "Allowed values",
            "type": ["array", "null"],
            "items": _SCALAR,
        },
        "completer": _text("Shell snippet that prints one completion candidate per line"),
    }
    option = {
        **shared,
        "short": {
            "description": "Letter of the short form",
            "type": ["string", "null"],
            "pattern": f"^[^-=\\s{''.join(sorted(RESERVED_SHORT))}]$",
        },
        "env": _text("Environment variable the program reads when the option is not given"),
        "bare": _switch("Whether the default is what the option means without a value"),
        "commas": _switch("Whether one word may hold several values of a list, split at commas"),
    }
    argument = {
        "name": {"description": "What the help page calls it", "type": "string", "minLength": 1},
        **shared,
        "required": _switch("Whether it must be given"),
        "variadic": _switch("Whether it takes all that remains; the last one only"),
    }
    names = {"not": {"enum": sorted(RESERVED_LONG)}, "pattern": "^[^\\W_][\\w.-]*$"}
    return _mapping(
        {
            "description": _text("What the program is for"),
            "args": {
                "description": "Positional arguments, in order",
                "type": ["array", "null"],
                "items": _mapping(argument),
            },
            "options": {
                "description": "Long name, without dashes in front -> option",
                "type": ["object", "null"],
                "propertyNames": names,
                "additionalProperties": _mapping(option),
            },
            "strict": _switch("Whether a flag that is not declared is a mistake"),
            "origins": _switch("Whether the program itself lets its variables beat the manifest"),
        }
    )


def _mapping(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "type": ["string", "null"]}


def _switch(description: str) -> dict[str, Any]:
    return {"description": description, "type": ["boolean", "null"]}
