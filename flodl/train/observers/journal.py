"""``acts.jsonl`` of a run directory: what changed the course of a training while it ran.

People act with ``fdl runs tell`` or on the live page, and guards of the training act by themselves.
docs/reference/run-record.md describes the file; ``fdl`` reads it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, final

from fdl.base.files import append_text
from flodl import log

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from flodl.train.run.run_directory import RunDirectory

NAME = "acts.jsonl"
REPLAYED = ("lr", "set", "lower_lr")
"""The acts that a resumed training does again."""


@final
@dataclass(frozen=True, slots=True)
class Act:
    """One act on a training.

    Attributes:
        step: Complete optimizer steps when it took effect; the step after them is the first one
            that it can change. With several ranks, those of rank 0.
        time: Local time with its offset, in ISO format.
        act: What was done. People can do ``lr``, ``set``, ``checkpoint``, ``pause``, ``continue``
            and ``stop``. Guards can do ``rewind``, ``skip``, ``lower_lr`` and ``give_up``. Other
            names are allowed.
        key: Name of the setting; empty for other acts.
        value: The new value, a JSON value.
        old: The value before, a JSON value.
        by: The user, or ``guard``.
        detail: More about it, for people.
    """

    step: int
    time: str
    act: str
    key: str = ""
    value: Any = None
    old: Any = None
    by: str = ""
    detail: str = ""

    @classmethod
    def now(
        cls,
        step: int,
        act: str,
        key: str = "",
        value: Any = None,
        old: Any = None,
        by: str = "",
        detail: str = "",
    ) -> Self:
        """Return an act of this moment; the arguments are its attributes."""
        time = datetime.now().astimezone().isoformat(timespec="seconds")
        return cls(step, time, act, key, value, old, by, detail)

    @property
    def is_replayed(self) -> bool:
        """Whether a resumed training does it again."""
        return self.act in REPLAYED

    @property
    def assignment(self) -> str:
        """What a person types for it: ``lr=0.1``, ``beta=2``."""
        return f"{self.key or 'lr'}={self.value}"

    @property
    def line(self) -> str:
        """The act as one line for people: ``lr 0.1 -> 0.01, by ada``."""
        change = "" if self.value is None else f" {self.value}"
        if change and self.old is not None:
            change = f" {self.old} ->{change}"
        key = f" {self.key}" if self.key else ""
        by = f", by {self.by}" if self.by else ""
        return f"{self.act}{key}{change}{by}{f': {self.detail}' if self.detail else ''}"

    def replayed(self, run: str) -> Act:
        """Return it as the journal of a run has it that continues another run."""
        return replace(self, detail=self.detail or f"replayed from {run}")

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form: all attributes that are not empty."""
        form = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in form.items() if value is not None and value != ""}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Self:
        """Read the result of :meth:`as_json`; entries with unknown names are ignored.

        Raises:
            ValueError: It has no step, or no name of the act.
        """
        try:
            texts = {name: str(form.get(name, "")) for name in ("time", "key", "by", "detail")}
            values: dict[str, Any] = {name: form.get(name) for name in ("value", "old")}
            return cls(step=int(form["step"]), act=str(form["act"]), **texts, **values)
        except (KeyError, TypeError, AttributeError) as problem:
            raise ValueError(f"not an act: {problem}") from problem


@final
class Journal:
    """The file; each act is one line of JSON. Threads may share an object.

    Args:
        path: Path of the file; made by the first act. None records nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = Lock()

    def record(self, act: Act) -> None:
        """Add an act at the end; a cut last line of a killed process is removed first.

        Raises:
            OSError: The file cannot be written; it is as before.
        """
        if self._path is None:
            return
        line = json.dumps(act.as_json(), ensure_ascii=False, separators=(",", ":")) + "\n"
        with self._lock:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                _cut_to_lines(descriptor)
            finally:
                os.close(descriptor)
            append_text(self._path, line)

    def note(self, act: Act) -> None:
        """Add an act; a failure is a warning, because the training is more important."""
        try:
            self.record(act)
        except OSError as failure:
            log.warning(f"{NAME} cannot be written: {failure}; the training continues")

    @staticmethod
    def of_run(run: RunDirectory | None) -> Journal:
        """Return the journal of a run directory; without one that this rank writes, of nothing."""
        return Journal(run.path / NAME if run is not None and run.writes else None)

    @classmethod
    def beside(cls, source: Path | None) -> list[Act]:
        """Return the acts of the run that has a checkpoint; a failure is a warning."""
        if source is None:
            return []
        try:
            return cls.read(source.parent / NAME)
        except OSError as failure:
            log.warning(f"{source.parent / NAME} cannot be read: {failure}")
            return []

    @staticmethod
    def read(path: Path) -> list[Act]:
        """Return the acts in a file, in their order; none without a file.

        Lines that are not acts are left out, such as a cut last line.

        Raises:
            OSError: The file cannot be read.
        """
        try:
            text = path.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return []
        acts = []
        for line in text.split("\n")[:-1]:
            try:
                acts.append(Act.from_json(json.loads(line)))
            except ValueError:
                continue
        return acts


def _cut_to_lines(descriptor: int) -> None:
    """Remove what follows the last line end of a file."""
    size = end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - 4096)
        os.lseek(descriptor, start, os.SEEK_SET)
        found = os.read(descriptor, end - start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
