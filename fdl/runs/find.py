"""Finding runs, and the run that a word means."""

from __future__ import annotations

import gc
import math
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.errors import FdlError, UsageError
from fdl.base.files import subfolders
from fdl.base.own_files import read_ahead
from fdl.base.suggest import did_you_mean
from fdl.plan.recorded import USUAL_FOLDER
from fdl.runs.metrics import BEST_OF, Metric
from fdl.runs.run import LISTED_FILES, Run, damaged, flaw, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.manifest.select.project import Project

# `runs` holds `runs/train`, which holds the runs. A sweep there has a folder for each of its runs.
_DEPTH = 4
_READ_AHEAD = 1000
_MOST_CANDIDATES = 5
_TRAIN_OR_NAME = "train first, or look into another folder: fdl runs list FOLDER"


def folders(project: Project | None) -> list[Path]:
    """The folders of runs: every ``output.dir`` of the project, else ``runs``.

    If the schema of a program is known, the default of its ``--output`` counts as well. A program
    without either writes into ``runs``.

    Raises:
        ManifestError: The project's own manifest is broken.
    """
    root = Path(project.directory) if project else Path.cwd()
    found = levels(project) if project else ()
    named = dict.fromkeys(name for level in found for name in _of_level(level))
    return [root / one for one in named] or [root / USUAL_FOLDER]


def levels(project: Project) -> Iterator[Level]:
    """The manifests of a project, its own first; one below it that cannot be read is left out.

    Raises:
        ManifestError: The project's own manifest is broken.
    """
    from fdl.manifest.select.walk import below

    top = project.level()
    yield top
    for place in below(top, project.child):
        if place.level:
            yield place.level


def _of_level(level: Level) -> Iterator[str]:
    for node in (level.manifest.node, *level.commands.values()):
        folder = _directory(node)
        if folder and (name := _name(level, folder, node)):
            yield name
    if name := default_folder(level):
        yield name
    elif level.entry and _directory(level.manifest.node) is None:
        yield USUAL_FOLDER


def _name(level: Level, folder: Node, scope: Node) -> str:
    """The text of an ``output.dir``; empty if a variable in it is not set."""
    text = str(folder.value)
    if "$" not in text:
        return text
    # It loads dotenv.
    from fdl.manifest.variables import known_folder

    return known_folder(level, folder, scope)


def _directory(node: Node) -> Node | None:
    output = node.get("output")
    return output.get("dir") if output else None


def default_folder(level: Level) -> str:
    """The default of ``--output`` of a manifest's program; empty if it is not known."""
    if not level.entry:
        return ""
    from fdl.programs.schema import known

    schema = known(level)
    if schema is None or schema.foreign:
        # In a program that was not written for fdl, it may be a file.
        return ""
    option = schema.options.get("output")
    return option.default if option and isinstance(option.default, str) else ""


def search(places: Iterable[Path]) -> list[Run]:
    """The runs in several folders, newest first. A place may also be a run itself.

    Names that begin with a dot are skipped: runs that are being made, and files of other programs.
    """
    return [run for run in survey(places) if not run.problem]


def newest(place: Path) -> Run | None:
    """The newest run in a folder, which may also be a run itself."""
    return next(iter(search([place])), None)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Let Python look for no garbage while thousands of runs are read, all of which are kept."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@nothing_collected()
def survey(places: Iterable[Path]) -> list[Run]:
    """The same, and the runs whose record is damaged; their ``problem`` says why."""
    found: dict[str, Run] = {}
    for place in places:
        for run, own in _below(place, os.path.realpath(place), _DEPTH):
            # Without a link on the way, only the place itself need be asked where it is.
            key = os.path.realpath(run.path) if run.is_linked else own
            if key not in found or (found[key].is_linked and not run.is_linked):
                found[key] = run
    return sorted(found.values(), key=lambda run: (run.age, str(run.path)), reverse=True)


def _below(place: Path, own: str, depth: int, *, linked: bool = False) -> Iterator[tuple[Run, str]]:
    """The runs in a folder, each with its path if no link is on the way."""
    run = read(place)
    if run is not None:
        run.is_linked = run.is_linked or linked
        yield run, own
        return
    broken = damaged(place)
    if broken is not None:
        broken.is_linked = broken.is_linked or linked
        yield broken, own
    if depth == 0:
        return
    # The place that the user named may be a link.
    linked = linked or (depth < _DEPTH and place.is_symlink())
    names = subfolders(place)
    for start in range(0, len(names), _READ_AHEAD):
        part = names[start : start + _READ_AHEAD]
        read_ahead(f"{place}{os.sep}{name}{os.sep}{file}" for name in part for file in LISTED_FILES)
        for name in part:
            yield from _below(place / name, f"{own}{os.sep}{name}", depth - 1, linked=linked)


def stands_for_a_run(word: str) -> bool:
    """Whether a word means a run in any project: a path, ``last`` or ``best:METRIC``."""
    return word == "last" or word.startswith(BEST_OF) or is_path(word)


def is_path(word: str) -> bool:
    """Whether a word is a path, and not a name."""
    return os.sep in word or "/" in word or word in (".", "..")


def choose(word: str, places: Sequence[Path]) -> Run:
    """The run that a word means.

    Args:
        word: ``last``, ``best:METRIC``, the path of a run or of a folder of runs (its newest), a
            name, or the beginning of a name.
        places: Folders in which names are searched.

    Raises:
        FdlError: The word matches no run, or several.
    """
    if not word:
        raise UsageError("no run is named", hint="`fdl runs list` names them all")
    # The name of a metric may hold a slash.
    if is_path(word) and not word.startswith(BEST_OF):
        return at(Path(word))
    every = survey(places)
    runs = [run for run in every if not run.problem]
    if word == "last":
        if not runs:
            raise _none(places)
        return runs[0]
    if word.startswith(BEST_OF):
        metric = Metric.parse(word.removeprefix(BEST_OF))
        ranked = [run for run in by_metric(metric, runs) if has_number(run, metric)]
        if not ranked:
            raise unmeasured(metric, runs) if runs else _none(places)
        return ranked[0]
    exact = [run for run in runs if word in (run.name, run.title)]
    fitting = exact or [run for run in runs if run.name.startswith(word)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        shown = ", ".join(str(shortened(run.path)) for run in fitting[:_MOST_CANDIDATES])
        more = len(fitting) - _MOST_CANDIDATES
        raise UsageError(
            f"`{word}` means {len(fitting)} runs: {shown}{f' and {more} more' if more > 0 else ''}",
            hint="type more of the name, or the run's path",
        )
    if Path(word).is_dir():
        return at(Path(word))
    for path in (*(run.path.parent for run in every if run.problem), *places):
        _refuse_broken(path / word)
    if not runs:
        raise _none(places)
    raise UsageError(f"no run is called `{word}`", hint="`fdl runs list` names them all")


def at(path: Path) -> Run:
    """The run of a folder, or the newest run in it.

    Raises:
        FdlError: There is none.
    """
    run = newest(path)
    if run is None:
        _refuse_broken(path)
        is_there = os.path.lexists(path)
        what = "is not a run and contains none" if is_there else "does not exist"
        raise UsageError(f"{path} {what}", hint="`fdl runs list` names the project's runs")
    return run


def _refuse_broken(path: Path) -> None:
    problem = flaw(path)
    if problem:
        raise FdlError(
            f"{shortened(path)} {problem}", hint="restore it from a copy, or remove the folder"
        )


def by_metric(metric: Metric, runs: Sequence[Run]) -> list[Run]:
    """The runs that measured a metric, the best one first.

    Among equals the newest is first, but a run that only continues another one stands behind it:
    it shows the epochs that the other has trained.
    """
    best = {run.path: one for run in runs if (one := run.metrics.best(metric))}
    known = {run.path: run for run in runs if run.path in best}

    def repeats(run: Run) -> int:
        """How many runs before this one have the same best epoch."""
        found, seen = 0, {run.path}
        while run.predecessor:
            path = run.path.parent / run.predecessor
            if path in seen or best.get(path) != best[run.path]:
                break
            seen.add(path)
            found, run = found + 1, known[path]
        return found

    ranked = known.values()
    return sorted(ranked, key=lambda one: (metric.order(best[one.path].value), repeats(one)))


def has_number(run: Run, metric: Metric) -> bool:
    """Whether a run measured a metric, and in some epoch not as nan or infinity."""
    best = run.metrics.best(metric)
    return best is not None and math.isfinite(best.value)


def unmeasured(metric: Metric, runs: Sequence[Run]) -> UsageError:
    """The error that no run measured a metric, or that none of its values is finite."""
    if any(run.metrics.best(metric) for run in runs):
        return UsageError(
            f"no run has a finite `{metric.name}`: it is nan or infinite in all epochs",
            hint="name another metric, or the run: `fdl runs list` shows both",
        )
    names = dict.fromkeys(name for run in runs for name in run.metrics.names)
    others = f"they measured: {', '.join(names)}" if names else "none has finished an epoch"
    hint = did_you_mean(metric.name, names, others)
    return UsageError(f"no run measured `{metric.name}`", hint=hint)


def _none(places: Sequence[Path]) -> FdlError:
    shown = ", ".join(str(shortened(place)) for place in places)
    return FdlError(f"there are no runs in {shown}", hint=_TRAIN_OR_NAME)


def shortened(path: Path) -> Path:
    """A path relative to the working directory if it is below it; else unchanged."""
    # `os.path.relpath` takes ten times as long, and 10,000 runs are named.
    try:
        above = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118
        whole = os.path.join(os.path.abspath(path), "")  # noqa: PTH100, PTH118
    except (OSError, ValueError):
        return path
    below = whole[len(above) : -1]
    is_below = os.path.normcase(whole).startswith(os.path.normcase(above))
    return Path(below) if is_below and not below.startswith("..") else path
