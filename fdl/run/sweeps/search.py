"""Values that Optuna chooses, from what the finished runs of a sweep have measured.

There is no database: each start makes the study from the run directories.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fdl.base.errors import FdlError, UsageError
from fdl.run.step import DONE, FAILED, STOPPED
from fdl.run.sweeps.request import Axis, Range, name_of
from fdl.runs.metrics import Metric

if TYPE_CHECKING:
    from fdl.run.sweeps.request import Point, Request
    from fdl.run.sweeps.store import Row, Sweep
    from fdl.runs.run import Run

_SAMPLERS = ("tpe", "random")


class Search:
    """One study of Optuna.

    Raises:
        FdlError: Optuna is not installed, or the request is not one that it can serve.
    """

    def __init__(self, request: Request) -> None:
        try:
            import optuna
        except ImportError:
            raise FdlError(
                "`--search` needs Optuna, which is not installed",
                hint="pip install 'flodl[search]'",
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna: Any = optuna
        self._sampler, _, self._seed = request.work.search.partition(":")
        fits = not self._seed or (self._seed.isascii() and self._seed.isdigit())
        if self._sampler not in _SAMPLERS or not fits or request.work.search.endswith(":"):
            raise UsageError(
                f"`--search {request.work.search}`: the samplers are {' and '.join(_SAMPLERS)}, "
                "with a seed behind a colon if you like",
                hint="fdl --search tpe:1 --trials 20 --goal val_loss:min COMMAND --each …",
            )
        self._goal = Metric.parse(request.work.goal)
        self._axes = {one.key: one for one in request.axes}
        self._space = {one.key: self._distribution(one) for one in request.axes}
        self._asked: dict[str, Any] = {}

    def corners(self) -> list[Point]:
        """Points that have every value of a list, and both ends of every range."""
        columns = {key: _ends(one) for key, one in self._axes.items()}
        longest = max(map(len, columns.values()))
        return [
            {key: values[place % len(values)] for key, values in columns.items()}
            for place in range(longest)
        ]

    def rebuild(self, sweep: Sweep) -> None:
        """Make the study from the runs of a sweep."""
        optuna = self._optuna
        seed = int(self._seed) + len(sweep.rows) if self._seed else None
        if self._sampler == "random":
            sampler = optuna.samplers.RandomSampler(seed=seed)
        else:
            # Trials that still run are taken for bad ones, so that jobs do not try the same.
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        direction = "maximize" if self._goal.higher else "minimize"
        self._study = optuna.create_study(sampler=sampler, direction=direction)
        runs = sweep.runs()
        for row in sweep.rows:
            try:
                self._add(row, runs.get(row.name))
            except ValueError as problem:
                raise UsageError(
                    f"the trial {row.name} is outside of the new values: {problem}",
                    hint="name values that contain those of before",
                ) from None

    def _add(self, row: Row, run: Run | None) -> None:
        """Add a trial of before to the study.

        Raises:
            ValueError: It has a value that the study cannot have.
        """
        trials, value = self._optuna.trial, self._value(row, run)
        state = trials.TrialState.FAIL if value is None else trials.TrialState.COMPLETE
        params = self._params(row.varied)
        # It looks whether the values are possible, also those of a trial that has not ended.
        trial = trials.create_trial(
            state=state, value=value, params=params, distributions=self._space
        )
        if row.state in (DONE, FAILED):
            self._study.add_trial(trial)
        else:
            # It runs again, with the values that it has.
            self._study.enqueue_trial(params)
            self._asked[row.name] = self._study.ask(self._space)

    def ask(self, number: int) -> Point:
        """The values of a new trial."""
        trial = self._study.ask(self._space)
        point = {key: str(trial.params[key]) for key in self._space}
        self._asked[name_of(point, number)] = trial
        return point

    def tell(self, row: Row, run: Run | None) -> None:
        """Report how a trial ended."""
        trial = self._asked.pop(row.name, None)
        if trial is not None and row.state != STOPPED:
            value = self._value(row, run)
            fail = self._optuna.trial.TrialState.FAIL
            self._study.tell(trial, value, state=fail if value is None else None)

    def _value(self, row: Row, run: Run | None) -> float | None:
        """The last value of the goal; None for a run that failed or has not measured it."""
        value = run.metrics.latest().get(self._goal.name, math.nan) if run else math.nan
        return value if row.state == DONE and not math.isnan(value) else None

    def _params(self, point: Point) -> dict[str, Any]:
        distributions = self._optuna.distributions
        kinds = {distributions.IntDistribution: int, distributions.FloatDistribution: float}
        return {key: kinds.get(type(self._space[key]), str)(value) for key, value in point.items()}

    def _distribution(self, axis: Axis) -> Any:
        distributions = self._optuna.distributions
        (first, *more) = axis.items
        if more or not isinstance(first, Range):
            return distributions.CategoricalDistribution(axis.values())
        kind, number = (
            (distributions.IntDistribution, int)
            if first.whole
            else (distributions.FloatDistribution, float)
        )
        step = {"step": number(first.step)} if first.step else {}
        try:
            return kind(number(first.low), number(first.high), log=first.log, **step)
        except ValueError as problem:
            raise UsageError(f"`{axis.text}`: {problem}", hint="correct the range") from None


def _ends(axis: Axis) -> list[str]:
    (first, *more) = axis.items
    return [first.low, first.high] if isinstance(first, Range) and not more else axis.values()
