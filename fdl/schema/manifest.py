"""The JSON Schema of ``fdl.yml``. Editors use it to complete, explain and check a manifest."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from fdl.args.parameter import RESERVED_LONG, RESERVED_SHORT, TYPES
from fdl.manifest.schema import json_schema
from fdl.schema.contract import LIST_TYPES

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SCALAR = {"type": ["string", "number", "boolean"]}


@cache
def as_json() -> str:
    """The document as text, ending in a newline."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def document() -> dict[str, Any]:
    """The document: what one manifest file may hold, overlays included.

    It refuses nothing that fdl accepts. Rules over several keys or files are checked only by fdl.
    """
    made = json_schema()
    made["properties"]["schema"]["anyOf"] = [_contract(), {"type": "null"}]
    # An empty file is an empty manifest.
    made["type"] = ["object", "null"]
    return {"$schema": DIALECT, "title": "fdl.yml", **made}


def _contract() -> dict[str, Any]:
    """The allowed content of ``schema:``: the document that ``--fdl-schema`` prints."""
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
        "group": _text("Heading of the option on a help page"),
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
            "collapsed": {
                "description": "Group that a help page shows as one line -> what it is for",
                "type": ["object", "null"],
                "additionalProperties": {"type": ["string", "null"]},
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
