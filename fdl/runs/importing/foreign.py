"""A run of another program: what all formats are read into."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import yaml

from fdl.base.errors import FdlError

if TYPE_CHECKING:
    from pathlib import Path


class UnreadableRunError(FdlError):
    """A run that cannot be imported; other runs can."""


@dataclass(slots=True)
class Curve:
    """One metric: parallel lists in the order of recording.

    Attributes:
        steps: The step of each value, as the other program counts them.
        values: The values; they may be nan or infinite.
        times: Unix time in seconds of each value; nan if it is unknown.
    """

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, step: int, value: float, time: float) -> None:
        """Append one value."""
        self.steps.append(step)
        self.values.append(value)
        self.times.append(time)

    def cleaned(self) -> Curve:
        """The same with rising steps. Of several values of a step the last one counts."""
        steps = self.steps
        if all(a < b for a, b in pairwise(steps)):
            return self
        last = {step: place for place, step in enumerate(steps)}
        places = [last[step] for step in sorted(last)]
        return Curve(
            [steps[place] for place in places],
            [self.values[place] for place in places],
            [self.times[place] for place in places],
        )


@dataclass(slots=True)
class Foreign:
    """A run that another program recorded.

    Attributes:
        format: ``tensorboard``, ``mlflow`` or ``lightning``.
        path: The folder or database that holds it.
        name: What it is called there.
        identity: What tells it from every other run of this format; stays if files are added.
        state: A state of :data:`fdl.runs.run.STATES`.
        started: When it began.
        finished: When it ended, if that is known.
        status: How the other program calls its state; empty if it records none.
        config: Setting -> value.
        origin: Where the settings are recorded.
        environment: Facts about machine and code.
        curves: Metric -> its values.
        tags: Tags, for the notes of a new run directory.
        note: A note, for the same.
        warnings: What could not be read.
    """

    format: str
    path: Path
    name: str
    identity: str
    started: datetime
    state: str = "complete"
    finished: datetime | None = None
    status: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    origin: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    note: str = ""
    warnings: list[str] = field(default_factory=list)


def moment(seconds: float) -> datetime:
    """A Unix time in the local zone; the beginning of 1970 if it is out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC).astimezone()


_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None}
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


def value_of(text: str) -> object:
    """A parameter that was recorded as text: a number or truth value if it spells one."""
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if set(text) & set(".eE") else int(text)


class _Loader(yaml.SafeLoader):
    """Reads YAML that names Python objects, without making them."""


def _plain(loader: _Loader, _suffix: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None


_Loader.add_multi_constructor("", _plain)


def read_yaml(file: Path) -> dict[str, Any]:
    """A mapping from a YAML file; Python objects in it become plain values.

    Raises:
        UnreadableRunError: The file cannot be read, or is not a mapping.
    """
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a safe one
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as problem:
        raise UnreadableRunError(f"{file} cannot be read: {_first_line(problem)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UnreadableRunError(f"{file} is not a mapping")
    return {str(key): value for key, value in content.items()}


def _first_line(problem: Exception) -> str:
    return (str(problem) or type(problem).__name__).partition("\n")[0]
