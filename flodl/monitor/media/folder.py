"""The media of a run as plain files in a folder, with an index."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final, get_args

from fdl.base.files import replace_text, replacing
from flodl.monitor.media.records import Content, Image, MediaKind, MediaRecord, Text
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

    The folder is made with the first record. An existing index is continued: the records of a run
    that was started again in its folder are kept like new ones.

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
        self._continued = False
        self._changed: set[tuple[str, str]] = set()
        self._fresh: dict[Path, MediaRecord] = {}
        self._gone: set[Path] = set()

    def __str__(self) -> str:
        return str(self._folder)

    def media(self, record: MediaRecord) -> None:
        """Keep a record for the next flush."""
        if not self._continued:
            self._continued = True
            for earlier in self._earlier_records():
                self._keep(earlier)
        self._changed.add(record.key)
        self._keep(record)
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

    def _keep(self, record: MediaRecord) -> None:
        """Keep a record, and forget those that are no longer kept."""
        for gone in self._store.add(record):
            self._changed.add(gone.key)
            if (path := self._file(gone)) is not None and self._fresh.pop(path, None) is None:
                self._gone.add(path)

    def _earlier_records(self) -> list[MediaRecord]:
        """What an earlier process recorded; nothing without an index, or with a damaged one."""
        found = []
        try:
            index = json.loads((self._folder / INDEX).read_text(encoding="utf-8"))
            for entry in index["media"]:
                kind, name, forms = entry["kind"], str(entry["name"]), entry["records"]
                if kind not in get_args(MediaKind):
                    return []
                if kind == "histogram":
                    path = self._folder / _histograms(name)
                    forms = json.loads(path.read_text(encoding="utf-8"))
                for form in forms:
                    epoch = None if form["epoch"] is None else int(form["epoch"]) - 1
                    content = _Earlier(form)
                    record = MediaRecord(
                        name, kind, int(form["step"]), epoch, cast("Content", content)
                    )
                    if (file := self._file(record)) is not None and file.exists():
                        content.size = file.stat().st_size
                    found.append(record)
        except (OSError, ValueError, KeyError, TypeError):
            return []  # the next flush replaces it
        return found

    def _write_histograms(self, name: str) -> None:
        path = self._folder / _histograms(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        records = ",\n".join(record.json for record in self._store.of("histogram", name))
        replace_text(path, f"[{records}]\n")

    def _index(self) -> dict[str, Any]:
        return {"version": 1, "media": [self._entry(*key) for key in self._store.names()]}

    def _entry(self, kind: str, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"kind": kind, "name": name}
        if kind == "histogram":
            entry["file"] = _histograms(name)
        entry["records"] = records = []
        for record in self._store.of(kind, name):
            epoch = None if record.epoch is None else record.epoch + 1
            one: dict[str, Any] = {"step": record.step, "epoch": epoch}
            if (path := self._file(record)) is not None:
                one["file"] = path.relative_to(self._folder).as_posix()
                one |= _not_in_file(record)
            records.append(one)
        return entry

    def _file(self, record: MediaRecord) -> Path | None:
        """Path of a record with a file of its own."""
        if record.kind == "histogram":
            return None
        suffix = {"image": "png", "text": "txt"}.get(record.kind, "json")
        # The name and the step may come from an index that somebody else wrote.
        return self._folder / record.kind / path_of(record.name) / f"step-{record.step}.{suffix}"


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


def _not_in_file(record: MediaRecord) -> dict[str, Any]:
    """What only the index says of a record with a file of its own."""
    content: object = record.content
    if isinstance(content, _Earlier):
        return {name: content.form[name] for name in _FACTS if name in content.form}
    if isinstance(content, Text) and content.left_out:
        return {"left_out": content.left_out}
    return content.facts() if isinstance(content, Image) else {}


@dataclass(slots=True)
class _Earlier:
    """What an earlier process recorded: the histogram, or what the index said of a file."""

    form: dict[str, Any]
    size: int = 0
    """Bytes of the file."""

    def as_json(self) -> dict[str, Any]:
        return self.form
