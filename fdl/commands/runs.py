"""``fdl runs``: list, look into, compare, watch and clear away what trainings leave behind."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fdl import output
from fdl.errors import FdlError, UsageError
from fdl.run_directory.find import by_metric, choose, folders, search, shortened, unmeasured
from fdl.run_directory.metrics import Metric
from fdl.run_directory.run import LOG, METRICS, REPORT, RUNNING

if TYPE_CHECKING:
    from fdl.app import Call
    from fdl.run_directory.run import Run

SCHEMA_VERSION = 1


def list_(call: Call) -> int:
    """Print one line per run, newest first, or best first.

    Raises:
        FdlError: The manifest is broken, a folder is missing, or no run measured the metric.
    """
    from fdl.run_directory.clean import require_state
    from fdl.run_directory.describe import as_json
    from fdl.run_directory.text import listing

    state = require_state(call.args.state) if call.args.state else None
    places = _places(call)
    runs = [run for run in search(places) if state in (None, run.state)]
    metric = Metric.parse(call.args.best) if call.args.best else None
    if metric and runs:
        ranked = by_metric(metric, runs)
        if not ranked:
            raise unmeasured(metric, runs)
        runs = ranked
    if call.args.json:
        return _print_json({"runs": [as_json(run) for run in runs]})
    if not runs:
        shown = ", ".join(str(shortened(place)) for place in places)
        output.note(f"there are no runs{f' in state {state}' if state else ''} in {shown}")
    output.write(sys.stdout, listing(runs, output.palette(sys.stdout), metric))
    return 0


def show(call: Call) -> int:
    """Print everything about one run.

    Raises:
        FdlError: The word means no run, or the run cannot be read.
    """
    from fdl.run_directory.describe import as_json, page

    run = _chosen(call)
    if call.args.json:
        return _print_json(as_json(run, whole=True))
    output.write(sys.stdout, page(run, output.palette(sys.stdout)))
    return 0


def compare(call: Call) -> int:
    """Print what tells several runs apart.

    Raises:
        FdlError: A word means no run, or there are not two different ones.
    """
    from fdl.run_directory.describe import Comparison, require_several

    places = _folders(call)
    runs = [choose(word, places) for word in call.args.runs]
    require_several(runs)
    comparison = Comparison(runs)
    if call.args.json:
        return _print_json(comparison.as_json())
    output.write(sys.stdout, comparison.page(output.palette(sys.stdout)))
    return 0


def open_(call: Call) -> int:
    """Show a run's report in the browser; where there is none, print its path.

    Raises:
        FdlError: The word means no run, or the run has no report.
    """
    run = _chosen(call)
    report = run.path / REPORT
    if not report.is_file():
        if run.epochs:
            why = "it was removed, or never written"
        else:
            running = run.state == RUNNING
            why = "its first epoch is not over" if running else "no epoch was finished"
        raise FdlError(
            f"{shortened(run.path)} has no {REPORT}: {why}",
            hint=f"fdl runs show {run.name}",
        )
    from fdl.run_directory.browser import show

    path = report.resolve()
    if call.args.print or not show(path, os.environ):
        output.write(sys.stdout, f"{path}\n")
    return 0


def tail(call: Call) -> int:
    """Print the last lines of a run's log or metrics; with ``--follow`` until the run ends.

    Returns:
        0; of a run that was followed, 1 when it did not complete.

    Raises:
        FdlError: The word means no run.
    """
    from fdl.run_directory.follow import follow, last_lines
    from fdl.run_directory.run import read
    from fdl.run_directory.text import printable

    run = _chosen(call)
    file = run.path / (METRICS if call.args.metrics else LOG)
    if call.args.lines < 0:
        raise UsageError(f"--lines takes 0 or more, not {call.args.lines}")
    watched = call.args.follow
    lines = follow(run, file, call.args.lines) if watched else last_lines(file, call.args.lines)
    for line in lines:
        output.write(sys.stdout, f"{printable(line)}\n")
        sys.stdout.flush()
    if not watched:
        return 0
    ended = read(run.path)
    state = ended.state if ended else "removed"
    output.note(f"{shortened(run.path)}: {state}")
    return 0 if state == "complete" else 1


def clean(call: Call) -> int:
    """List the runs that would go with their sizes, ask, and remove them.

    Returns:
        0; 1 when nobody agreed.

    Raises:
        FdlError: Nothing says which runs go, or one cannot be removed.
    """
    from fdl.run_directory.clean import Rule

    args = call.args
    rule = Rule(args.keep, args.older_than, args.state)
    runs = rule.choose(search(_places(call)), datetime.now().astimezone())
    if not runs:
        output.note("no run goes")
        return 0
    _list_sizes(runs)
    if call.dry_run:
        return 0
    if not call.yes and not _agreed(len(runs)):
        output.note("nothing was removed; --yes removes without asking")
        return 1
    return _remove(runs)


def _list_sizes(runs: list[Run]) -> None:
    from fdl.run_directory.text import printable, size, table

    sizes = [run.bytes for run in runs]
    rows = [
        (printable(str(shortened(run.path))), run.state, size(count))
        for run, count in zip(runs, sizes, strict=True)
    ]
    rows.append((_counted(len(runs)), "", size(sum(sizes))))
    output.write(sys.stdout, "".join(f"{line}\n" for line in table(rows)))


def _agreed(count: int) -> bool:
    from fdl.terminal import ask

    answer = ask(f"remove {_counted(count)}? [y/N] ")
    return (answer or "").lower() in ("y", "yes")


def _remove(runs: list[Run]) -> int:
    from fdl.run_directory.clean import remove

    code = removed = 0
    for run in runs:
        try:
            if remove(run):
                removed += 1
            else:
                output.warning(f"{shortened(run.path)} stays: it has changed since it was listed")
        except FdlError as problem:
            output.error(problem.message, problem.hint)
            code = 1
    output.note(f"removed {_counted(removed)}")
    return code


def _counted(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _chosen(call: Call) -> Run:
    return choose(call.args.run or "last", _folders(call))


def _places(call: Call) -> list[Path]:
    """The folders that were named, else those of the project.

    Raises:
        UsageError: One of them does not exist.
    """
    named = [Path(text) for text in call.args.path]
    for place in named:
        if not place.is_dir():
            raise UsageError(f"{place} is no folder", hint="name a run or a folder of runs")
    return named or _folders(call)


def _folders(call: Call) -> list[Path]:
    """The folders of runs of the project around here, or the usual one."""
    from fdl.project import locate

    return folders(call.project() if locate() else None)


def _print_json(document: dict[str, object]) -> int:
    text = json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=2, ensure_ascii=False)
    output.write(sys.stdout, f"{text}\n")
    return 0
