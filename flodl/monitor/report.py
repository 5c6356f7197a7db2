"""The report of a run: one HTML file that needs nothing but a browser."""

from __future__ import annotations

import functools
import html
import os
from datetime import datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import final

from flodl.files import replace_text
from flodl.monitor.records import EpochRecord, Finish, RunInfo, to_json

# In the order in which they build on each other.
_SCRIPTS = ("format.js", "model.js", "scale.js", "chart.js", "view.js", "main.js")


@final
class HtmlSink:
    """Keeps a report page up to date while training runs, and completes it at the end.

    Args:
        path: File to write; an older one is replaced, missing folders are made.
        refresh_seconds: Least time between two versions of the page during training.
    """

    def __init__(self, path: str | os.PathLike[str], *, refresh_seconds: float = 10.0) -> None:
        self.flush_seconds = refresh_seconds
        self._path = Path(path)
        self._info: RunInfo | None = None
        # Each record is encoded once; a version of the page joins them.
        self._records: list[str] = []
        self._finish: Finish | None = None

    def __str__(self) -> str:
        return str(self._path)

    def open(self, info: RunInfo) -> None:
        """Take the facts shown around the curves."""
        if self._info is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._info = info

    def record(self, record: EpochRecord) -> None:
        """Take one epoch for the next version of the page."""
        self._records.append(to_json(record.as_json()))

    def flush(self) -> None:
        """Write the page."""
        if self._info is not None:
            replace_text(self._path, _render(self._info, self._records, self._finish))

    def finish(self, summary: Finish) -> None:
        """Write the page for good."""
        self._finish = summary
        self.flush()


def _render(info: RunInfo, records: list[str], finish: Finish | None) -> str:
    written = datetime.now().astimezone().isoformat(timespec="seconds")
    data = (
        f'{{"info":{to_json(info.as_json())},"records":[{",".join(records)}],'
        f'"finish":{to_json(finish.as_json() if finish else None)},"written":{to_json(written)}}}'
    )
    title = " · ".join(part for part in (info.label or "Training run", info.run) if part)
    return _shell().substitute(title=html.escape(title), data=data)


@functools.cache
def _shell() -> Template:
    """Return the page with style and scripts in place; open are ``$title`` and ``$data``."""
    page = resources.files(__package__) / "page"
    read = functools.partial(_escaped, page)
    scripts = "\n".join(f"<script>\n{read(name)}</script>" for name in _SCRIPTS)
    shell = Template((page / "report.html").read_text(encoding="utf-8"))
    return Template(shell.safe_substitute(style=read("report.css"), scripts=scripts))


def _escaped(page: resources.abc.Traversable, name: str) -> str:
    """Return a page file's text, its dollar signs kept from being taken for places to fill."""
    return (page / name).read_text(encoding="utf-8").replace("$", "$$")
