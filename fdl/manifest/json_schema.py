"""The JSON Schema of ``fdl.yml``. Editors use it to complete, explain and check a manifest."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import DictSchema, WithDefaultSchema

from fdl.base.output import json_text
from fdl.manifest import models
from fdl.manifest.words import (
    LIST_TYPES,
    LITERALS,
    MAPPINGS,
    RESERVED_LONG,
    RESERVED_SHORT,
    STYLES,
    TYPES,
    VALUES,
)

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SCALAR = {"type": ["string", "number", "boolean"]}
_ARGUMENTS = {"$ref": "#/$defs/Arguments"}
_SETTINGS = {"$ref": "#/$defs/Settings"}
_ITEM = {"$ref": "#/$defs/Item"}
_SETTING = [_SCALAR, {"items": _ITEM, "type": "array"}, _SETTINGS, {"type": "null"}]


# A list holds no null, at any depth: there it would remove nothing.
_ITEMS = {
    "anyOf": [
        _SCALAR,
        {"items": _ITEM, "type": "array"},
        {"additionalProperties": {"anyOf": [_ITEM, {"type": "null"}]}, "type": "object"},
    ]
}


def _mapping(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _text(description: str) -> dict[str, Any]:
    return {"description": description, "type": ["string", "null"]}


def _words(description: str) -> dict[str, Any]:
    return {"description": description, "type": ["array", "null"], "items": {"type": "string"}}


def _switch(description: str) -> dict[str, Any]:
    return {"description": description, "type": ["boolean", "null"]}


_OPTIONS = {"additionalProperties": {"anyOf": _SETTING}, "type": "object"}
_DOTTED = "Settings with dotted names: `optimizer: {lr: 0.1}` is `optimizer.lr`."
_SHARED = {
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
    "place": _text("`file:line` of the declaration"),
    "computed": _words("Keys whose value only the running program knows"),
    "ignore_case": _switch("Whether choices may be typed in upper and lower case"),
    "once": _switch("Whether only the last occurrence of a list counts"),
    "literal": {
        "description": "How the program evaluates a word: as a Python literal (`python` or true), "
        "as data, which may be a mapping (`json`, or `eval` for an expression of Python), or "
        "lists and mappings alone as JSON (`yaml`)",
        "enum": [*LITERALS, True, False, None],
    },
    "mapping": {
        "description": "How a mapping is written: as a literal, or as its keys and values in turn",
        "enum": [*MAPPINGS, None],
    },
    "words": {
        "description": "How true, false and null are written",
        "type": ["object", "null"],
        "properties": {one: {"type": ["string", "null"]} for one in VALUES},
        "additionalProperties": False,
    },
}
_OPTION = {
    **_SHARED,
    "short": {
        "description": "Letter of the short form",
        "type": ["string", "null"],
        "pattern": f"^[^-=\\s{''.join(sorted(RESERVED_SHORT))}]$",
    },
    "env": _text("Environment variable the program reads when the option is not given"),
    "bare": _switch("Whether the default is what the option means without a value"),
    "group": _text("Heading of the option on a help page"),
    "commas": _switch("Whether one word may hold several values of a list, split at commas"),
    "separator": _text("What joins the values of a list, if one word must hold all of them"),
    "flags": _words("Every spelling with its dashes; the first long one is used"),
    "negatives": _words("The spellings that turn a flag off"),
    "nargs": {
        "description": "Words that one option takes: a number, `*`, `+` or `?`",
        "anyOf": [{"minimum": 1, "type": "integer"}, {"enum": ["*", "+", "?", None]}],
    },
    "counted": _switch("Whether the flag may be repeated and its number counts"),
    "required": _switch("Whether the program refuses to start without it"),
}
_ARGUMENT = {
    "name": {"description": "What the help page calls it", "type": "string", "minLength": 1},
    **_SHARED,
    "required": _switch("Whether it must be given"),
    "variadic": _switch("Whether it takes all that remains; the last one only"),
}
_NAMES = {"not": {"enum": sorted(RESERVED_LONG)}, "pattern": "^[^\\W_][\\w.-]*$"}
_CONTRACT = _mapping(
    {
        "description": _text("What the program is for"),
        "args": {
            "description": "Positional arguments, in order",
            "type": ["array", "null"],
            "items": _mapping(_ARGUMENT),
        },
        "options": {
            "description": "Long name, without dashes in front -> option",
            "type": ["object", "null"],
            "propertyNames": _NAMES,
            "additionalProperties": _mapping(_OPTION),
        },
        "commands": {
            "description": "Subcommand -> its arguments",
            "type": ["object", "null"],
            "additionalProperties": _ARGUMENTS,
        },
        "style": {
            "description": "How settings are written if an option declares no spelling",
            "enum": [*STYLES, None],
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
"""The allowed content of ``schema:``: the document that ``--fdl-schema`` prints."""


class _Schema(GenerateJsonSchema):
    """The JSON Schema of the models: no titles or defaults, and no key is required.

    Another layer may hold a required key.
    """

    def default_schema(self, schema: WithDefaultSchema) -> dict[str, Any]:
        return self.generate_inner(schema["schema"])

    def dict_schema(self, schema: DictSchema) -> dict[str, Any]:
        rule = super().dict_schema(schema)
        return {"type": "object"} if rule.get("additionalProperties") is True else rule

    def field_is_required(self, *_: object, **__: object) -> bool:
        return False

    def field_title_should_be_set(self, _: object) -> bool:
        return False


def _texts() -> dict[str, dict[str, str]]:
    """Model -> name of a field -> the text under it in the source."""
    made: dict[str, dict[str, str]] = {}
    for one in ast.parse(inspect.getsource(models)).body:
        if isinstance(one, ast.ClassDef):
            texts = made.setdefault(one.name, {})
            for base in one.bases:
                texts |= made.get(ast.unparse(base), {})
            for field, below in pairwise(one.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        texts[name] = " ".join(text.split())
    return made


@cache
def as_json() -> str:
    """The document as text, ending in a newline."""
    return json_text(document())


def document() -> dict[str, Any]:
    """The document: what one manifest file may hold, overlays included.

    It refuses nothing that fdl accepts. Rules over several keys or files are checked only by fdl.
    """
    made = models.Root.model_json_schema(schema_generator=_Schema)
    texts = _texts()
    for name, rule in (("Root", made), *made["$defs"].items()):
        del rule["title"]
        model = getattr(models, name)
        for field, key in zip(model.model_fields, models.keys(model), strict=True):
            rule["properties"][key]["description"] = texts[name][field]
    below = made.pop("$defs")
    below["Training"]["additionalProperties"] = _SETTINGS
    for scope, key, rule in (
        (made, "schema", _ARGUMENTS),
        (made, "options", _OPTIONS),
        (below["Command"], "options", _OPTIONS),
    ):
        scope["properties"][key]["anyOf"] = [rule, {"type": "null"}]
    below |= {
        "Arguments": _CONTRACT,
        "Item": _ITEMS,
        "Settings": {"description": _DOTTED, **_OPTIONS},
    }
    # An empty file is an empty manifest.
    made["type"] = ["object", "null"]
    return {"$schema": DIALECT, "title": "fdl.yml", **made, "$defs": dict(sorted(below.items()))}
