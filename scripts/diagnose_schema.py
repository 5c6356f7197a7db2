"""The JSON Schema of ``fdl diagnose --json``, made from the classes of its document."""

from __future__ import annotations

from typing import Any

from fdl.base.output import json_text
from fdl.machine.report import Report
from fdl.manifest.json_schema import DIALECT


def as_json() -> str:
    """The JSON Schema of ``fdl diagnose --json`` as text, ending in a newline."""
    made = {
        "$schema": DIALECT,
        **_untitled(Report.model_json_schema(mode="serialization")),
        "title": "fdl diagnose --json",
    }
    return json_text(made)


def _untitled(schema: Any) -> Any:
    """A schema without titles that only repeat its keys, and with each text on one line."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if isinstance(schema, dict):
        return {
            key: " ".join(value.split()) if key == "description" else _untitled(value)
            for key, value in schema.items()
            if key != "title" or not isinstance(value, str)
        }
    return schema
