"""Media for a browser: the list, the records of one name, and images."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlencode

from flodl.monitor.media.records import Image, MediaRecord
from flodl.monitor.media.store import MediaStore
from flodl.monitor.records import to_json
from flodl.monitor.server_http import Refused, Request


def media_answer(path: str, request: Request, store: MediaStore) -> tuple[bytes, str]:
    """Return the body and the media type of an answer.

    Raises:
        Refused: There is nothing of that name.
    """
    name = request.query.get("name", [""])[-1]
    if path == "/image.png":
        step = request.whole_number("step")
        for record in store.of("image", name):
            if record.step == step and isinstance(record.content, Image):
                return record.content.png, "image/png"
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no image {name:.80} at step {step}")
    kind = request.query.get("kind", [""])[-1]
    if not kind:
        entries = [_listed(store.of(*key)) for key in store.names()]
        return to_json({"entries": [one for one in entries if one]}).encode(), "application/json"
    records = store.of(kind, name)
    if not records:
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no {kind:.40} {name:.80}")
    body = ",".join(_content(record) for record in records)
    return f'{{"records":[{body}]}}'.encode(), "application/json"


def _listed(records: list[MediaRecord]) -> dict[str, object]:
    if not records:
        return {}
    kind, name = records[0].key
    return {"kind": kind, "name": name, "count": len(records), "step": records[-1].step}


def _content(record: MediaRecord) -> str:
    """Return a record as JSON; an image has an address instead of its pixels."""
    if not isinstance(record.content, Image):
        return record.json
    address = "image.png?" + urlencode({"name": record.name, "step": record.step})
    epoch = None if record.epoch is None else record.epoch + 1
    head = {"step": record.step, "epoch": epoch, "src": address}
    return to_json(head | record.content.facts())
