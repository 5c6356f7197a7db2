"""The media of a run as plain files in a folder, with an index."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from fdl.base.files import replace_text, replacing
from flodl.monitor.media.records import Image, MediaRecord, Text
from flodl.monitor.media.store import KEPT, MOST_BYTES, MediaStore
from flodl.monitor.records import Finish
from flodl.monitor.sinks import Sink

INDEX = "index.json"
_UNSAFE = re.compile(r"[^A-Za-z0-9._ -]")
_LONGEST_PART = 80
_FACTS = ("width", "height", "count", "left_out")


@final
class MediaFolderSink(Sink):
    """Writes each record as a file, and removes those that are no longer kept.

    ========================================  ==================================================
    ``image/NAME/step-300.png``               an image, or a grid of images
    ``text/NAME/step-300.txt``                a text sample
    ``KIND/NAME/step-300.json``               a table, confusion matrix, ROC or PR curve
    ``histogram/NAME.json``                   the histograms of one name: a list, by rising step
    ``index.json``                            what there is: kind, name, and steps with their files
    ========================================  ==================================================

    The folder is made with the first record. An existing index is continued: a run that was started
    again in its folder loses nothing.

    Args:
        folder: Folder of the media of this run only.
        kept: Most records of one name; see :class:`MediaStore`.
        most_bytes: Most bytes of all records.
    """

    flush_seconds = 1.0

    def __init__(
        self, folder: str | os.PathLike[str], *, kept: int = KEPT, most_bytes: int = MOST_BYTES
    ) -> None:
        self._folder = Path(folder)
        self._store = MediaStore(kept, most_bytes)
        self._earlier: dict[tuple[str, str], list[dict[str, Any]]] | None = None
        self._changed: set[tuple[str, str]] = set()
        self._fresh: dict[Path, MediaRecord] = {}
        self._gone: set[Path] = set()

    def __str__(self) -> str:
        return str(self._folder)

    def media(self, record: MediaRecord) -> None:
        """Keep a record for the next flush."""
        if self._earlier is None:
            self._earlier = _read_index(self._folder)
        self._changed.add(record.key)
        self._replace_earlier(record)
        for gone in self._store.add(record):
            self._changed.add(gone.key)
            if (path := self._file(gone)) is not None and self._fresh.pop(path, None) is None:
                self._gone.add(path)
        if (path := self._file(record)) is not None:
            self._fresh[path] = record
            self._gone.discard(path)

    def flush(self) -> None:
        """Write the files that have changed, then the index."""
        if not self._changed:
            return
        for path, record in self._fresh.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(_content(record))
        for kind, name in self._changed:
            if kind == "histogram":
                self._write_histograms(name)
        replace_text(self._folder / INDEX, json.dumps(self._index(), indent=1, ensure_ascii=False))
        # Last, so that the index never names a file that is missing.
        for path in self._gone:
            with suppress(OSError):
                path.unlink()
        self._fresh.clear()
        self._gone.clear()
        self._changed.clear()

    def finish(self, summary: Finish) -> None:  # noqa: ARG002 - only media are written
        """Write the rest."""
        self.flush()

    def _replace_earlier(self, record: MediaRecord) -> None:
        """Forget what an interrupted run recorded from this step on."""
        earlier = (self._earlier or {}).get(record.key, [])
        left = [one for one in earlier if one["step"] < record.step]
        if len(left) < len(earlier) and self._earlier is not None:
            # The index may come from elsewhere, so the names in it are not believed.
            paths = {self._place(*record.key, one["step"]) for one in earlier if one not in left}
            self._gone |= {path for path in paths if path is not None}
            self._earlier[record.key] = left

    def _write_histograms(self, name: str) -> None:
        earlier = [json.dumps(one) for one in (self._earlier or {}).get(("histogram", name), [])]
        fresh = [record.json for record in self._store.of("histogram", name)]
        path = self._folder / _histograms(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, "[" + ",\n".join([*earlier, *fresh]) + "]\n")

    def _index(self) -> dict[str, Any]:
        keys = dict.fromkeys([*(self._earlier or {}), *self._store.names()])
        return {"version": 1, "media": [self._entry(kind, name) for kind, name in keys]}

    def _entry(self, kind: str, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"kind": kind, "name": name}
        if kind == "histogram":
            entry["file"] = _histograms(name)
        entry["records"] = [
            {key: one[key] for key in ("step", "epoch", "file", *_FACTS) if key in one}
            for one in (self._earlier or {}).get((kind, name), [])
        ]
        for record in self._store.of(kind, name):
            epoch = None if record.epoch is None else record.epoch + 1
            one: dict[str, Any] = {"step": record.step, "epoch": epoch}
            if (path := self._file(record)) is not None:
                one["file"] = path.relative_to(self._folder).as_posix()
            # What the file itself does not say.
            if isinstance(record.content, Image):
                one |= record.content.facts()
            elif isinstance(record.content, Text) and record.content.left_out:
                one["left_out"] = record.content.left_out
            entry["records"].append(one)
        return entry

    def _file(self, record: MediaRecord) -> Path | None:
        """Path of a record with a file of its own."""
        return self._place(record.kind, record.name, record.step)

    def _place(self, kind: str, name: str, step: int) -> Path | None:
        if kind == "histogram":
            return None
        suffix = {"image": "png", "text": "txt"}.get(kind, "json")
        return self._folder / kind / path_of(name) / f"step-{int(step)}.{suffix}"


def path_of(name: str) -> str:
    """Return a relative path for a name, safe on every file system; different for each name."""
    parts = []
    for part in name.split("/"):
        safe = _UNSAFE.sub("_", part)[:_LONGEST_PART].strip(". ") or "_"
        parts.append(safe)
    path = "/".join(parts)
    if path == name and name == name.lower():
        return path
    # Two names may become one path here, or on a disk that does not tell upper case from lower.
    return f"{path}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def _histograms(name: str) -> str:
    return f"histogram/{path_of(name)}.json"


def _content(record: MediaRecord) -> bytes:
    if isinstance(record.content, Image):
        return record.content.png
    if isinstance(record.content, Text):
        return record.content.text.encode("utf-8", "backslashreplace")
    return record.json.encode() + b"\n"


def _read_index(folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return what an earlier process recorded; for histograms with their values."""
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        found = {}
        for entry in index["media"]:
            records = list(entry["records"])
            if "file" in entry:
                file = folder / _histograms(entry["name"])
                records = json.loads(file.read_text(encoding="utf-8"))
            found[entry["kind"], entry["name"]] = records
        return found
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # no index, or a damaged one, which the next flush replaces
