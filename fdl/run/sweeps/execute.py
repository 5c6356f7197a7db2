"""Running a sweep: its jobs, its record after each of them, and the comparison at the end."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base import output
from fdl.base.global_flags import Work
from fdl.base.run_record import CONFIG, DIRECTORY_VARIABLE, RECORD
from fdl.base.shell_words import join
from fdl.plan.planner import Host
from fdl.plan.recorded import chosen
from fdl.plan.value import Plan
from fdl.run.jobs.chain import Chain
from fdl.run.jobs.job import DONE, FAILED, STOPPED, Job, Outcome
from fdl.run.jobs.start import chain_of
from fdl.run.sweeps.axis import name_of, points
from fdl.run.sweeps.store import RUNNING, WAITING, Row, Sweep, now
from fdl.run.sweeps.target import Target
from fdl.runs.metrics import Metric, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.cli.prepass import Invocation
    from fdl.manifest.select.project import Project
    from fdl.run.sweeps.request import Request
    from fdl.run.sweeps.search import Search
    from fdl.runs.run import Run

_MOST_COLUMNS = 8
"""Runs that the comparison shows beside each other."""


class Maker:
    """Makes the plans of a sweep.

    Args:
        project: The project.
        request: What is asked.
        invocation: The command line with its global flags.
        place: Where commands run. Runs of a sweep have no terminal.

    Attributes:
        needed: The commands that run once before the sweep.
        target: The command that is swept.
    """

    def __init__(
        self, project: Project, request: Request, invocation: Invocation, place: Host
    ) -> None:
        if request.on:
            from fdl.run.batch.start import away

            place = away(place)
        variables = place.variables
        if request.gpus_each:
            from fdl.run.jobs.devices import DEVICES_VARIABLE, groups

            # Every run sees as many devices as the first one; the pool says which.
            first = groups(request.gpus_each, os.environ)[0]
            variables = {**variables, DEVICES_VARIABLE: first}
        self.project = project
        self._invocation = invocation
        self._place = Host(variables, place.in_container, False, elsewhere=place.elsewhere)
        self.needed = self._chain(request.words)
        plan = self.needed.steps.pop().plan
        self.plans = [*(step.plan for step in self.needed.steps), plan]
        self.target = Target(project, request.words, plan)

    def plan(self, row: Row, folder: Path, resume: Path | None = None) -> Plan:
        """The plan of one run: that of the command line which a user would type for it.

        Raises:
            FdlError: The program has no such setting, or refuses a value.
        """
        words = self.target.words(row.varied, folder, resume)
        # A program that takes the name of a file can write into the directory of the run.
        known = {DIRECTORY_VARIABLE: self.target.inside(folder)}
        return self._chain(words, known).steps[-1].plan

    def words(self, row: Row, folder: Path) -> list[str]:
        """The command line of one run with its global flags, for another machine."""
        from fdl.run.batch.start import words_of

        tokens = self.target.words(row.varied, folder, _resumable(folder))
        return words_of(self._invocation, self.project.env, tokens)

    def _chain(self, words: Sequence[str], more: Mapping[str, str] | None = None) -> Chain:
        place = self._place
        variables = {**place.variables, **(more or {})}
        here = Host(variables, place.in_container, False, elsewhere=place.elsewhere)
        return chain_of(self.project, [words], self._invocation, here)


def begin(project: Project, request: Request, invocation: Invocation, place: Host) -> int:
    """Begin a sweep, or show what it would run; the exit code of the call.

    Raises:
        FdlError: The command, a setting or a value is wrong, or the sweep cannot be written.
    """
    if request.on:
        from fdl.run.batch.start import refuse

        refuse(invocation.work)
    maker = Maker(project, request, invocation, place)
    search = _search(request)
    combinations = [] if search else points(request.axes, side_by_side=request.zip)
    rows = [Row(name_of(one), one) for one in combinations]
    folder, started = maker.target.folder(), now()
    name = request.name or started.partition(".")[0].replace(":", "-")
    # A value that the program refuses ends the sweep before its first run.
    tried = [Row(name_of(one), one) for one in search.corners()] if search else rows
    plans = [maker.plan(row, folder / name / row.name) for row in tried]
    output.warnings(project.untold())
    if invocation.dry_run:
        return _show(tried, plans, request, json=invocation.json)
    settings = {
        **request.record(), "env": project.env, "append": invocation.append, "started": started,
    }  # fmt: skip
    sweep = Sweep.make(folder, name, settings, rows)
    with sweep.alone():
        return Runner(sweep, maker, request, search).run(rows)


def resume(
    sweep: Sweep,
    project: Project,
    request: Request,
    invocation: Invocation,
    place: Host,
    *,
    failed: bool,
) -> int:
    """Run what a sweep has not finished, or show it; the exit code of the call.

    Raises:
        FdlError: Another process runs it, or the command or a setting is wrong.
    """
    maker = Maker(project, request, invocation, place)
    if invocation.dry_run:
        return _show_rest(sweep, _left(sweep, failed=failed), maker, request)
    with sweep.alone():
        # Another process may have changed it before the lock was free.
        sweep = Sweep.read(sweep.path) or sweep
        rows = _left(sweep, failed=failed)
        for row in rows:
            row.state = WAITING
        return Runner(sweep, maker, request, _search(request)).run(rows)


def _left(sweep: Sweep, *, failed: bool) -> list[Row]:
    """What a sweep has not finished, with its failed runs if asked."""
    wanted = (WAITING, RUNNING, STOPPED, *((FAILED,) if failed else ()))
    return [row for row in sweep.rows if row.state in wanted]


def _search(request: Request) -> Search | None:
    if not request.search:
        return None
    from fdl.run.sweeps.search import Search

    return Search(request)


class Runner:
    """Runs some rows of a sweep."""

    def __init__(self, sweep: Sweep, maker: Maker, request: Request, search: Search | None) -> None:
        self._sweep = sweep
        self._maker = maker
        self._request = request
        self._search = search
        self._rows: dict[int, Row] = {}

    def run(self, rows: Sequence[Row]) -> int:
        """Run the rows and, with a search, the trials that remain; the exit code of the call.

        Raises:
            FdlError: A program cannot be started.
        """
        from fdl.run.confirm import confirm_all

        confirm_all(self._maker.plans)
        if self._maker.needed.steps:
            from fdl.run.jobs.execute import run_chain

            code = run_chain(self._maker.needed, Work(), follows=True)
            if code:
                return code
        jobs = [self._job(row) for row in rows]
        if self._search:
            self._search.rebuild(self._sweep)
            count = self._request.trials
            # Optuna chooses the values of a trial when a place is free: it has seen more by then.
            jobs += [
                Job(f"trial {number}", jobs[0].plan if jobs else self._any_plan())
                for number in range(len(self._sweep.rows) + 1, count + 1)
            ]
        if not jobs:
            output.note(f"the sweep {self._sweep.name} has no unfinished runs")
            return 1 if summarize(self._sweep) else 0
        from fdl.run.jobs.pool import exit_code, run_all

        if self._request.on:
            outcomes = self._run_there(jobs)
        else:
            outcomes = run_all(
                jobs,
                at_once=self._request.jobs,
                gpus_each=self._request.gpus_each,
                keep_going=True,
                skips=self._begin,
                ended=self._ended,
            )
        unfinished = summarize(self._sweep)
        return exit_code(outcomes) or (1 if unfinished else 0)

    def _run_there(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Run the jobs on a cluster."""
        from fdl.run.batch.start import run_all

        words = [self._maker.words(self._rows[id(job)], Path(job.directory)) for job in jobs]
        for job in jobs:
            self._begin(job)
        return run_all(jobs, words, at_once=self._request.at_once, ended=self._ended)

    def _any_plan(self) -> Plan:
        """A plan to hold the place of a trial whose values are not chosen yet."""
        row = Row("trial", self._search.corners()[0] if self._search else {})
        return self._maker.plan(row, self._sweep.directory(row))

    def _job(self, row: Row, job: Job | None = None) -> Job:
        """The job of a row; with ``job``, that job takes the row's plan."""
        folder = self._sweep.directory(row)
        plan = self._maker.plan(row, folder, _resumable(folder))
        plan.record = chosen(plan, str(folder), row.varied)
        made = Job(row.name, plan, str(folder), row.varied)
        if job is not None:
            vars(job).update(vars(made))
        self._rows[id(job or made)] = row
        return job or made

    def _begin(self, job: Job) -> str:
        if id(job) not in self._rows and self._search:
            number = len(self._sweep.rows) + 1
            point = self._search.ask(number)
            row = Row(name_of(point, number), point)
            self._sweep.rows.append(row)
            self._job(row, job)
        row = self._rows[id(job)]
        row.state, row.code, row.seconds = RUNNING, None, 0.0
        folder = self._sweep.directory(row)
        folder.mkdir(parents=True, exist_ok=True)
        # The run begins again.
        for name in (RECORD, CONFIG):
            (folder / name).unlink(missing_ok=True)
        self._sweep.save()
        return ""

    def _ended(self, outcome: Outcome) -> None:
        row = self._rows.get(id(outcome.job))
        if row is None or outcome.code is None:
            return
        folder = self._sweep.directory(row)
        run = _newest(folder)
        row.state, row.code, row.seconds = outcome.state, outcome.code, outcome.seconds
        if run and outcome.code == 0 and outcome.state in (DONE, STOPPED):
            # The record knows better than the exit code: a program may catch a signal and end with
            # 0, before its work is done or after it.
            row.state = {"interrupted": STOPPED, "complete": DONE}.get(run.state, row.state)
        self._sweep.save()
        if self._search:
            self._search.tell(row, _newest(folder))


def _newest(folder: Path) -> Run | None:
    from fdl.runs.find import search

    return next(iter(search([folder])), None)


def _resumable(folder: Path) -> Path | None:
    """The interrupted run in a folder, if its program takes ``resume``."""
    run = _newest(folder)
    if run is None or not run.is_resumable:
        return None
    config = read_json(run.path / "config.json") or {}
    return run.path if "resume" in config else None


def summarize(sweep: Sweep) -> int:
    """Compare the runs of a sweep on stdout; the number of those that are not done."""
    from fdl.runs.describe import Comparison

    found = sweep.runs()
    names = list(found)
    goal = Metric.parse(sweep.settings["goal"]) if sweep.settings["goal"] else None
    if goal:
        last = {name: run.metrics.last().get(goal.name) for name, run in found.items()}
        ranked = {name: goal.order(value) for name, value in last.items() if value is not None}
        names.sort(key=lambda name: ranked.get(name, goal.order(math.nan)))
    shown = names[:_MOST_COLUMNS]
    if len(shown) > 1:
        comparison = Comparison(
            [found[name] for name in shown], shown, without=("output", "resume")
        )
        output.show(comparison.page())
    if len(shown) < len(names):
        which = "best" if goal else "first"
        output.note(
            f"the table has the {which} {len(shown)} of {len(names)} runs; "
            f"`fdl sweep show {sweep.name}` lists all"
        )
    if goal and names and names[0] in ranked:
        output.note(f"best {goal.name}: {last[names[0]]} of {names[0]}")
    return _report(sweep)


def _report(sweep: Sweep) -> int:
    total, failed = len(sweep.rows), sweep.count(FAILED)
    unfinished = total - sweep.count(DONE) - failed
    output.note(f"sweep {sweep.name}: {sweep.count(DONE)} of {total} runs done")
    if failed:
        output.error(f"{failed} of {total} runs failed", f"fdl sweep resume {sweep.name} --failed")
    if unfinished:
        output.error(
            f"{unfinished} of {total} runs are not finished", f"fdl sweep resume {sweep.name}"
        )
    return failed + unfinished


def _show_rest(sweep: Sweep, rows: Sequence[Row], maker: Maker, request: Request) -> int:
    """Print the command lines of the runs that are left, and how many trials are not chosen yet."""
    plans = []
    for row in rows:
        folder = sweep.directory(row)
        plans.append(maker.plan(row, folder, _resumable(folder)))
    more = request.trials - len(sweep.rows) if request.search else 0
    heading = f"{more} more trials by {request.search}\n" if more else ""
    if not rows and not more:
        output.note(f"the sweep {sweep.name} has no unfinished runs")
    text = heading + _command_lines(rows, plans)
    output.write(sys.stdout, text)
    return 0


def _show(rows: Sequence[Row], plans: Sequence[Plan], request: Request, *, json: bool) -> int:
    """Print the command line of every run."""
    if json:
        from fdl.plan import dry_run

        text = dry_run.several_as_json(plans, asked=0)
    else:
        heading = ""
        if request.search:
            heading = f"{request.trials} trials by {request.search}; the ends of their ranges:\n"
        text = heading + _command_lines(rows, plans)
    output.write(sys.stdout, text)
    return 0


def _command_lines(rows: Sequence[Row], plans: Sequence[Plan]) -> str:
    """The name of every run, and its command line below it."""
    from fdl.plan.redaction import redacted

    return "".join(
        f"{row.name}\n  {join(redacted(plan).launch)}\n"
        for row, plan in zip(rows, plans, strict=True)
    )
