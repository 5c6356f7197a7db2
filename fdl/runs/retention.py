"""``output.keep`` of the manifests: which runs and checkpoints ``fdl runs prune`` may delete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fdl.base.errors import FdlError, ManifestError
from fdl.manifest.node import origin
from fdl.runs.find import default_folder, levels
from fdl.runs.metrics import Metric
from fdl.runs.prune import KeepBest, Rule, Surplus, choose, surplus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.manifest.select.project import Project
    from fdl.runs.run import Run

_KEEP = "keep."


class Retention(NamedTuple):
    """What one manifest or preset keeps of the runs in its folder.

    Attributes:
        folder: The folder of the runs; the numbers count in each folder of runs below it.
        origin: Where the rule is written: ``train/fdl.yml:9:5``.
        best: How many of the best runs stay; None for no such limit.
        newest: How many of the newest runs stay; None for no such limit.
        checkpoints: How many runs keep their checkpoints; None for all.
        metric: The metric of the best runs, or None.
        group: The setting for whose values the runs are counted; empty for the folders.
        project: The folder of the project. Of a folder outside of it, the rule is about the runs
            of this project only.
    """

    folder: Path
    origin: str
    best: int | None
    newest: int | None
    checkpoints: int | None
    metric: Metric | None
    group: str
    project: Path

    def covers(self, run: Run) -> bool:
        """Whether the rule may be about a run in its folder."""
        if self.folder.is_relative_to(self.project):
            return True
        root = run.record.get("project_root")
        return isinstance(root, str) and os.path.realpath(root) == str(self.project)

    def going(self, runs: Sequence[Run], known: Sequence[Run], now: datetime) -> list[Run]:
        """The runs that go: those that are neither among the best nor among the newest.

        Args:
            runs: The runs of the folder, newest first.
            known: Every run that may continue one of them.
            now: The time from which ages count.

        Raises:
            ManifestError: No run measured the metric, though others were measured.
        """
        if self.best is None and self.newest is None:
            return []
        best = self._ranking(self.best, runs)
        if self.best is not None and best is None:
            return []
        rule = Rule(keep=self.newest) if self.newest is not None else None
        try:
            chosen = choose(runs, rule, best, now, known)
        except FdlError as problem:
            raise self._refusal(problem) from None
        return [run for run in chosen if not run.is_linked]

    def lightened(self, runs: Sequence[Run], now: datetime) -> list[Run]:
        """The runs that stay and lose their checkpoints."""
        if self.checkpoints is None:
            return []
        if self.metric is None:
            return Rule(keep=self.checkpoints).choose(runs, now)
        best = self._ranking(self.checkpoints, runs)
        try:
            return best.others(runs) if best else []
        except FdlError as problem:
            raise self._refusal(problem) from None

    def _ranking(self, number: int | None, runs: Sequence[Run]) -> KeepBest | None:
        """The order of the runs; None without a metric, or before any run has measured one."""
        if number is None or self.metric is None or not any(run.metrics.names for run in runs):
            return None
        return KeepBest(number, self.metric, self.group)

    def _refusal(self, problem: FdlError) -> ManifestError:
        return ManifestError(f"{self.origin}: {problem.message}", hint=problem.hint)


class Going(NamedTuple):
    """What the rules of a project delete.

    Attributes:
        runs: The runs, each with the rule that deletes it.
        checkpoints: The checkpoints of other runs.
    """

    runs: list[tuple[Run, Retention]]
    checkpoints: list[Surplus]


def rules(project: Project) -> list[Retention]:
    """The rules of a project under its environment, one for each folder that has one.

    Raises:
        ManifestError: A manifest is broken, a rule is not complete, or two rules contradict each
            other.
    """
    found: dict[Path, Retention] = {}
    # A manifest that cannot be read may keep runs that another rule would delete.
    for level in levels(project, strict=True):
        for rule in _of_level(level, project.directory):
            known = found.setdefault(rule.folder, rule)
            if known._replace(origin="") != rule._replace(origin=""):
                raise ManifestError(
                    f"{rule.origin}: `output.keep` contradicts {known.origin}: both are about "
                    f"the runs in {os.path.relpath(rule.folder, project.directory)}",
                    hint="write the same rule in both places, or give one an `output.dir` of "
                    "its own",
                )
    return list(found.values())


def _of_level(level: Level, root: str) -> Iterator[Retention]:
    from fdl.manifest.variables import folder_name
    from fdl.plan.generate import settings

    for preset in (None, *level.commands.values()):
        output = settings(level.manifest.node, preset)["output"]
        keep = {
            name.removeprefix(_KEEP): node
            for name, node in output.items()
            if name.startswith(_KEEP)
        }
        if not keep:
            continue
        written = output.get("dir")
        scope = preset or level.manifest.node
        name = folder_name(level, written, scope) if written else default_folder(level)
        if not name:
            raise ManifestError(
                f"{_first(keep, root)}: `output.keep` does not say of which folder",
                hint="write `dir` beside it",
            )
        yield _rule(Path(os.path.realpath(Path(root, name))), keep, root)


def _rule(folder: Path, keep: Mapping[str, Node], root: str) -> Retention:
    numbers = {name: node.value for name, node in keep.items() if isinstance(node.value, int)}
    by, group = keep.get("by"), keep.get("group")
    for name in ("best", "group"):
        if name in keep and by is None:
            raise _incomplete(keep[name], name, "needs `by`", "by: val_loss", root)
    metric = None
    if by is not None:
        if not {"best", "checkpoints"} & numbers.keys():
            raise _incomplete(by, "by", "needs `best` or `checkpoints`", "best: 5", root)
        try:
            metric = Metric.parse(str(by.value))
        except FdlError as problem:
            raise ManifestError(
                f"{origin(by, root)}: {problem.message}", hint=problem.hint
            ) from None
    return Retention(
        folder,
        _first(keep, root),
        numbers.get("best"),
        numbers.get("newest"),
        numbers.get("checkpoints"),
        metric,
        str(group.value) if group else "",
        Path(os.path.realpath(root)),
    )


def _first(keep: Mapping[str, Node], root: str) -> str:
    return origin(next(iter(keep.values())), root)


def _incomplete(node: Node, name: str, problem: str, hint: str, root: str) -> ManifestError:
    return ManifestError(
        f"{origin(node, root)}: `output.keep.{name}` {problem}", hint=f"write `{hint}` beside it"
    )


def going(
    rules: Sequence[Retention], folders: Iterable[Path], runs: Sequence[Run], now: datetime
) -> Going:
    """What the rules delete.

    A run belongs to the innermost folder around it. So a preset with a folder of its own and
    without a rule keeps all its runs.

    Args:
        rules: The rules.
        folders: The folders of runs that have no rule.
        runs: All runs, newest first.
        now: The time from which ages count.

    Raises:
        ManifestError: No run measured the metric of a rule, though others were measured.
    """
    owners: dict[Path, Retention | None] = {Path(os.path.realpath(one)): None for one in folders}
    owners |= {rule.folder: rule for rule in rules}
    found = Going([], [])
    for rule in rules:
        mine = [run for run in runs if _owner(run, owners) is rule and rule.covers(run)]
        gone = rule.going(mine, runs, now)
        names = {run.path for run in gone}
        staying = [run for run in mine if run.path not in names]
        found.runs.extend((run, rule) for run in gone)
        found.checkpoints.extend(surplus(rule.lightened(staying, now), runs, ()))
    return found


def _owner(run: Run, owners: Mapping[Path, Retention | None]) -> Retention | None:
    place = Path(os.path.realpath(run.path))
    return next((owners[one] for one in place.parents if one in owners), None)
