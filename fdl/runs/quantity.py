"""The facts, metrics and settings of runs by name, as ``--where``, ``--sort`` and others use them.

===================  =============================================================================
``val_loss``         the last value of a metric
``best:val_loss``    its best value of all epochs; ``best:margin:max`` sets the direction
``min(val_loss)``    its lowest value of all epochs; ``max(val_loss)`` is the highest
``lr``               a setting of the configuration
``state``            a fact of the run, see :data:`FACTS`; a fact hides a metric of the same name
===================  =============================================================================

``last:NAME`` always means a metric, ``config.NAME`` always a setting. A name may stand in
backquotes, and in a list a name with a comma must.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from fdl.base.errors import UsageError
from fdl.runs.metrics import BEST_OF, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fdl.runs.run import Run

FACT, LAST, BEST, LEAST, MOST, SETTING = "fact", "last", "best", "min", "max", "config"

_OWN = ("lr", "grad_norm")
"""Metrics that the Trainer records by itself. A setting of the same name is meant more often."""

_OF_THE_START = ("live", "resume", "output", "dir")
"""Settings that say how a run was started and not what it trained; they are shown last."""

_FUNCTION = re.compile(r"(min|max)\s*\((.+)\)")
_LISTED = re.compile(r"(?:`[^`]*`|[^,])+")


def _age(run: Run) -> float | None:
    return (datetime.now().astimezone() - run.started).total_seconds() if run.started else None


FACTS: dict[str, Callable[[Run], object]] = {
    "name": lambda run: run.name,
    "title": lambda run: run.title,
    "path": lambda run: str(run.path),
    "state": lambda run: run.state,
    "tags": lambda run: run.notes.tags,
    "note": lambda run: run.notes.note or None,
    "started": lambda run: run.started,
    "finished": lambda run: run.finished,
    "age": _age,
    "seconds": lambda run: run.seconds,
    "epochs": lambda run: run.epochs,
    "error": lambda run: run.error or None,
    "resumed_from": lambda run: run.resumed_from or None,
    "imported_from": lambda run: run.imported_from or None,
}
"""Name -> the fact of a run. ``seconds`` and ``age`` are in seconds, times know their zone."""

DATES = ("started", "finished")
NUMBERS = ("age", "seconds", "epochs")


def unquoted(text: str) -> str:
    """A name without the backquotes around it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == "`" else text


def quoted(name: str) -> str:
    """A name in backquotes; without them if it has some itself."""
    return name if "`" in name else f"`{name}`"


def listed(text: str) -> list[str]:
    """Names that are separated by commas; a name with a comma stands in backquotes."""
    return [word for part in _LISTED.findall(text) if (word := part.strip())]


class Quantity(NamedTuple):
    """One value that every run may have.

    Attributes:
        spelling: What the user typed.
        kind: One of ``fact``, ``last``, ``best``, ``min``, ``max`` and ``config``.
        name: The fact, metric or setting.
        higher: Of ``best``: whether higher values are better.
    """

    spelling: str
    kind: str
    name: str
    higher: bool = False

    def value(self, run: Run) -> object:
        """The value of a run: number, text, date, tuple of tags, or JSON data; None if missing."""
        if self.kind == FACT:
            return FACTS[self.name](run)
        if self.kind == SETTING:
            return values(run).get(self.name)
        if self.kind == LAST:
            return run.metrics.latest().get(self.name)
        best = run.metrics.best(Metric(self.name, self.higher))
        return best.value if best else None

    @property
    def is_metric(self) -> bool:
        """Whether it is measured: its values are floats."""
        return self.kind not in (FACT, SETTING)

    @property
    def is_number(self) -> bool:
        """Whether every value of it is a number."""
        return self.is_metric or (self.kind == FACT and self.name in NUMBERS)

    @property
    def is_date(self) -> bool:
        """Whether every value of it is a date."""
        return self.kind == FACT and self.name in DATES


def values(run: Run) -> dict[str, object]:
    """The settings of a run without their origins; empty if its configuration is damaged."""
    return {name: one.value for name, one in run.settings.items()}


class Known:
    """The names that some runs know.

    Args:
        runs: The runs.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    @cached_property
    def metrics(self) -> dict[str, None]:
        """The metrics of all runs, in the order of their tables."""
        return dict.fromkeys(name for run in self._runs for name in run.metrics.names)

    @cached_property
    def settings(self) -> dict[str, None]:
        """The settings of all runs."""
        return dict.fromkeys(name for run in self._runs for name in run.settings)

    @cached_property
    def differing(self) -> list[str]:
        """The settings of which the runs have several values; those of the training first."""
        seen: dict[str, set[str]] = {}
        for run in self._runs:
            for name, one in run.settings.items():
                seen.setdefault(name, set()).add(repr(one.value))
        differing = [name for name, found in seen.items() if len(found) > 1]
        return sorted(differing, key=lambda name: name.rpartition(".")[2] in _OF_THE_START)

    def resolve(self, text: str) -> Quantity:
        """What a name means.

        Raises:
            UsageError: No run knows it, or it is both a metric and a setting.
        """
        text = unquoted(text)
        if text in FACTS:
            return Quantity(text, FACT, text)
        called = _FUNCTION.fullmatch(text)
        if called:
            kind = called[1]
            return Quantity(text, kind, self._metric(unquoted(called[2].strip())), kind == MOST)
        if text.startswith("last:"):
            return Quantity(text, LAST, self._metric(text.removeprefix("last:")))
        if text.startswith(BEST_OF):
            return self._best(text)
        if text.startswith("config."):
            return self._setting(text)
        both = text in self.metrics and text in self.settings
        if both and text not in _OWN:
            raise UsageError(
                f"`{text}` is both a metric and a setting",
                hint=f"write `last:{text}` or `config.{text}`",
            )
        if text in self.settings:
            return Quantity(text, SETTING, text)
        if text in self.metrics:
            return Quantity(text, LAST, text)
        raise unknown(text, "metric, setting or fact", [*self.metrics, *self.settings, *FACTS])

    def _best(self, text: str) -> Quantity:
        metric = Metric.parse(text.removeprefix(BEST_OF))
        return Quantity(text, BEST, self._metric(metric.name), metric.higher)

    def _metric(self, name: str) -> str:
        if name not in self.metrics:
            raise unknown(name, "metric", self.metrics)
        return name

    def _setting(self, text: str) -> Quantity:
        name = text.removeprefix("config.")
        # A setting may itself be called config.lr.
        found = [one for one in (text, name) if one in self.settings]
        if not found:
            raise unknown(name, "setting", self.settings)
        return Quantity(text, SETTING, found[-1])


def unknown(name: str, what: str, names: Iterable[str]) -> UsageError:
    """The error that no run knows a name."""
    from fdl.base.suggest import nearest

    # A metric and a setting may have one name, such as `lr`.
    listed = list(dict.fromkeys(names))
    close = nearest(name, listed)
    known = f"known are {', '.join(listed)}" if listed else f"the runs have no {what}"
    hint = f"did you mean `{close}`?" if close else known
    return UsageError(f"no run has the {what} `{name}`", hint=hint)
