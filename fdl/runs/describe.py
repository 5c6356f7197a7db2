"""All facts about one run, and the differences between several runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from fdl.base.errors import FdlError
from fdl.base.run_record import RESUME, without_resume
from fdl.base.secrets import REDACTED
from fdl.base.shell_words import join
from fdl.base.tables import headed, table
from fdl.base.units import (
    duration,
    format_duration,
    format_metric as number,
    in_json,
    printable,
    size_text,
)
from fdl.runs import acts
from fdl.runs.find import shortened
from fdl.runs.metrics import Metric
from fdl.runs.quantity import FACTS, plain
from fdl.runs.run import Setting, settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Group
    from rich.table import Table

    from fdl.runs.metrics import Best
    from fdl.runs.run import Run


def best_value(run: Run, metric: Metric) -> str:
    """The best value of a metric with its epoch; empty if the run did not measure it."""
    best = run.metrics.best(metric)
    return f"{number(best.value)} ({run.metrics.unit} {best.epoch})" if best else ""


def epochs(run: Run) -> str:
    """The number of epochs; empty if none are known."""
    return (
        "" if run.problem or (run.metrics.unit != "epoch" and not run.epochs) else str(run.epochs)
    )


def measured(metrics: Mapping[str, float]) -> str:
    """Metrics in one line."""
    return "  ".join(f"{name}={number(value)}" for name, value in metrics.items())


_ABSENT = "-"
_BEST_MARK = "*"
_LONGEST = 60
_SUMMARY = (
    "name", "title", "path", "state", "started", "finished", "seconds", "epochs", "resumed_from",
    "imported_from", "tags", "note", "error",
)  # fmt: skip


def environment(run: Run) -> dict[str, object]:
    """The environment that the run depended on: dotted name -> value.

    An empty mapping adds nothing.
    """
    return dict(_flat(run.environment()))


def environment_to_compare(run: Run) -> dict[str, object]:
    """The same, without how an engine came to its decision: one line ``engine`` has the result."""
    found = environment(run)
    kept = {name: value for name, value in found.items() if not name.startswith("engine.")}
    chosen, stretches = found.get("engine.engine"), found.get("engine.stretches")
    if chosen is None:
        return kept
    last = stretches[-1] if isinstance(stretches, list) and stretches else None
    steps = last[-1] if isinstance(last, list) and last else None
    return {**kept, "engine": f"{chosen}, {steps}" if steps else chosen}


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def as_json(run: Run, *, whole: bool = False) -> dict[str, object]:
    """A run as JSON data; ``whole`` adds configuration, environment and files."""
    summary = {name: FACTS[name](run) for name in _SUMMARY}
    # As they are recorded.
    summary |= {name: run.record.get(name) for name in ("started", "finished", "imported_from")}
    summary["tags"] = list(run.notes.tags)
    summary["metrics"] = {name: in_json(value) for name, value in run.last_metrics.items()}
    if whole:
        summary["best"] = {
            name: _best_json(best, run.metrics.unit)
            for name in run.metrics.names
            if (metric := Metric.parse(name)).has_best and (best := run.metrics.best(metric))
        }
        summary["config"] = {name: one._asdict() for name, one in settings(run).items()}
        summary["acts"] = acts.read_acts(run)
        summary["environment"] = run.environment()
        summary["files"] = dict(run.files())
    return summary


def _best_json(best: Best, unit: str) -> dict[str, object]:
    return {"value": in_json(best.value), unit: best.epoch}


def page(run: Run, resume: str = "") -> Group:
    """All facts about a run, in sections; ``resume`` is the command that continues it."""
    pid = run.record.get("pid")
    is_live = run.state == "running" and isinstance(pid, int)
    facts = [
        ("name", run.title if run.title != run.name else ""),
        ("path", str(shortened(run.path))),
        ("state", f"{run.state} (process {pid})" if is_live else run.state),
        ("started", str(run.record["started"])),
        ("finished", str(run.record.get("finished") or "")),
        ("time", duration(run.seconds)),
        ("epochs", epochs(run)),
        ("tags", ", ".join(run.notes.tags)),
        ("note", run.notes.note),
        ("resumed from", run.resumed_from),
        ("imported from", run.imported_from),
        ("error", run.error),
        ("resume with", resume),
    ]
    config = [(name, shown(one.value), one.origin) for name, one in settings(run).items()]
    facts_of_machine = environment(run).items()
    rows = [(name, _measured(name, value)) for name, value in facts_of_machine if value != ""]
    files = [(name, size_text(count)) for name, count in run.files()]
    sections: list[tuple[str, Sequence[tuple[str, ...]], Sequence[int]]] = [
        ("", [fact for fact in facts if fact[1]], ()),
        ("Metrics:", _metric_rows(run), (1,)),
        ("Acts while it trained:", acts.rows(run), ()),
        ("Configuration:", config, ()),
        ("Environment:", rows, ()),
        ("Files:", files, (1,)),
    ]
    return headed(
        (title, table([tuple(map(printable, row)) for row in found], right=right, wrap=(1,)))
        for title, found, right in sections
        if found
    )


def how_to_resume(run: Run, project: str) -> str:
    """The command line that continues a run; the option alone if its record does not say enough.

    Args:
        run: A run that can be continued.
        project: The root of the project around the working directory; empty if there is none.
    """
    typed = run.record.get("typed")
    words = [str(word) for word in typed] if isinstance(typed, list) else []
    by_fdl = words[:1] == ["fdl"]
    folder = run.record.get("project_root" if by_fdl else "cwd")
    told = isinstance(folder, str) and not any(REDACTED in word for word in words)
    if not words or not told or "resume" not in run.settings:
        return f"{RESUME} {shortened(run.path)}"
    home, path = Path(str(folder)).resolve(), run.path.resolve()
    root = Path(project).resolve()
    if by_fdl and project and path.is_relative_to(root) and not path.is_relative_to(home):
        home = root  # the project was moved or copied
    if not home.is_dir():
        return f"{RESUME} {shortened(run.path)}"
    place = path.relative_to(home) if path.is_relative_to(home) else path
    line = join([*without_resume(words), RESUME, str(place)])
    here = project if by_fdl else "."
    return line if here and Path(here).resolve() == home else f"cd {join([str(home)])} && {line}"


def _measured(name: str, value: object) -> str:
    """A fact about a machine; its memory in words."""
    if isinstance(value, int) and name.rpartition(".")[2] == "memory":
        return size_text(value)
    return shown(value)


def _metric_rows(run: Run) -> list[tuple[str, ...]]:
    last = run.last_metrics
    rows: list[tuple[str, ...]] = []
    for name in run.metrics.names:
        metric = Metric.parse(name)
        best = best_value(run, metric) if metric.has_best else None
        now = number(last[name]) if name in last else _ABSENT
        rows.append((name, now, f"best {best}" if best else ""))
    return rows


def shown(value: object) -> str:
    """A recorded value as one short text; a setting with its origin."""
    if isinstance(value, Setting):
        return f"{shown(value.value)}  {value.origin}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class Comparison:
    """The differences between several runs.

    Attributes:
        runs: The runs, in the order of the columns.
        config: Configuration that differs: name -> one setting per run, None if a run has none.
        environment: The same for the environment, with plain values.
        metrics: Metric that has a best value -> one per run, None if a run has none.

    Args:
        runs: The runs.
        names: What the columns are called, if not by the runs' own names.
        without: Configuration that is not compared.
    """

    def __init__(
        self, runs: Sequence[Run], names: Sequence[str] = (), without: Sequence[str] = ()
    ) -> None:
        self.runs = runs
        self._names = names or names_of(runs)
        differing = changed([settings(run) for run in runs])
        self.config = {name: row for name, row in differing.items() if name not in without}
        self.environment = changed([environment_to_compare(run) for run in runs])
        measured = dict.fromkeys(name for run in runs for name in run.metrics.names)
        parsed = {name: Metric.parse(name) for name in measured}
        self.metrics = {
            name: [run.metrics.best(metric) for run in runs]
            for name, metric in parsed.items()
            if metric.has_best
        }

    def winners(self, name: str) -> list[int]:
        """The positions of the runs that have the best value of a metric."""
        metric = Metric.parse(name)
        ranks = [metric.order(best.value) if best else None for best in self.metrics[name]]
        known = [rank for rank in ranks if rank is not None]
        # A single value has nothing to win against, and nan or infinity wins against nothing.
        if not known[1:] or min(known) == metric.order(math.nan):
            return []
        return [place for place, rank in enumerate(ranks) if rank == min(known)]

    def as_json(self) -> dict[str, object]:
        """The comparison as JSON data."""
        return {
            "runs": [as_json(run) for run in self.runs],
            "config": {
                name: [one._asdict() if one else None for one in row]
                for name, row in self.config.items()
            },
            "environment": {name: list(row) for name, row in self.environment.items()},
            "metrics": {
                name: {
                    "values": [
                        _best_json(best, run.metrics.unit) if best else None
                        for run, best in zip(self.runs, row, strict=True)
                    ],
                    "best": self.winners(name),
                }
                for name, row in self.metrics.items()
            },
        }

    def page(self) -> Table:
        """The comparison as one table; a ``*`` marks the best value of each metric."""
        rows: list[tuple[str | Text, ...]] = [
            ("state", *(run.state for run in self.runs)),
            ("epochs", *(epochs(run) for run in self.runs)),
            ("time", *(duration(run.seconds) for run in self.runs)),
        ]
        for name in ("tags", "note"):
            cells = [printable(plain(getattr(run.notes, name))) for run in self.runs]
            rows += [(name, *cells)] if any(cells) else []
        sections = [
            ("Metrics, best of all epochs", [self._metric_row(name) for name in self.metrics]),
            ("Configuration that differs", [_row(*item) for item in self.config.items()]),
            ("Environment that differs", [_row(*item) for item in self.environment.items()]),
        ]
        missing = [""] * len(self.runs)
        for title, body in sections:
            if body:
                rows += [("", *missing), (Text(f"{title}:", style="bold"), *missing), *body]
        heads = ["", *map(printable, self._names)]
        return table(rows, heads, wrap=range(len(heads)))

    def _metric_row(self, name: str) -> tuple[str, ...]:
        winners = self.winners(name)
        cells = [
            f"{number(best.value)} @{best.epoch}{_BEST_MARK if place in winners else ''}"
            if best
            else _ABSENT
            for place, best in enumerate(self.metrics[name])
        ]
        return (printable(name), *cells)


def names_of(runs: Sequence[Run]) -> list[str]:
    """The title of each run; its folder's name where several have one title, else its path."""
    titles = Counter(run.title for run in runs)
    folders = Counter(run.name for run in runs)
    found = []
    for run in runs:
        name = run.name if folders[run.name] == 1 else str(shortened(run.path))
        found.append(run.title if titles[run.title] == 1 else name)
    return [printable(name) for name in found]


def _row(name: str, values: Sequence[object]) -> tuple[str, ...]:
    cells = [_ABSENT if value is None else shown(value) for value in values]
    return (printable(name), *map(printable, cells))


def changed(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The names whose values differ between runs. A different origin alone does not count."""
    names = dict.fromkeys(name for record in records for name in record)
    found = {}
    for name in names:
        row = [record.get(name) for record in records]
        plain = [one.value if isinstance(one, Setting) else one for one in row]
        absent = [name not in record for record in records]
        if any(value != plain[0] for value in plain) or any(absent):
            found[name] = row
    return found


def require_several(runs: Sequence[Run]) -> None:
    """Refuse a comparison of a run with itself.

    Raises:
        FdlError: There are fewer than two different runs.
    """
    if len(runs) < 2:
        raise FdlError(
            "a comparison takes two or more different runs", hint="fdl runs compare RUN RUN"
        )
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise FdlError(
            "two of these names mean the same run", hint="`fdl runs list` prints all names"
        )


def rehearsal_page(result: Mapping[str, Any]) -> Group:
    """What a training will need: the phases, then the estimates.

    Args:
        result: The document that the Trainer wrote.
    """
    rows = [
        (str(one["name"]), format_duration(one["seconds"]), size_text(int(one["peak_bytes"])))
        for one in result["phases"]
    ]
    sections = [
        ("Rehearsed:", table(_facts(result), wrap=(1,))),
        ("Phases, last step:", table([("", "time", "peak memory"), *rows], right=(1, 2))),
        ("Estimates:", table(_estimates(result), wrap=(1,))),
    ]
    if gpu := result.get("gpu"):
        sections.append((f"On {gpu['name']}, predicted:", table(_gpu(gpu), wrap=(1,))))
    if result.get("failed_in"):
        failure = [(f"in {result['failed_in']}", printable(str(result["error"])))]
        sections.insert(0, ("Failed:", table(failure, wrap=(1,))))
    return headed([one for one in sections if rows or one[0] in ("Failed:", "Rehearsed:")])


def _facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    size, batches = result["batch_size"], result["batches"]
    each = f"{size} samples" if size is not None else "made by the data"
    return [
        ("device", printable(str(result["device"]))),
        ("parameters", f"{result['parameters']:,}"),
        ("batches", f"{each}; {result['largest']}"),
        ("epoch", f"{batches:,} batches" if batches is not None else "its length is unknown"),
    ]


def _estimates(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("memory", f"{size_text(result['peak_bytes'])} of {size_text(result['available_bytes'])}")
    ]
    rows.append(("largest batch size", _largest(result)))
    if result["epoch_seconds"] is not None:
        rows.append(("time per epoch", f"about {duration(result['epoch_seconds'])}"))
        total = duration(result["total_seconds"])
        rows.append((f"{result['epochs']} epochs", f"about {total}"))
    if result["run_bytes"] is not None:
        rows.append(("run directory", f"about {size_text(result['run_bytes'])}"))
    return rows


def _gpu(gpu: Mapping[str, Any]) -> list[tuple[str, str]]:
    parts = ("parameter", "gradient", "optimizer", "activation")
    sizes = ", ".join(f"{name}s {size_text(gpu[f'{name}_bytes'])}" for name in parts)
    verdict = "fits" if gpu["fits"] else "does not fit surely into 90 % of it"
    most = gpu["largest_batch_size"]
    return [
        (
            "memory",
            f"{size_text(gpu['needed_bytes'])} of {size_text(gpu['total_bytes'])}: {verdict}",
        ),
        ("parts", sizes.replace("optimizers", "optimizer")),
        ("batch that fits", "unknown" if most is None else f"{most:,} samples, perhaps more"),
    ]


def _largest(result: Mapping[str, Any]) -> str:
    largest, size, batches = (
        result[name] for name in ("largest_batch_size", "batch_size", "batches")
    )
    if largest is None:
        return "unknown: a step needs little memory"
    if batches is not None and largest >= size * batches:
        return "the whole data set fits"
    return f"about {largest:,} samples, in 90 % of the memory"
