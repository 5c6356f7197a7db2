"""Find the cause of a difference by training the first steps again, one candidate at a time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fdl.base.errors import FdlError
from fdl.base.units import duration
from fdl.plan.torchrun import LAUNCHER
from fdl.run.program import marked
from fdl.run.watcher import Watcher
from fdl.runs.causes import kind_of
from fdl.runs.recipe import Recipe, copy_code, recipe_of, shown, swapped
from fdl.runs.trace import TraceError, coverage, first_difference, read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fdl.runs.acts import Cause
    from fdl.runs.diff import Verdict
    from fdl.runs.trace import Trace


VARIABLE = "FLODL_REPEAT"
"""Tells flodl to train only the first steps; names the file that says how many."""

_TOLD_LINES = 5
_GRACE = 5.0


@final
class Repeats:
    """Repeats the beginning of runs.

    Args:
        folder: An empty folder for code, runs and output.
        steps: Steps after which each training ends, counted over the whole training.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps = folder, steps
        self._copies: dict[Path, Path] = {}
        self._count = 0

    def train(self, recipe: Recipe) -> Trace:
        """Train the first steps, and return their trace.

        Raises:
            FdlError: The program fails, writes no trace, or its code cannot be put together.
        """
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        asked = {"steps": self._steps, "engine": recipe.engine, "threads": recipe.threads}
        file = folder / "repeat.json"
        file.write_text(json.dumps(asked), encoding="utf-8")
        environ = {name: value for name, value in os.environ.items() if name != "FDL_PLAN"}
        for name, value in recipe.variables.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value
        environ |= {VARIABLE: str(file)}
        if recipe.project_root:
            environ["FDL_PROJECT_ROOT"] = recipe.project_root
        cwd = recipe.cwd
        if recipe.code is not None:
            cwd = self._code(recipe.code, recipe.cwd)
            copy = self._copies[recipe.code]
            known = filter(None, [environ.get("PYTHONPATH")])
            # An editable installation would import the working tree.
            environ["PYTHONPATH"] = os.pathsep.join([str(copy), str(copy / "src"), *known])
        output = folder / "output.txt"
        code = _run(_command(recipe), cwd, environ, output)
        runs = [one for one in (folder / "runs").glob("*") if (one / "run.json").is_file()]
        if code or len(runs) != 1:
            raise _failed(code, output)
        return read_trace(runs[0])

    def _code(self, run: Path, cwd: Path) -> Path:
        """The working directory in a copy of the code, made at its first use."""
        if run not in self._copies:
            target = self._folder / f"code-{len(self._copies)}"
            inside = copy_code(run, cwd, target)
            self._copies[run] = target
            return inside
        top = next(one for one in (cwd, *cwd.parents) if (one / ".git").exists())
        return self._copies[run] / cwd.relative_to(top)


def with_code_of(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe with the code of another one."""
    return replace(recipe, code=other.code, start=other.start, cwd=other.cwd)


def _command(recipe: Recipe) -> list[str]:
    if recipe.ranks == 1:
        return [*recipe.start, *recipe.words]
    interpreter, *rest = recipe.start
    options, program = _python_options(rest)
    count = str(recipe.ranks)
    launcher = [LAUNCHER, "--standalone", "--nproc-per-node", count]
    # Behind `--`, torchrun does not compare the program's flags with its own.
    module, named = (["-m"], program[1:]) if program[0] == "-m" else ([], program)
    return [interpreter, *options, *launcher, *module, "--", *named, *recipe.words]


def _python_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate Python's own options, such as ``-u``, from the script or ``-m`` and the module."""
    end = 0
    while end < len(words) and words[end].startswith("-") and words[end] != "-m":
        end += 2 if words[end] in ("-X", "-W") else 1
    return list(words[:end]), list(words[end:])


def _run(command: list[str], cwd: Path, environ: dict[str, str], output: Path) -> int:
    watcher = Watcher(marked(environ))
    try:
        with output.open("wb") as stream:
            # In a session of its own: Ctrl-C reaches fdl alone, which then ends the training.
            child = subprocess.Popen(
                command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=stream,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        watcher.dismiss()
        raise FdlError(
            f"`{command[0]}` cannot be started: {error.strerror or error}",
            hint="repeat the run on the machine where it was trained",
        ) from error
    watcher.tell(child.pid)
    try:
        return child.wait()
    finally:
        watcher.dismiss()
        if child.returncode is None:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(child.pid, number)
            else:
                child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)


def _failed(code: int, output: Path) -> FdlError:
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()[-_TOLD_LINES:]
    why = f"ended with exit code {code}" if code else "made no run directory of its own"
    return FdlError(
        "\n  ".join([f"a repeated training {why}; its last lines:", *lines]),
        hint="the program needs its data and its environment variables, as in the first training",
    )


_MOST_SHOWN = 4
_MACHINE = ("cpu", "cuda", "allocator")
_START_SECONDS = 3.0
"""For a program that imports torch."""

MOST_TRAININGS = 16
"""Trainings of one search."""

_PLACES = re.compile(
    r"(^|-)(output|name|log|live|port|monitor|run-dir|progress|timeline|tags?|notes?|resume)$"
)
"""Options that say where a run is, and not what it computes."""


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that can be swapped.

    Attributes:
        name: What it is, with both values.
        kind: As for a cause.
        swap: Returns a recipe with the part of the second run.
    """

    name: str
    kind: str
    swap: Callable[[Recipe], Recipe]


@final
@dataclass(frozen=True, slots=True)
class Search:
    """What will be trained.

    Attributes:
        steps: Steps of each training, counted over the whole training.
        recipes: How to repeat the two runs.
        candidates: What is swapped, the most likely cause first.
        fixed: Differences that cannot be swapped, as sentences.
        seconds: Estimate for one training; 0 if it is unknown.
    """

    steps: int
    recipes: tuple[Recipe, Recipe]
    candidates: tuple[Candidate, ...]
    fixed: tuple[str, ...]
    seconds: float = 0.0

    @property
    def most(self) -> int:
        """The most trainings that the search takes."""
        return 2 + len(self.candidates) + (len(self.candidates) > 2)

    def lines(self) -> list[str]:
        """What will be trained, for a terminal."""
        count = "1 step" if self.steps == 1 else f"{self.steps:,} steps"
        about = f"; about {duration(self.most * self.seconds)}" if self.seconds else ""
        told = [
            f"At most {self.most} trainings of the first {count}, in a temporary folder{about}:",
            "  the first run again, then the second run again",
            *(f"  the first run with {one.name}" for one in self.candidates),
        ]
        told += [f"Not tried: {one}" for one in self.fixed[:_MOST_SHOWN]]
        if len(self.fixed) > _MOST_SHOWN:
            told.append(f"Not tried: {len(self.fixed) - _MOST_SHOWN} more packages or properties")
        return told


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """What the trainings have shown.

    Attributes:
        certain: Names of the candidates that together turn the first run into the second one;
            empty if that is not known.
        part: Candidates that change the steps, without giving those of the second run.
        sentence: The result.
    """

    certain: tuple[str, ...]
    part: tuple[str, ...]
    sentence: str

    def as_json(self) -> dict[str, Any]:
        """The finding as JSON data."""
        return {
            "certain": list(self.certain),
            "part_of_the_cause": list(self.part),
            "sentence": self.sentence,
        }


def search_of(verdict: Verdict) -> Search:
    """Return what has to be trained to be certain of the cause.

    Raises:
        FdlError: A run cannot be repeated, or there is too much to try.
    """
    found = verdict.difference
    if found is None:
        raise FdlError("the runs agree, so there is no cause to find", hint="leave out --bisect")
    left, right = verdict.runs
    traces = read_trace(left.path), read_trace(right.path)
    one, other = recipe_of(left, traces[0]), recipe_of(right, traces[1])
    options = [name for name in dict.fromkeys([*one.options, *other.options])
               if one.options.get(name) != other.options.get(name)
               and not _PLACES.search(name)]  # fmt: skip
    # The program may get its engine from elsewhere, so both trainings are told theirs.
    engines = one.engine != other.engine and not any("engine" in name for name in options)
    recipes = _without(one, options, engine=engines), _without(other, options, engine=engines)
    order = [cause.kind for cause in verdict.causes]
    candidates = [*_options(*recipes, options), *_others(verdict, *recipes)]
    if engines:
        swap = partial(replace, engine=other.engine)
        candidates.append(Candidate(f"engine {other.engine}", "computation", swap))
    candidates.sort(key=lambda c: order.index(c.kind) if c.kind in order else len(order))
    if 3 + len(candidates) > MOST_TRAININGS:
        raise FdlError(
            f"{len(candidates)} things differ between the runs, and {MOST_TRAININGS - 3} can be "
            "tried",
            hint="compare two runs that differ in fewer settings",
        )
    fixed = [one.sentence() for one in verdict.causes if _is_fixed(one)]
    steps = max(1, found.certain_to)
    # A long training is cut to its first steps; starting the program takes a few seconds anyway.
    parts = [(run.seconds or 0.0) * min(1.0, steps / max(1, trace.last - trace.first + 1))
             for run, trace in zip(verdict.runs, traces, strict=True)]  # fmt: skip
    seconds = max(parts) + _START_SECONDS
    return Search(steps, recipes, tuple(candidates), tuple(fixed), seconds)


def search(plan: Search, verdict: Verdict, train: Callable[[Recipe], Trace],
           tell: Callable[[str], None]) -> Finding:  # fmt: skip
    """Train until the cause is certain.

    Args:
        plan: What to train.
        verdict: The comparison of the two runs.
        train: Trains a recipe.
        tell: Takes a line about each training.

    Raises:
        FdlError: A training fails.
    """
    originals = tuple(read_trace(run.path) for run in verdict.runs)
    base, goal = plan.recipes

    def same(name: str, trace: Trace, known: Trace) -> bool:
        why = _parts(trace, known, plan.steps)
        which = "first" if known is originals[0] else "second"
        tell(f"  {name}: {'the same as' if why is None else 'not the same as'} the {which} run"
             f"{'' if why is None else f' ({why})'}")  # fmt: skip
        return why is None

    again = train(base)
    if not same("the first run again", again, originals[0]):
        outside = same("the first run again", again, originals[1])
        return Finding((), (), _OUTSIDE if outside else _UNSTABLE.format("first"))
    again = train(goal)
    if not same("the second run again", again, originals[1]):
        outside = same("the second run again", again, originals[0])
        return Finding((), (), _OUTSIDE if outside else _UNSTABLE.format("second"))
    part: list[Candidate] = []
    for one in plan.candidates:
        trace = train(one.swap(base))
        if same(f"with {one.name}", trace, originals[1]):
            return Finding((one.name,), (), f"Certain cause: {one.name}. It alone turns the first "
                           "run into the second one.")  # fmt: skip
        if not same(f"with {one.name}", trace, originals[0]):
            part.append(one)
    names = tuple(one.name for one in part)
    if len(part) > 1:
        recipe = base
        for one in part:
            recipe = one.swap(recipe)
        if same(f"with all of {', '.join(names)}", train(recipe), originals[1]):
            return Finding(names, (), f"Certain cause: {', '.join(names)}, together.")
    return Finding((), names, _SEVERAL.format(", ".join(names)) if names else _NONE)


_OUTSIDE = (
    "The cause is outside of the records: the repeated run gives the steps of the other one. Data "
    "or files that the program reads were changed between the runs."
)
_UNSTABLE = (
    "The {} run cannot be repeated here: its steps come out differently. Data, packages, variables "
    "of the environment or the machine differ from then."
)
_SEVERAL = "No single candidate gives the second run. These change the steps: {}."
_NONE = "No candidate changes the steps that differ."


def _parts(trace: Trace, known: Trace, steps: int) -> str | None:
    """Why a repeated training is not the same as a run; None if it is."""
    try:
        found = first_difference(trace, known)
    except TraceError as problem:
        return str(problem)
    if found is not None and found.step <= steps:
        return found.detail
    common = coverage(trace, known)
    return None if common.last >= steps else f"it has {common.last} of {steps} steps"


def _is_fixed(cause: Cause) -> bool:
    """Whether nothing here can swap it."""
    return cause.kind in ("packages", "content") or cause.name.partition(".")[0] in _MACHINE


def _without(recipe: Recipe, options: list[str], *, engine: bool) -> Recipe:
    """A recipe that leaves to the program what its own options say, and perhaps the engine."""
    threads = None if any("thread" in name for name in options) else recipe.threads
    return replace(recipe, threads=threads, engine=recipe.engine if engine else None)


def _options(one: Recipe, other: Recipe, names: list[str]) -> Iterator[Candidate]:
    for name in names:
        wanted = other.options.get(name)
        told = shown(wanted) if wanted else f"without {shown(one.options[name])}"
        swap = partial(_swap_option, words=other.words, name=name)
        yield Candidate(told, kind_of(name or "arguments"), swap)


def _others(verdict: Verdict, one: Recipe, other: Recipe) -> Iterator[Candidate]:
    kinds = {cause.kind for cause in verdict.causes}
    if "code" in kinds and one.code is not None and other.code is not None:
        yield Candidate("the code of the second run", "code", partial(_swap_code, other=other))
    for name in dict.fromkeys([*one.variables, *other.variables]):
        value = other.variables.get(name)
        if one.variables.get(name) != value and not _PLACES.search(name.lower().replace("_", "-")):
            told = f"{name}={value}" if value is not None else f"without the variable {name}"
            yield Candidate(told, kind_of(name), partial(_swap_variable, name=name, value=value))
    if one.threads != other.threads:
        told = f"{other.threads} threads"
        yield Candidate(told, "threads", partial(replace, threads=other.threads))
    if one.ranks != other.ranks:
        yield Candidate(f"{other.ranks} ranks", "ranks", partial(replace, ranks=other.ranks))


def _swap_option(recipe: Recipe, words: tuple[str, ...], name: str) -> Recipe:
    return replace(recipe, words=swapped(recipe.words, words, name))


def _swap_variable(recipe: Recipe, name: str, value: str | None) -> Recipe:
    return replace(recipe, variables={**recipe.variables, name: value})


def _swap_code(recipe: Recipe, other: Recipe) -> Recipe:
    return with_code_of(recipe, other)
