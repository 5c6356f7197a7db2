"""Running a sweep: its runs, its record after each of them, and the comparison at the end."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base import output
from fdl.base.errors import UsageError
from fdl.base.run_record import CONFIG, DIRECTORY_VARIABLE, RECORD
from fdl.base.shell_words import join
from fdl.plan.dry_run import several_as_json
from fdl.plan.recorded import chosen
from fdl.plan.redaction import redacted
from fdl.plan.value import Plan
from fdl.programs.schema import known
from fdl.run.batch.slurm import away, refuse, refuse_array, words_of
from fdl.run.chain import steps_of, with_gpus
from fdl.run.execute import confirm, execute
from fdl.run.step import DONE, FAILED, STOPPED, Outcome, Step, Where
from fdl.run.sweeps.request import Request, name_of, of_flags, points, take_flags
from fdl.run.sweeps.search import Search
from fdl.run.sweeps.store import RUNNING, WAITING, Row, Sweep, find, now
from fdl.run.sweeps.target import Target
from fdl.runs.describe import Comparison
from fdl.runs.find import newest
from fdl.runs.metrics import Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.base.global_flags import Work
    from fdl.manifest.select.project import Project
    from fdl.plan.planner import Host

_MOST_COLUMNS = 8
"""Runs that the comparison shows beside each other."""

_ENDS = {"complete": DONE, "failed": FAILED, "diverged": FAILED}
"""How a run has ended by its record -> how it stands in its sweep."""


def without_flags(
    project: Project, words: Sequence[str], work: Work
) -> tuple[list[str], Work, Request | None]:
    """The words of a command without the flags of a sweep, all flags, and the sweep they ask for.

    A flag that the program has itself stays among the words.

    Raises:
        UsageError: The flags do not fit together.
    """
    names = [word for word in words if not word.startswith("-")]
    schema = known(project.descend(names)[0])
    declared = [
        one for option in (schema.options.values() if schema else ()) for one in option.spellings
    ]
    left, work = take_flags(words, work, declared)
    return left, work, of_flags(left, work) if work.wants_sweep() else None


class Runs:
    """The runs of a sweep: what is planned, begun and recorded.

    Attributes:
        launch: What a run starts, without what varies and without secrets.

    Args:
        project: The project.
        request: What is asked.
        place: Where commands run. Runs of a sweep have no terminal.

    Raises:
        FdlError: The command is not one that runs, or cannot run there.
    """

    def __init__(self, project: Project, request: Request, place: Host) -> None:
        work = request.work
        if work.hosts:
            raise UsageError(
                "a sweep runs on this machine or on a cluster, not on hosts",
                hint="fdl --on slurm COMMAND --each …, or leave out `--on`",
            )
        if work.on:
            refuse(work, sweep=True)
            place = away(place)
        self._project = project
        self._request = request
        self._place = with_gpus(place.replaced(terminal=False), work.gpus_each)
        self._steps = steps_of(project, request.words, self._place)
        if work.on:
            refuse_array(self._steps[-1].plan)
        self._rows: dict[int, Row] = {}
        self.launch = redacted(self._steps[-1].plan).launch
        self.target = Target(project, request.words, self._steps[-1].plan)
        self.search: Search | None = None
        if work.search:
            self.search = Search(request)

    def plan(self, row: Row, folder: Path) -> Plan:
        """The plan of one run: that of the command line which a user would type for it.

        Raises:
            FdlError: The program has no such setting, or refuses a value.
        """
        words = self._words(row, folder)
        # A program that takes the name of a file can write into the directory of the run.
        known = {**self._place.variables, DIRECTORY_VARIABLE: self.target.inside(folder)}
        return steps_of(self._project, words, self._place.replaced(variables=known))[-1].plan

    def _words(self, row: Row, folder: Path) -> list[str]:
        return self.target.words(row.varied, folder, _resumable(folder))

    def carry_out(self, sweep: Sweep, rows: Sequence[Row]) -> int:
        """Run rows of a sweep and, with a search, the trials that remain; the exit code.

        Raises:
            FdlError: A program cannot be started.
        """
        work, self._sweep = self._request.work, sweep
        confirm([step.plan for step in self._steps if step.plan.confirm])
        needed = self._steps[:-1]
        if needed and (code := execute(needed, Where(follows=True, agreed=True))):
            return code
        steps = [self._step(row) for row in rows]
        if self.search:
            self.search.rebuild(sweep)
            # Optuna chooses the values of a trial when a place is free: it has seen more by then.
            steps += [
                Step(steps[0].plan if steps else self._any_plan(), label=f"trial {number}")
                for number in range(len(sweep.rows) + 1, work.trials + 1)
            ]
        if not steps:
            output.note(f"the sweep {sweep.name} has no unfinished runs")
            return 1 if summarize(sweep) else 0
        where = Where(work.on, work.jobs or 0, work.gpus_each, keep_going=True, agreed=True)
        code = execute(steps, where, self)
        unfinished = summarize(sweep)
        return code or (1 if unfinished else 0)

    def _any_plan(self) -> Plan:
        """A plan to hold the place of a trial whose values are not chosen yet."""
        row = Row("trial", self.search.corners()[0] if self.search else {})
        return self.plan(row, self._sweep.directory(row))

    def _step(self, row: Row, step: Step | None = None) -> Step:
        """The step of a row; with ``step``, that one takes the row's plan."""
        folder = self._sweep.directory(row)
        plan = self.plan(row, folder)
        plan.record = chosen(plan, str(folder), row.varied)
        made = Step(plan, label=row.name, directory=str(folder), varied=row.varied)
        if self._request.work.on:
            env, forced = self._project.env, self._request.work.force
            made.words = words_of(self._words(row, folder), env, self._place, forced=forced)
        if step is not None:
            vars(step).update(vars(made))
        self._rows[id(step or made)] = row
        return step or made

    def begin(self, step: Step) -> str:
        """Choose the values of a trial, and make the directory of a run."""
        if id(step) not in self._rows and self.search:
            number = len(self._sweep.rows) + 1
            point = self.search.ask(number)
            row = Row(name_of(point, number), point)
            self._sweep.rows.append(row)
            self._step(row, step)
        row = self._rows[id(step)]
        row.state, row.code, row.seconds = RUNNING, None, 0.0
        folder = self._sweep.directory(row)
        folder.mkdir(parents=True, exist_ok=True)
        # The run begins again. One that can be continued still can if it cannot be started now.
        for name in (RECORD, CONFIG) if _resumable(folder) is None else ():
            (folder / name).unlink(missing_ok=True)
        self._sweep.save()
        return ""

    def ended(self, outcome: Outcome) -> None:
        """Record how a run ended."""
        row = self._rows.get(id(outcome.step))
        if row is None or outcome.code is None:
            return
        run = newest(self._sweep.directory(row))
        row.state, row.code, row.seconds = outcome.state, outcome.code, outcome.seconds
        if run and outcome.code == 0 and outcome.state in (DONE, STOPPED):
            # The record knows better than the exit code: a program may catch a signal and end with
            # 0, before its work is done or after it.
            row.state = {"interrupted": STOPPED, "complete": DONE}.get(run.state, row.state)
        self._sweep.save()
        if self.search:
            self.search.tell(row, run)


def begin(
    project: Project, request: Request, place: Host, *, dry_run: bool, as_json: bool = False
) -> int:
    """Begin a sweep, or show what it would run; the exit code of the call.

    Raises:
        FdlError: The command, a setting or a value is wrong, or the sweep cannot be written.
    """
    work = request.work
    runs = Runs(project, request, place)
    search = runs.search
    rows = _rows(request)
    former = None if work.force else _former(project, request, runs, place, rows)
    if former is not None:
        output.note(
            f"the sweep {former.name} has {len(former.rows)} of these runs already; "
            "`fdl --force …` begins a new one"
        )
        return _finish(former, request, runs, failed=False, dry_run=dry_run, as_json=as_json)
    folder, started = runs.target.folder(), now()
    name = request.name or started.partition(".")[0].replace(":", "-")
    # A value that the program refuses ends the sweep before its first run.
    tried = [Row(name_of(one), one) for one in search.corners()] if search else rows
    plans = [runs.plan(row, folder / name / row.name) for row in tried]
    output.warnings(project.untold())
    if dry_run:
        heading = ""
        if search:
            heading = f"{work.trials} trials by {work.search}; the ends of their ranges:\n"
        return _show(tried, plans, heading, as_json=as_json)
    settings = {
        **request.record(), "env": project.env, "append": place.append, "started": started,
        "launch": runs.launch,
    }  # fmt: skip
    sweep = Sweep.make(folder, name, settings, rows)
    with sweep.alone():
        return runs.carry_out(sweep, rows)


def resume(
    sweep: Sweep, project: Project, request: Request, place: Host, *, failed: bool, dry_run: bool
) -> int:
    """Run what a sweep lacks of a request, or show it; the exit code of the call.

    Raises:
        FdlError: Another process runs it, or the command or a setting is wrong.
    """
    runs = Runs(project, request, place)
    if sweep.settings.get("launch", runs.launch) != runs.launch:
        output.warning(
            f"the command of the sweep {sweep.name} has changed since it began",
            f"its first runs had: {' '.join(sweep.settings['launch'])}",
        )
    return _finish(sweep, request, runs, failed=failed, dry_run=dry_run)


def _finish(
    sweep: Sweep,
    request: Request,
    runs: Runs,
    *,
    failed: bool,
    dry_run: bool,
    as_json: bool = False,
) -> int:
    """Run what a sweep lacks of a request, or show it."""
    if dry_run:
        _settle(sweep)
        rows = [*_left(sweep, failed=failed), *_missing(sweep, request)]
        plans = [runs.plan(row, sweep.directory(row)) for row in rows]
        work = request.work
        more = work.trials - len(sweep.rows) if work.search else 0
        if not rows and not more:
            output.note(f"the sweep {sweep.name} has no unfinished runs")
        heading = f"{more} more trials by {work.search}\n" if more else ""
        return _show(rows, plans, heading, as_json=as_json)
    with sweep.alone():
        # Another process may have changed it before the lock was free.
        sweep = Sweep.read(sweep.path) or sweep
        _settle(sweep)
        left, missing = _left(sweep, failed=failed), _missing(sweep, request)
        rows = [*left, *missing]
        # What the program or the search refuses ends the call before the record changes.
        for row in missing:
            runs.plan(row, sweep.directory(row))
        if runs.search:
            runs.search.rebuild(sweep)
        for row in rows:
            row.state = WAITING
        sweep.rows += missing
        sweep.settings.update(request.record())
        sweep.save()
        return runs.carry_out(sweep, rows)


def _rows(request: Request) -> list[Row]:
    """The runs that a request names; none for a search, which chooses them one by one."""
    if request.work.search:
        return []
    return [Row(name_of(one), one) for one in points(request.axes, side_by_side=request.work.zip)]


def _missing(sweep: Sweep, request: Request) -> list[Row]:
    """The runs of a request that a sweep does not have."""
    names = {row.name for row in sweep.rows}
    return [row for row in _rows(request) if row.name not in names]


def _former(
    project: Project, request: Request, runs: Runs, place: Host, rows: Sequence[Row]
) -> Sweep | None:
    """The newest sweep of the same command with the same settings, and fewer values or trials."""
    folder, wanted = runs.target.folder(), request.record()
    same = {"env": project.env, "append": place.append, "launch": runs.launch}
    same |= {key: wanted[key] for key in ("command", "zip", "search", "goal")}
    names = {row.name for row in rows}
    for sweep in find(project):
        old = sweep.settings
        if sweep.path.parent != folder or any(old.get(key) != same[key] for key in same):
            continue
        if request.work.search:
            if old["each"] == wanted["each"] and old["trials"] < wanted["trials"]:
                return sweep
        elif {row.name for row in sweep.rows} < names and [*old["each"]] == [*wanted["each"]]:
            return sweep
    return None


def _settle(sweep: Sweep) -> None:
    """Note how runs have ended while no fdl was there: jobs of a cluster outlive a killed one."""
    for row in sweep.rows:
        run = newest(sweep.directory(row)) if row.state == RUNNING else None
        if run and run.state in _ENDS:
            code = run.record.get("exit_code")
            row.code, row.seconds = code if isinstance(code, int) else None, run.seconds or 0.0
            row.state = FAILED if row.code else _ENDS[run.state]


def _left(sweep: Sweep, *, failed: bool) -> list[Row]:
    """What a sweep has not finished, with its failed runs if asked."""
    wanted = (WAITING, RUNNING, STOPPED, *((FAILED,) if failed else ()))
    return [row for row in sweep.rows if row.state in wanted]


def _resumable(folder: Path) -> Path | None:
    """The interrupted run in a folder, if its program takes ``resume``."""
    run = newest(folder)
    return run.path if run and run.is_resumable and "resume" in run.settings else None


def summarize(sweep: Sweep) -> int:
    """Compare the runs of a sweep on stdout; the number of those that are not done."""
    found = sweep.runs()
    names = list(found)
    goal = Metric.parse(sweep.settings["goal"]) if sweep.settings["goal"] else None
    if goal:
        last = {name: run.metrics.latest().get(goal.name) for name, run in found.items()}
        ranked = {name: goal.order(value) for name, value in last.items() if value is not None}
        worst = goal.order(math.nan)
        names.sort(key=lambda name: ranked.get(name, worst))
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
    if goal and names and ranked.get(names[0], worst) < worst:
        output.note(f"best {goal.name}: {last[names[0]]} of {names[0]}")
    return _report(sweep)


def _report(sweep: Sweep) -> int:
    total, failed = len(sweep.rows), sweep.count(FAILED)
    unfinished = total - sweep.count(DONE) - failed
    output.note(f"sweep {sweep.name}: {sweep.count(DONE)} of {total} runs done")
    if failed:
        again = f"fdl sweep resume {sweep.name} --retry failed"
        output.error(f"{failed} of {total} runs failed", again)
    if unfinished:
        output.error(
            f"{unfinished} of {total} runs are not finished", f"fdl sweep resume {sweep.name}"
        )
    return failed + unfinished


def _show(
    rows: Sequence[Row], plans: Sequence[Plan], heading: str, *, as_json: bool = False
) -> int:
    """Print the name of every run, and its command line below it."""
    if as_json:
        text = several_as_json(plans, asked=0)
    else:
        text = heading + "".join(
            f"{row.name}\n  {join(redacted(plan).launch)}\n"
            for row, plan in zip(rows, plans, strict=True)
        )
    output.write(sys.stdout, text)
    return 0
