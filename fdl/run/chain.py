"""The plans of typed commands with everything they need, each once, in an order that works."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from fdl.base.errors import FdlError, ManifestError, UsageError
from fdl.base.hardware.troubles import VARIABLE as DEVICES_VARIABLE
from fdl.base.suggest import nearest
from fdl.manifest.builtins import BUILTINS
from fdl.manifest.node import Node, origin
from fdl.manifest.select.command import Selection
from fdl.manifest.select.level import Level
from fdl.manifest.select.project import Project
from fdl.plan.command import plan_of
from fdl.plan.inspect import unknown
from fdl.plan.planner import Host
from fdl.plan.value import Plan
from fdl.run.freshness import Digests, Patterns, Rule
from fdl.run.pool import groups
from fdl.run.step import Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.base.global_flags import Work

    _Key = tuple[str, ...]


def steps_of(project: Project, words: Sequence[str], place: Host) -> list[Step]:
    """One command line with what it needs, itself as the last step.

    Raises:
        FdlError: It is not a command that runs, or needs something that is not.
    """
    chain = Chain(project, place)
    chain.select(words)
    return chain.steps


def typed_steps(project: Project, words: Sequence[str], work: Work, place: Host) -> list[Step]:
    """The commands that the words after ``--jobs N`` and ``--gpus-each N`` name.

    Raises:
        FdlError: A word is not a command, a manifest is broken, or there are too few GPUs.
    """
    lines = _lines(project, words, work.jobs) if work.jobs else [words]
    terminal = place.terminal and len(lines) == 1 and not work.gpus_each
    chain = Chain(project, with_gpus(place.replaced(terminal=terminal), work.gpus_each))
    for line in lines:
        chain.select(line)
    return chain.steps


def with_gpus(place: Host, each: int) -> Host:
    """A place where every job sees as many GPUs as the first one; the pool says which."""
    if not each:
        return place
    first = groups(each, os.environ)[0]
    return place.replaced(variables={**place.variables, DEVICES_VARIABLE: first})


class Chain:
    """Steps in an order in which each one stands behind those that it needs.

    Args:
        project: The project.
        place: Where they are taken to run.

    Attributes:
        steps: The steps.
    """

    def __init__(self, project: Project, place: Host) -> None:
        self.steps: list[Step] = []
        self._project = project
        self._place = place
        self._places: dict[_Key, int] = {}
        self._digests = Digests(project.directory)

    def add(self, plan: Plan) -> None:
        """Add a command that was typed, behind everything that it needs.

        Raises:
            ManifestError: Commands need each other in a circle, or need an unknown one.
        """
        self.steps[self._add(plan, {})].asked = True

    def select(self, words: Sequence[str]) -> None:
        """Add the command that words name.

        Raises:
            FdlError: They name nothing that runs.
        """
        selected = self._project.select(words)
        if not selected.runs:
            raise _refused(selected, words, self._project)
        self.add(plan_of(selected, self._project, self._place))

    def _add(self, plan: Plan, above: dict[_Key, Node]) -> int:
        """Add a command; ``above`` are the commands that wait for it, with what they need."""
        key = (*plan.command, "--", *plan.given, *plan.typed)
        if key in above:
            raise self._circle(key, above)
        if key in self._places:
            return self._places[key]
        specs = self._specs(plan)
        owner, nodes = _texts(specs, "needs")
        needs = [self._add(self._needed(node, owner, plan), {**above, key: node}) for node in nodes]
        self.steps.append(Step(plan, needs, self._rule(plan, specs)))
        self._places[key] = len(self.steps) - 1
        return self._places[key]

    def _specs(self, plan: Plan) -> list[tuple[Level, Node]]:
        """The entries of a command with their levels: a preset's, then that of its folder."""
        level, rest = self._project.descend(plan.command)
        specs = [(level, level.commands[name]) for name in rest[:1] if name in level.commands]
        if plan.kind == "entry" and level.spec is not None and level.parent is not None:
            specs.append((level.parent, level.spec))
        return specs or [(level, level.manifest.node)]

    def _rule(self, plan: Plan, specs: list[tuple[Level, Node]]) -> Rule:
        def patterns(key: str) -> Patterns:
            owner, nodes = _texts(specs, key)
            return Patterns(nodes, owner.manifest.directory, plan.root)

        watches = any(spec.get("inputs") for _, spec in specs)
        inputs = patterns("inputs") if watches else None
        return Rule(plan, inputs, patterns("outputs"), self._digests)

    def _needed(self, node: Node, owner: Level, plan: Plan) -> Plan:
        """The plan of a needed command: of this manifest, else of the nearest one above."""
        words, level, known = _words(node), owner, list[str]()
        while words[0] not in level.commands:
            known += level.commands
            if level.parent is None:
                raise self._unknown(node, plan, nearest(words[0], known))
            level = level.parent
        found = self._project.select([*level.names, *words])
        if found.runs:
            try:
                return plan_of(found, self._project, self._place)
            except UsageError as problem:
                text = f"`fdl {' '.join(plan.command)}` needs `{node.value}`: {problem.message}"
                raise ManifestError(f"{self._origin(node)}: {text}", hint=problem.hint) from None
        close = None
        if not found.known and found.name in words:
            close = nearest(found.name, found.level.commands)
            words[words.index(found.name)] = close or found.name
        raise self._unknown(node, plan, close and shlex.join(words))

    def _unknown(self, node: Node, plan: Plan, close: str | None) -> ManifestError:
        return ManifestError(
            f"{self._origin(node)}: `fdl {' '.join(plan.command)}` needs `{node.value}`, which is "
            "not a command that runs",
            hint=f"did you mean `{close}`?" if close else "`fdl list` names the commands",
        )

    def _circle(self, key: _Key, above: dict[_Key, Node]) -> ManifestError:
        names = list(above)
        ring = names[names.index(key) :]
        way = [f"`{' '.join(one[: one.index('--')])}` ({self._origin(above[one])})" for one in ring]
        return ManifestError(
            f"{self._origin(above[ring[-1]])}: commands need each other in a circle: "
            f"{' -> '.join([*way, way[0].partition(' (')[0]])}",
            hint="remove one of these `needs`",
        )

    def _origin(self, node: Node) -> str:
        return origin(node, self._project.directory)


def _texts(specs: list[tuple[Level, Node]], key: str) -> tuple[Level, list[Node]]:
    """The texts under a key of the strongest entry that has it, and the level of that entry."""
    for owner, spec in specs:
        node = spec.get(key)
        if node is not None:
            return owner, node.value if isinstance(node.value, list) else [node]
    return specs[0][0], []


def _words(node: Node) -> list[str]:
    try:
        return shlex.split(str(node.value))
    except ValueError:
        # A quotation is not closed. As one word, it is reported as an unknown command.
        return [str(node.value)]


def _split(level: Level, word: str) -> list[str]:
    """The words of a command that one word names: ``train/quick`` and ``train quick`` are two."""
    if word in level.commands:
        return [word]
    return word.replace("/", " ").split()


def _lines(project: Project, tokens: Sequence[str], jobs: int) -> list[list[str]]:
    """The command lines that the words after ``--jobs N`` name, one for each word.

    A command with its arguments is one line: several commands take none.

    Raises:
        UsageError: Arguments or flags stand behind several commands, one is named twice, or a
            preset stands behind its command as a word of its own.
    """
    level = project.level()
    flag = next((place for place, word in enumerate(tokens) if word.startswith("-")), len(tokens))
    words, arguments = list(tokens[:flag]), list(tokens[flag:])
    if len(words) == 1:
        return [[*_split(level, words[0]), *arguments]]
    if arguments:
        what = "arguments after `--`" if arguments[0] == "--" else f"`{arguments[0]}`"
        raise UsageError(
            f"{what}: several commands take no arguments, and `--jobs` makes every word a command",
            hint=f'write words that belong together as one: "{" ".join(words[:2])}"',
        )
    for place, word in enumerate(words):
        if word in words[:place]:
            raise UsageError(f"`{word}` is named twice", hint="name each command once")
        if place and word not in level.commands and _belongs(project, word, words[place - 1]):
            env = ["--env", project.env] if project.env else []
            joined = [*words[: place - 1], f'"{words[place - 1]} {word}"', *words[place + 1 :]]
            typed = " ".join(["fdl", *env, "--jobs", str(jobs), *joined])
            refused = unknown(project.select([word]), project)
            refused.hint = f"write words that belong together as one: {typed}"
            raise refused
    return [_split(level, word) for word in words]


def _belongs(project: Project, word: str, before: str) -> bool:
    """Whether a word is a preset or command of the command that the word before it names."""
    reached, rest = project.descend(_split(project.level(), before))
    return bool(reached.names) and not rest and word in reached.commands


def _refused(selected: Selection, words: Sequence[str], project: Project) -> FdlError:
    """The error for words that are not a command that runs."""
    if not selected.known and words[0] in BUILTINS:
        return UsageError(
            f"`{words[0]}` is a built-in command, and `--jobs` runs commands of the project",
            hint=f"fdl {' '.join(words)}",
        )
    if not selected.known:
        return unknown(selected, project)
    return UsageError(
        f"`fdl {' '.join(words)}` runs nothing by itself",
        hint=f"`fdl {' '.join(words)} --help` lists its commands",
    )
