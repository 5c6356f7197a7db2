"""The media of a run for its page: the list, the records of one name, and images."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fdl.base.files import inside, open_own, read_json
from fdl.runs.pages.server import Answer, Refused, in_json

if TYPE_CHECKING:
    from fdl.runs.pages.server import Request

FOLDER = "media"


def media_answer(run: Path, request: Request) -> Answer:
    """The answer to a request for media.

    Raises:
        Refused: There is nothing of that name.
    """
    entries = _entries(run)
    name = request.text("name")
    if request.path == "/image.png":
        step = request.number("step")
        for record in entries.get(("image", name), {}).get("records", []):
            if record.get("step") == step:
                return Answer(_content(run, record), "image/png")
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no image {name:.80} at step {step}")
    kind = request.text("kind")
    if not kind:
        return in_json({"entries": [_listed(entry) for entry in entries.values()]})
    if (kind, name) not in entries:
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no {kind:.40} {name:.80}")
    entry = entries[kind, name]
    if kind == "histogram":
        return in_json({"records": json.loads(_content(run, entry))})
    return in_json({"records": [_record(run, kind, name, one) for one in entry["records"]]})


def _entries(run: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """What the index lists, by kind and name; an index that is damaged lists nothing."""
    index = read_json(run / FOLDER / "index.json") or {}
    try:
        return {
            (str(one["kind"]), str(one["name"])): one for one in index["media"] if one["records"]
        }
    except (KeyError, TypeError):
        return {}


def _listed(entry: dict[str, Any]) -> dict[str, Any]:
    records = entry["records"]
    newest = records[-1].get("step")
    return {"kind": entry["kind"], "name": entry["name"], "count": len(records), "step": newest}


def _record(run: Path, kind: str, name: str, record: dict[str, Any]) -> dict[str, Any]:
    """One record; an image has an address instead of its pixels."""
    facts = {key: value for key, value in record.items() if key != "file"}
    if kind == "image":
        return facts | {"src": "image.png?" + urlencode({"name": name, "step": record["step"]})}
    content = _content(run, record).decode("utf-8", "replace")
    return facts | ({"text": content} if kind == "text" else json.loads(content))


def _content(run: Path, entry: dict[str, Any]) -> bytes:
    """The file of an entry, which must lie in the folder of media."""
    try:
        with open_own(inside(run / FOLDER, str(entry.get("file")))) as stream:
            return stream.read()
    except OSError:
        raise Refused(HTTPStatus.NOT_FOUND, "the file is gone, or was never written") from None
