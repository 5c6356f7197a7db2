"""Commands with everything they need, each once, in an order in which they can run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from fdl.base.errors import ManifestError
from fdl.base.light_record import Record
from fdl.base.suggest import nearest
from fdl.manifest.node import Node, origin
from fdl.manifest.select.command import Selection
from fdl.manifest.select.level import Level
from fdl.manifest.select.project import Project
from fdl.plan.value import Plan
from fdl.run.freshness import Digests, Patterns, Rule

MakePlan = Callable[[Selection], Plan]
"""What a selected command runs."""

_Key = tuple[str, ...]


class Step(Record):
    """One command of a chain.

    Attributes:
        plan: What runs.
        needs: Places of the steps that must succeed before it.
        rule: When it may be skipped.
        asked: Whether it was typed, not only needed.
    """

    plan: Plan
    needs: Sequence[int]
    rule: Rule
    asked: bool = False

    @property
    def name(self) -> str:
        """The command as it is typed after ``fdl``."""
        return " ".join(self.plan.command)


class Chain:
    """Steps in an order in which each one stands behind those that it needs.

    Args:
        project: The project.
        plan: Makes the plan of a needed command.

    Attributes:
        steps: The steps.
    """

    def __init__(self, project: Project, plan: MakePlan) -> None:
        self.steps: list[Step] = []
        self._project = project
        self._plan = plan
        self._places: dict[_Key, int] = {}
        self._digests = Digests(project.directory)

    def add(self, plan: Plan) -> None:
        """Add a command that was typed, behind everything that it needs.

        Raises:
            ManifestError: Commands need each other in a circle, or need an unknown one.
        """
        self.steps[self._add(plan, {})].asked = True

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
            return self._plan(found)
        close = None
        if not found.known and found.name in words:
            close = nearest(found.name, found.level.commands)
            words[words.index(found.name)] = close or found.name
        raise self._unknown(node, plan, close and shlex.join(words))

    def _unknown(self, node: Node, plan: Plan, close: str | None) -> ManifestError:
        return ManifestError(
            f"{self._place(node)}: `fdl {' '.join(plan.command)}` needs `{node.value}`, which is "
            "not a command that runs",
            hint=f"did you mean `{close}`?" if close else "`fdl list` names the commands",
        )

    def _circle(self, key: _Key, above: dict[_Key, Node]) -> ManifestError:
        names = list(above)
        ring = names[names.index(key) :]
        way = [f"`{' '.join(one[: one.index('--')])}` ({self._place(above[one])})" for one in ring]
        return ManifestError(
            f"{self._place(above[ring[-1]])}: commands need each other in a circle: "
            f"{' -> '.join([*way, way[0].partition(' (')[0]])}",
            hint="remove one of these `needs`",
        )

    def _place(self, node: Node) -> str:
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
