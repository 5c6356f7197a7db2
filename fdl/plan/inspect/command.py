"""The values that the program of one command line gets, and why."""

from __future__ import annotations

from fdl.base.errors import FdlError, SelectionError, UsageError
from fdl.manifest.inspect.document import SCHEMA_VERSION, node_of
from fdl.manifest.inspect.field import WINS, Field, Origins, Statement
from fdl.manifest.inspect.manifest import Report
from fdl.manifest.inspect.path import parse
from fdl.manifest.select.classify import PRESET, RUN
from fdl.manifest.select.command import Selection
from fdl.manifest.select.level import Level
from fdl.plan.command import plan_of
from fdl.plan.planner import Planner
from fdl.plan.value import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.cli.commands.verb import Call
    from fdl.manifest.inspect.field import Path
    from fdl.manifest.node import Node
    from fdl.manifest.select.project import Project
    from fdl.plan.planner import Host
    from fdl.programs.parameters.contract import Schema


class Command:
    """A command line, resolved, with every value that its program gets.

    Attributes:
        level: The level that holds the command.
        kind: ``run``, ``preset``, or ``level`` for the entry of the level itself.
        name: The command of ``level`` for the first two kinds.
        plan: The plan that would run.
        schema: The known arguments of the program, or None.
        host: Where it would run.
        origins: Turns nodes of its manifest into statements.
        fields: Its fields, in the order of a manifest.
        argv: The tokens that are started, without secrets.
        warnings: Warnings about the manifests.
    """

    def __init__(self, page: Selection, plan: Plan, host: Host, warnings: list[str]) -> None:
        from fdl.plan.inspect.program import fields
        from fdl.plan.probe import learn
        from fdl.plan.redaction import redacted
        from fdl.programs.schema.subcommand import select

        self.level: Level = page.level
        self.kind = page.kind
        self.name = page.name
        self.plan = plan
        self.host = host
        self.schema: Schema | None = None if page.kind == RUN else learn(page.level, host)
        if self.schema is not None and plan.subcommand:
            self.schema = select(self.schema, plan.subcommand).schema
        self.origins = Origins(plan.root, page.level.manifest)
        self.fields = fields(self)
        self.argv = redacted(plan).argv
        self.warnings = warnings

    @property
    def preset(self) -> str | None:
        """The name of the preset, if the command line names one."""
        return self.name if self.kind == PRESET else None

    @property
    def typed(self) -> str:
        """The command without its arguments: ``fdl train quick``."""
        return self.level.typed(*([self.name] if self.name else []))

    def as_dict(self) -> dict[str, object]:
        """The command without its fields, as JSON data."""
        plan = self.plan
        return {
            "schema_version": SCHEMA_VERSION,
            "command": plan.command,
            "kind": plan.kind,
            "preset": plan.preset,
            "argv": self.argv,
        }

    def find(self, asked: str) -> list[Field]:
        """The fields of a name: a manifest path, a mapping, a flag, or a field that was removed."""
        from fdl.plan.spelling import Spelling

        declared = Spelling(self.schema).declared(asked)
        flag = declared.flag if declared else "--" + asked.removeprefix("--").replace("_", "-")
        found = [one for one in self.fields if f"{one.plain_name}.".startswith(f"{asked}.")] or [
            one for one in self.fields if one.name == asked or one.flag in (flag, asked)
        ]
        if all(one.top.source == "schema default" for one in found):
            return self._removed(asked) or found
        return found

    def _removed(self, asked: str) -> list[Field]:
        """The field of this name, if a layer has removed it for this command; else empty."""
        try:
            path = parse(asked)
        except UsageError:
            return []
        report = Report(self.level.manifest, self.plan.root)
        prefixes: list[Path] = [("commands", self.name)] if self.name else []
        return [
            Field(path, None, field.stack)
            for prefix in [*prefixes, ()]
            for field in report.explain((*prefix, *path))
            if field.removed
        ][:1]

    def page(self) -> tuple[Node, list[Field]]:
        """The tree and the fields to show: every field, then the argument vector."""
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
        return node_of(tree), fields


def behind_environment(call: Call, words: Sequence[str]) -> tuple[Project, list[str]]:
    """The project, and the command that the words name; their first word may be an environment.

    A word that names both is the command, as ``fdl --env NAME`` still names the environment.

    Raises:
        FdlError: There is no project, or the environment has no overlay in it.
    """
    from fdl.base import output
    from fdl.manifest.layers import overlay_file
    from fdl.manifest.select.project import Project, base_commands, locate, required

    found = required(locate())
    rest = list(words)
    if rest[:1] == ["--"]:
        del rest[0]
    word = rest[0] if rest else ""
    is_command = bool(word) and word in base_commands(found, write_cache=False)
    if word and overlay_file(found.directory, word):
        if not is_command:
            return call.project(word), rest[1:]
        output.note(f"`{word}` is the command here; for the environment, type --env {word}")
    elif word and not is_command and ("," in word or word in Project(found).nested()):
        return call.project(word), rest[1:]
    return call.project(), rest


def look_at(call: Call, words: Sequence[str]) -> Command:
    """Resolve a command line and explain every value that its program gets. Starts no command.

    A program may be asked for its arguments, as for its help page. The words are those after
    ``fdl``.

    Raises:
        FdlError: The words name nothing that can run, or a manifest on the path is broken.
    """
    return resolved(call, *behind_environment(call, words))


def page_of(project: Project, words: Sequence[str]) -> Selection:
    """What words behind the environment name; nothing is planned.

    Raises:
        FdlError: They name nothing that can run, or a manifest on the path is broken.
    """
    page = project.select(words, help_wanted=True) if words else None
    if page and not page.known:
        raise unknown(page)
    if page and (page.name or page.level.entry):
        return page
    level = page.level if page else project.level()
    names = ", ".join(level.commands)
    hint = f"name one of its commands: {names}" if names else "name a command that runs something"
    raise SelectionError(f"`{' '.join(['fdl', *level.names])}` runs nothing", hint=hint)


def resolved(call: Call, project: Project, words: Sequence[str]) -> Command:
    """The values of the command that words behind the environment name; see :func:`look_at`."""
    from fdl.plan.probe import learn_about

    invocation = call.invocation
    selected = project.select(words) if words else None
    if selected and not selected.known:
        raise unknown(selected)
    page = page_of(project, words)
    if selected is None or not selected.runs:
        raise UsageError(f"`{page.level.typed()}` runs nothing", hint="leave out --refresh-schema")
    learn_about(selected, call.here())
    plan = plan_of(selected, project, invocation, call.here())
    if page.kind != RUN:
        planner = Planner(project.directory, call.here(), invocation.exported(), invocation.append)
        page.level = planner.with_values(page.level, page.preset)
    return Command(page, plan, call.here(), project.warnings)


def unknown(found: Selection) -> FdlError:
    """The error for a word that does not name a command, with the nearest name."""
    from fdl.base.global_flags import GLOBAL_FLAGS, misplaced
    from fdl.base.suggest import did_you_mean
    from fdl.manifest.select.above import of_the_project_above

    level, token = found.level, found.name
    if token.startswith("-"):
        flags = ("--json", *GLOBAL_FLAGS)
        hint = did_you_mean(token, flags, "options of a command stand behind it")
        hint = misplaced(token, level.manifest.env) or hint
        return UsageError(f"unknown option: {token}", hint=hint)
    every = "`fdl list` names them all"
    hint = did_you_mean(token, level.commands, every, typed=level.typed("{}"))
    problem = f"unknown command: {' '.join([*level.names, token])}"
    if not level.names:
        problem += f"; and there is no fdl.{token}.yml in {level.root}"
        hint = of_the_project_above(level, token) or hint
    return SelectionError(problem, hint=hint)
