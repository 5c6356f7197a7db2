"""How long it takes to list 10,000 runs: with `fdl runs list`, and on the page of many runs.

The runs are written once. Each round lists them with cold files and an empty cache of fdl, and
then with warm ones. The page has listed them when a real browser shows its table and knows all
runs. It reads their settings and metrics afterwards, which has a row of its own.

    python -m benchmarks.runs_listed --output docs/benchmarks/runs_listed.md
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.many_runs import make_runs
from benchmarks.measure import (
    Bar,
    command_line,
    end_on_sigterm,
    in_turns,
    page,
    publish,
    read_options,
    spread,
    table,
)
from benchmarks.runs_page_browser import answers, environment_for, forget, server, until
from benchmarks.runs_page_subjects import SUBJECTS, environment_of
from tests.browser.chromium import Browser, find

BAR = Bar(2.0)
LISTED = """(() => {
  if (window.page?.runs?.all.length !== %d) return false;
  return document.querySelector(".runs tbody [data-id]") !== null;
})()"""
READ = "!page.source.isReading"
COMMAND, PAGE, VALUES = "`fdl runs list`", "the page", "the page, with all values"


def listed_by_command(programs: Path, runs: Path, cache: Path) -> dict[str, float]:
    """Seconds of `fdl runs list`."""
    began = time.perf_counter()
    subprocess.run(
        [programs / "fdl", "runs", "list", runs],
        env=environment_for(programs, cache),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return {COMMAND: time.perf_counter() - began}


def listed_on_page(
    browser: Browser, count: int, programs: Path, runs: Path, cache: Path
) -> dict[str, float]:
    """Seconds from the start of the server until its page lists all runs, and has read them."""
    browser.open("about:blank")
    began = time.perf_counter()
    with server(SUBJECTS["fdl"], programs, runs, cache) as (address, _):
        until(lambda: answers(address), "the server answers", pause=0.02)
        browser.call("Page.navigate", url=address)
        browser.wait_for(LISTED % count, 120)
        listed = time.perf_counter() - began
        browser.wait_for(READ, 120)
        read = time.perf_counter() - began
        browser.open("about:blank")
    return {PAGE: listed, VALUES: read}


Seconds = Mapping[str, float]
"""By the name of a row."""


def measured(options: argparse.Namespace, home: Path) -> list[tuple[Seconds, Seconds]]:
    """Seconds with cold and with warm files, of each round and way."""
    binary = find()
    if binary is None:
        raise SystemExit("a Chromium is needed on the PATH")
    runs, programs = home / "runs", environment_of("fdl", home)
    make_runs(runs, options.runs, options.points)
    browser = Browser(binary, home / "profile")
    ways: Mapping[str, Callable[[Path, Path, Path], Seconds]] = {
        COMMAND: listed_by_command,
        PAGE: partial(listed_on_page, browser, options.runs),
    }

    def once(name: str) -> tuple[Seconds, Seconds]:
        cache = home / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        forget(runs)
        return ways[name](programs, runs, cache), ways[name](programs, runs, cache)

    try:
        rounds = in_turns(list(ways), once, options.rounds, warmup=0)
    finally:
        browser.close()
    return [pair for pairs in rounds.values() for pair in pairs]


def figures(pairs: Sequence[tuple[Seconds, Seconds]]) -> list[list[str]]:
    """A row for each way, with cold and with warm files."""
    rows = []
    for name in (COMMAND, PAGE, VALUES):
        for place, files in enumerate(("cold", "warm")):
            taken = [pair[place][name] for pair in pairs if name in pair[place]]
            middle = statistics.median(taken)
            rows.append([name, files, f"{middle:.2f}", spread(taken), BAR.verdict(middle)])
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and publish."""
    parser = command_line("runs_listed", __doc__, rounds=3)
    parser.add_argument("--runs", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--points", type=int, default=100, help="steps of each run")
    options = read_options(parser, argv, rounds=1, runs=12, points=50)
    end_on_sigterm()
    with tempfile.TemporaryDirectory() as home:
        rows = figures(measured(options, Path(home)))
    text = page(
        options,
        f"{options.runs:,} runs listed",
        f"Medians of {options.rounds} rounds; {options.points} steps and 20 epochs per run.",
        table(("listed by", "files", "seconds", "spread", "bar"), rows),
        "Cold: the content of all files was taken out of the system's cache, and the cache of fdl "
        "was empty. Warm is the listing after it. The time begins with the start of the program. "
        "It ends with the program, or when Chromium shows the table and knows all runs, with their "
        "names, states and times. Settings and metrics follow: the last rows end when the page has "
        "all of them. Before 29 November 2026 the page listed no run before it was read.",
        packages=("flodl",),
    )
    publish(text, options.output)


if __name__ == "__main__":
    main()
