"""The page of 500 runs, beside those of TensorBoard, Aim, trackio and MLflow.

Every tool gets the same runs, settings and losses, written by its own library in an environment of
its own below ``--peers``, which is made at the first use. A real browser opens its page with cold
and with warm files. The first curve is there when the first chart has coloured pixels. fdl also
shows runs of full length.

Rows are kept as JSON beside the page, so one command per tool builds the page:

    python -m benchmarks.runs_page --only fdl --output docs/benchmarks/runs_page.md
    python -m benchmarks.runs_page --only MLflow --output docs/benchmarks/runs_page.md

Writing the runs of a tool can take longer than opening its page. ``--write --stores FOLDER`` only
writes them, for later calls with the same folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import (
    Bar,
    command_line,
    end_on_sigterm,
    in_turns,
    page,
    publish,
    read_options,
    table,
)
from benchmarks.rows import Kept, Row
from benchmarks.runs_page_browser import Opening, forget, open_page
from benchmarks.runs_page_features import features
from benchmarks.runs_page_subjects import (
    SUBJECTS,
    Store,
    Subject,
    environment_of,
    version_of,
    written,
)
from fdl.base.cache_folder import cache_folder
from tests.browser.chromium import Browser, find

FULL_POINTS = 100_000
FULL = "fdl, full length"
BARS = {"fdl": Bar(1.5), FULL: Bar(2.0)}

MISSING: Row = {"why": "not run yet"}

# A tool that fails gives a row that says why. The other tools are measured nevertheless.
FAILURES = (TimeoutError, AssertionError, OSError, subprocess.SubprocessError)


def why(error: BaseException) -> str:
    """The reason that a row gives, on one line."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"its writer did not end within {error.timeout:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        return f"its program ended with code {error.returncode}"
    if isinstance(error, TimeoutError):
        return f"waited in vain for: {error}"
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].replace("|", "/")[:120]


def row_of(pairs: Sequence[tuple[Opening, Opening]], store: Store, version: str) -> Row:
    """The figures of a subject, from its openings with cold and with warm files.

    Args:
        pairs: The two openings of every round.
        store: The written runs.
        version: Name and version of the tool.
    """
    openings = [one for pair in pairs for one in pair]
    return {
        "version": version,
        "cold": statistics.median(cold.curve for cold, _ in pairs),
        "warm": statistics.median(warm.curve for _, warm in pairs),
        "server": statistics.median(one.server for one in openings),
        "page": statistics.median(one.page for one in openings),
        "clicks": openings[-1].clicks,
        "more": openings[-1].more,
        "written": store.seconds,
        "size": sum(file.stat().st_size for file in store.folder.rglob("*") if file.is_file()),
        "note": f"written at a load of {store.load:.1f}",
    }


class Prepared(NamedTuple):
    """A tool that is installed and has its runs."""

    subject: Subject
    programs: Path
    store: Store


def prepare(
    options: argparse.Namespace, stores: Path
) -> tuple[dict[str, Prepared], dict[str, Row]]:
    """Install the chosen tools and write their runs.

    Returns:
        The tools, and a row with the reason for each one that failed.
    """
    prepared: dict[str, Prepared] = {}
    failed: dict[str, Row] = {}
    for name in options.only or SUBJECTS:
        subject = SUBJECTS[name]
        points = options.full_points if name == FULL else options.points
        try:
            programs = environment_of(subject.tool, options.peers)
            store = written(subject.tool, programs, stores, options.runs, points)
            prepared[name] = Prepared(subject, programs, store)
        except FAILURES as error:
            failed[name] = {"version": subject.tool, "why": why(error)}
    return prepared, failed


def measured(options: argparse.Namespace, home: Path) -> dict[str, Row]:
    """Write the runs of every tool, and open the pages in turns.

    Returns:
        A row of figures for each subject; of one that failed, a row with ``why``.
    """
    prepared, rows = prepare(options, options.stores or home / "stores")
    binary = find()
    if binary is None:
        raise SystemExit("a Chromium is needed on the PATH")

    failed: dict[str, str] = {}

    def once(name: str) -> tuple[Opening, Opening] | str:
        if name in failed:
            return failed[name]  # another round would wait as long for nothing
        subject, programs, store = prepared[name]
        cache = home / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        forget(store.folder)
        browser = Browser(binary, home / f"profile-{subject.tool}")
        try:
            taken = (subject, programs, store.folder, cache)
            return open_page(browser, *taken), open_page(browser, *taken)
        except FAILURES as error:
            failed[name] = why(error)
            return failed[name]
        finally:
            browser.close()

    found = in_turns(list(prepared), once, options.rounds, warmup=0) if prepared else {}
    for name, results in found.items():
        subject, programs, store = prepared[name]
        version = version_of(subject.tool, programs)
        pairs = [one for one in results if not isinstance(one, str)]
        if len(pairs) < len(results):
            reason = next(one for one in results if isinstance(one, str))
            rows[name] = {"version": version, "why": reason, "written": store.seconds}
        else:
            rows[name] = row_of(pairs, store, version)
    return rows


def together(options: argparse.Namespace, rows: Mapping[str, Row]) -> dict[str, Row]:
    """These rows, and those of earlier calls beside the page, which are renewed."""
    about = {
        "runs": options.runs,
        "points": options.points,
        "rounds": options.rounds,
        "date": date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1),
    }
    kept = Kept.beside(options.output)
    for name, row in rows.items():
        points = options.full_points if name == FULL else options.points
        kept.rows[name] = {**about, **row, "points": points}
    kept.write()
    return {name: kept.rows.get(name, MISSING) for name in SUBJECTS}


def figures_of(rows: Mapping[str, Row]) -> list[list[str]]:
    """The table of figures."""
    cells = []
    for name, row in rows.items():
        if "why" in row:
            cells.append([name, f"not measured: {row['why']}", *[""] * (len(HEADER) - 2)])
            continue
        bar = BARS[name].verdict(row["cold"]) if name in BARS else ""
        more = "not found" if row["more"] is None else str(row["more"])
        cells.append(
            [
                name,
                f"{row['cold']:.1f}",
                bar,
                f"{row['warm']:.1f}",
                f"{row['server']:.0f}",
                f"{row['page']:.0f}",
                str(row["clicks"]),
                more,
                f"{row['written']:.0f}",
                f"{row['size'] / 1e6:.0f}",
            ]
        )
    return cells


def conditions_of(rows: Mapping[str, Row]) -> list[list[str]]:
    """The table of versions and conditions; rows may come from several calls."""
    return [
        [
            name,
            row["version"],
            f"{row['runs']} × {row['points']:,}",
            str(row["rounds"]),
            f"{row['load']:.1f}",
            row["date"],
            row.get("note", ""),
        ]
        for name, row in rows.items()
        if row is not MISSING
    ]


HEADER = (
    "tool", "cold: s to the first curve", "bar", "warm: s", "server MiB", "page MiB",
    "clicks to the first curve", "clicks to the settings", "s to write", "MB on disk",
)  # fmt: skip
CONDITIONS = ("tool", "version", "runs × steps", "rounds", "load", "date", "note")


def only_write(options: argparse.Namespace) -> None:
    """Write the runs of the chosen tools for later calls, and print how long that took."""
    prepared, failed = prepare(options, options.stores)
    for name, one in prepared.items():
        print(f"{name}: {one.store.seconds:.0f} s")
    for name, row in failed.items():
        print(f"{name}: {row['why']}")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("runs_page", __doc__, rounds=3)
    parser.add_argument("--runs", type=int, default=500, help="default: %(default)s")
    parser.add_argument("--points", type=int, default=1000, help="steps of each run")
    parser.add_argument("--full-points", type=int, default=FULL_POINTS, help="of fdl alone")
    parser.add_argument(
        "--assemble", action="store_true", help="measure nothing; write the page from kept rows"
    )
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="measure only these")
    parser.add_argument(
        "--peers",
        type=Path,
        default=cache_folder() / "benchmark-peers",
        help="folder of the environments of the other tools (default: %(default)s)",
    )
    parser.add_argument(
        "--stores", type=Path, help="keep the written runs in this folder for later calls"
    )
    parser.add_argument("--write", action="store_true", help="only write the runs; needs --stores")
    options = read_options(parser, argv, rounds=1, runs=12, points=50, full_points=2000)
    if options.write:
        if options.stores is None:
            parser.error("--write keeps the runs in a folder; add --stores FOLDER")
        only_write(options)
        return
    if not options.quick:  # the rows of the page come from several calls
        options.command = "python -m benchmarks.runs_page --assemble"
    rows: dict[str, Row] = {}
    if not options.assemble:
        end_on_sigterm()
        with tempfile.TemporaryDirectory() as home:
            rows = measured(options, Path(home))
    known = together(options, rows)
    text = page(
        options,
        "The page of many runs, beside other tools",
        "Medians of the rounds. The second table has the conditions of every row.",
        table(HEADER, figures_of(known)),
        table(CONDITIONS, conditions_of(known)),
        NOTES,
        features(),
        packages=(),
    )
    publish(text, options.output)


NOTES = """\
Cold: the content of all files was taken out of the system's cache, and the cache of fdl was empty.
Warm is the opening after it. The time begins with the start of the server, and includes it. A curve
is there when the first chart of the page has coloured pixels in a real Chromium. The clock stops at
the picture that shows them, before they are counted.

Server: memory of all its processes. Page: the heap of its JavaScript after a garbage collection.
Clicks to the settings count from the page with curves. They end when the page names all settings
and shows a value of one, or that its values are mixed. Scrolling is not counted.
TensorBoard selects no run if there are more than 40, so one click selects all. MLflow draws the
first 10 runs unless you ask for more. The address of Aim's page names the metric, so no click is
needed before the first curve.

The stores of the other tools are written in one process by their own libraries: TensorBoard by its
event writer, Aim by `Run.track`, MLflow by `MlflowClient.log_batch` into SQLite. trackio is written
by `SQLiteStorage.bulk_log`, which its CSV import also calls.

The files of fdl also hold configuration with origins, metrics by epoch and reports. The other tools
get the loss and the settings."""


if __name__ == "__main__":
    main()
