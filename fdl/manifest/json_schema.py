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
    ARGUMENT_KEYS,
    DOCUMENT_KEYS,
    LIST_TYPES,
    LITERALS,
    MAPPINGS,
    OPTION_KEYS,
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


_OPTIONS = {
    "additionalProperties": {"anyOf": _SETTING},
    "propertyNames": {"pattern": r"^\S*$"},
    "type": "object",
}
_DOTTED = "Settings with dotted names: `optimizer: {lr: 0.1}` is `optimizer.lr`."
_TEXT = {"type": ["string", "null"]}
_WORDS = {"type": ["array", "null"], "items": {"type": "string"}}
_RULES: dict[str, dict[str, Any]] = {
    "text": _TEXT,
    "words": _WORDS,
    "flags": _WORDS,
    "switch": {"type": ["boolean", "null"]},
}


def _mapping(keys: dict[str, tuple[str, str]], **rules: dict[str, Any]) -> dict[str, Any]:
    """A mapping of these keys; ``rules`` are those of the keys without a kind."""
    properties = {
        key: {"description": text, **(_RULES[kind] if kind else rules[key])}
        for key, (kind, text) in keys.items()
    }
    return {"type": "object", "properties": properties, "additionalProperties": False}


_SHARED: dict[str, dict[str, Any]] = {
    "type": {"enum": [*TYPES, *LIST_TYPES]},
    "default": {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}, {"type": "null"}]},
    "choices": {"type": ["array", "null"], "items": _SCALAR},
    "literal": {"enum": [*LITERALS, True, False, None]},
    "mapping": {"enum": [*MAPPINGS, None]},
    "words": {
        "type": ["object", "null"],
        "properties": dict.fromkeys(VALUES, _TEXT),
        "additionalProperties": False,
    },
}
_OPTION = _mapping(
    OPTION_KEYS,
    **_SHARED,
    short={
        "type": ["string", "null"],
        "pattern": f"^[^-=\\s{''.join(sorted(RESERVED_SHORT))}]$",
    },
    nargs={"anyOf": [{"minimum": 1, "type": "integer"}, {"enum": ["*", "+", "?", None]}]},
)
_ARGUMENT = _mapping(ARGUMENT_KEYS, **_SHARED, name={"type": "string", "minLength": 1})
_CONTRACT = _mapping(
    DOCUMENT_KEYS,
    args={"type": ["array", "null"], "items": _ARGUMENT},
    options={
        "type": ["object", "null"],
        "propertyNames": {"not": {"enum": sorted(RESERVED_LONG)}, "pattern": "^[^\\W_][\\w.-]*$"},
        "additionalProperties": _OPTION,
    },
    commands={"type": ["object", "null"], "additionalProperties": _ARGUMENTS},
    style={"enum": [*STYLES, None]},
    collapsed={"type": ["object", "null"], "additionalProperties": _TEXT},
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
