"""The values that the program of one command line gets, and why."""

from __future__ import annotations

import shlex

from fdl.dispatch.classify import PRESET, RUN
from fdl.dispatch.walk import Help, Level, Unknown
from fdl.errors import UsageError
from fdl.inspect.document import SCHEMA_VERSION, listing, node_of
from fdl.inspect.field import WINS, Field, Statement
from fdl.inspect.manifest import Report
from fdl.inspect.path import parse
from fdl.inspect.secrecy import Manifests, script
from fdl.plan import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.app import Call
    from fdl.dispatch.planner import Surroundings
    from fdl.inspect.field import Path
    from fdl.project import Project
    from fdl.schema.contract import Schema


class Target:
    """A command line, resolved.

    Attributes:
        level: The level that holds the command.
        kind: ``run``, ``preset``, or ``level`` for the entry of the level itself.
        name: The command of ``level`` for the first two kinds.
        plan: The plan that would run.
        schema: The known arguments of the program, or None.
        surroundings: Where it would run.
        shown: Blanks out the secrets of the manifests.
    """

    __slots__ = ("kind", "level", "name", "plan", "schema", "shown", "surroundings")

    def __init__(self, page: Help, plan: Plan, surroundings: Surroundings) -> None:
        from fdl.redaction import hidden_texts
        from fdl.schema import learn

        self.level: Level = page.level
        self.kind = page.kind
        self.name = page.name
        self.plan = plan
        self.surroundings = surroundings
        self.schema: Schema | None = None if page.kind == RUN else learn(page.level, surroundings)
        self.shown = Manifests([page.level.manifest], hidden_texts(plan))

    @property
    def preset(self) -> str | None:
        """The name of the preset, if the command line names one."""
        return self.name if self.kind == PRESET else None


class Command:
    """The fields, arguments and warnings of one command line.

    Attributes:
        target: The command line, resolved.
        fields: Its fields, in the order of a manifest.
        argv: The tokens that are started, without secrets.
        warnings: Warnings about the manifests.
    """

    __slots__ = ("argv", "fields", "target", "warnings")

    def __init__(self, target: Target, fields: Sequence[Field], warnings: list[str]) -> None:
        from fdl.redaction import redacted

        self.target = target
        self.fields = list(fields)
        self.argv = redacted(target.plan).argv
        self.warnings = warnings

    def as_dict(self) -> dict[str, object]:
        """The command without its fields, as JSON data."""
        plan = self.target.plan
        return {
            "schema_version": SCHEMA_VERSION,
            "command": plan.command,
            "kind": plan.kind,
            "preset": plan.preset,
            "argv": self.argv,
        }

    def removed(self, asked: str) -> list[Field]:
        """The field of this name, if a layer has removed it for this command; else empty."""
        try:
            path = parse(asked)
        except UsageError:
            return []
        target = self.target
        report = Report(target.level.manifest, target.plan.root)
        prefixes: list[Path] = [("commands", target.name)] if target.name else []
        return [
            Field(path, None, field.stack)
            for prefix in [*prefixes, ()]
            for field in report.explain((*prefix, *path))
            if field.removed
        ][:1]

    def listing(self) -> str:
        """YAML: every field with its origin, then the argument vector."""
        argv = Field(("argv",), self.argv, [Statement(WINS, "what is started", self.argv)])
        fields = [*self.fields, argv]
        tree: dict[str, object] = {}
        for field in fields:
            if field.removed:
                continue
            mapping = tree
            for step in field.path[:-1]:
                mapping = mapping.setdefault(str(step), {})  # type: ignore[assignment]
            mapping[str(field.path[-1])] = field.value
        return listing(node_of(tree), fields, self.target.plan.root)


def look_at(call: Call, line: str, env: str | None = None) -> Command:
    """Resolve a command line and explain every value that its program gets. Starts no command.

    A program may be asked for its arguments, as for its help page.

    Args:
        call: The built-in that asks.
        line: A command line without ``fdl``, split as a shell would.
        env: An environment to use instead of the active one.

    Raises:
        FdlError: The line names nothing that can run, or a manifest on the path is broken.
    """
    from fdl.inspect.program import fields
    from fdl.prepass import scan

    invocation = scan(_words(line))
    if invocation.help or not invocation.tokens:
        raise UsageError(
            f"`{_shown(line)}` runs nothing", hint='name a command: --command "train quick"'
        )
    project = call.project(env or invocation.env)
    surroundings = call.here()
    page = project.resolve(invocation.tokens, surroundings, help_wanted=True)
    plan = project.resolve(
        invocation.tokens,
        surroundings,
        exported=invocation.exported(),
        append=invocation.append,
    )
    if isinstance(plan, Unknown):
        raise _unknown(plan)
    if not isinstance(plan, Plan) or not isinstance(page, Help):
        raise UsageError(f"`fdl {_shown(line)}` runs nothing", hint=_choices(page, project))
    plan.secrets += project.secrets()
    target = Target(page, plan, surroundings)
    return Command(target, fields(target), project.warnings)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as problem:
        raise UsageError(
            f"`--command` does not split into words: {problem}",
            hint="close the quotation or escape the character with a backslash",
        ) from None


def _shown(line: str) -> str:
    return script(line, ())


def _unknown(found: Unknown) -> UsageError:
    from fdl.suggest import nearest

    close = nearest(found.token, found.level.commands)
    hint = f"did you mean `{found.level.typed(close)}`?" if close else "`fdl list` names them all"
    return UsageError(f"unknown command: {' '.join([*found.level.names, found.token])}", hint=hint)


def _choices(page: object, project: Project) -> str:
    level = page.level if isinstance(page, Help) else project.level()
    names = ", ".join(level.commands)
    return f"name one of its commands: {names}" if names else "name a command that runs something"
