"""Values that the program of a command gets, where each comes from, and changing it there."""

from __future__ import annotations

from fdl.base.errors import FdlError, SelectionError, UsageError
from fdl.base.masking import KNOWN, PLAN_VARIABLE
from fdl.base.secrets import REDACTED, is_secret
from fdl.manifest.inspect.document import SCHEMA_VERSION, node_of
from fdl.manifest.inspect.field import (
    OVERRIDDEN,
    PART,
    REMOVED,
    WINS,
    Field,
    Origins,
    Report,
    Statement,
    parse,
    stacks,
    stated,
)
from fdl.manifest.node import Node
from fdl.manifest.secrecy import tree
from fdl.manifest.select.command import Selection
from fdl.manifest.select.level import PRESET, RUN, Level
from fdl.manifest.select.unknown import hint_about
from fdl.manifest.words import RIVALS
from fdl.plan.command import plan_of
from fdl.plan.generate import FIELDS, present, removed_by, settings, spelled
from fdl.plan.planner import Planner
from fdl.plan.probe import learn, learn_about
from fdl.plan.redaction import redacted
from fdl.plan.spelling import Spelling
from fdl.plan.value import Plan
from fdl.programs.parameters.parameter import UNSET, choice_text
from fdl.programs.parameters.parser import added, typed, typed_values
from fdl.programs.schema import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fdl.manifest.inspect.field import Path
    from fdl.manifest.node import Variable
    from fdl.manifest.select.project import Project
    from fdl.plan.planner import Host
    from fdl.programs.parameters.contract import Schema
    from fdl.programs.parameters.parameter import Parameter


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
        self.level: Level = page.level
        self.kind = page.kind
        self.name = page.name
        self.plan = plan
        self.host = host
        self.schema: Schema | None = None if page.kind == RUN else learn(page.level, host)
        if self.schema is not None and plan.subcommand:
            self.schema, _ = select(self.schema, plan.subcommand)
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
        declared = Spelling(self.schema).declared(asked)
        flag = declared.display if declared else "--" + asked.removeprefix("--").replace("_", "-")
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


def page_of(project: Project, words: Sequence[str]) -> Selection:
    """What words behind the environment name; nothing is planned.

    Raises:
        FdlError: They name nothing that can run, or a manifest on the path is broken.
    """
    page = project.select(words, help_wanted=True) if words else None
    if page and not page.known:
        raise unknown(page, project)
    if page and (page.name or page.level.entry):
        return page
    level = page.level if page else project.level()
    names = ", ".join(level.commands)
    hint = f"name one of its commands: {names}" if names else "name a command that runs something"
    raise SelectionError(f"`{' '.join(['fdl', *level.names])}` runs nothing", hint=hint)


def resolved(project: Project, words: Sequence[str], place: Host) -> Command:
    """A command line with every value that its program gets. Starts no command.

    A program may be asked for its arguments, as for its help page. The words are those behind the
    environment.

    Raises:
        FdlError: The words name nothing that can run, or a manifest on the path is broken.
    """
    selected = project.select(words) if words else None
    if selected and not selected.known:
        raise unknown(selected, project)
    page = page_of(project, words)
    if selected is None or not selected.runs:
        raise UsageError(f"`{page.level.typed()}` runs nothing", hint="leave out --refresh-schema")
    learn_about(selected, place)
    plan = plan_of(selected, project, place)
    if page.kind != RUN:
        page.level = Planner(project.directory, place).with_values(page.level, page.preset)
    return Command(page, plan, place, project.warnings)


def unknown(found: Selection, project: Project) -> FdlError:
    """The error for a word that does not name a command, with the nearest name."""
    level, token = found.level, found.name
    hint = hint_about(found, project)
    if token.startswith("-"):
        hint = hint or "options of a command stand behind it"
        return UsageError(f"unknown option: {token}", hint=hint)
    problem = f"unknown command: {' '.join([*level.names, token])}"
    if not level.names:
        problem += f"; and there is no fdl.{token}.yml in {level.root}"
    return SelectionError(problem, hint=hint or "`fdl list` names them all")


_FLAGS = {(section, field): flag for section, field, flag in FIELDS}


def fields(target: Command) -> list[Field]:
    """The fields of a command, in the order of a manifest."""
    found = [*_run(target)] if target.kind == RUN else [*_entry(target)]
    found += [*_env_files(target), *_variables(target), *_unset_variables(target)]
    return found if target.kind == RUN else [*found, *_Settings(target).fields()]


def _run(target: Command) -> Iterator[Field]:
    path = ("commands", target.name)
    spec = tree(target.level.commands[target.name], path)
    for key in ("run", "append", "errexit", "cwd", "docker", "confirm"):
        if node := spec.get(key):
            yield target.origins.field((key,), [node, *node.losers])


def _entry(target: Command) -> Iterator[Field]:
    level = target.level
    parent = level.scopes[-1] if level.names else None
    preset = level.commands.get(target.name)
    own, *others = [tree(one) for one in (level.manifest.node, parent, preset) if one is not None]
    for key in ("entry", "cwd", "docker", "confirm"):
        scopes = [own] if key == "docker" else [*reversed(others), own]
        nodes = [node for scope in scopes if (node := scope.get(key))]
        if nodes:
            stack = [one for node in nodes for one in (node, *node.losers)]
            yield target.origins.field((key,), stack)


def _scopes(target: Command) -> list[Node]:
    """The mappings whose ``env_file`` applies, strongest first."""
    named = target.level.commands.get(target.name)
    return [*([named] if named else []), *reversed(target.level.scopes)]


def _env_files(target: Command) -> Iterator[Field]:
    given = [node for scope in _scopes(target) if (node := scope.get("env_file"))]
    if not given:
        return
    value = [item for node in reversed(given) for item in _items(node.plain())]
    stacks = [target.origins.statements([node, *node.losers]) for node in given]
    for stack in stacks:
        stack[0].role, stack[0].merge = PART, "append"
    stacks[0][0].role = WINS
    # Every scope adds its files. Files that layers of one scope have replaced come last.
    own, replaced = [stack[0] for stack in stacks], [one for stack in stacks for one in stack[1:]]
    yield Field(("env_file",), value, [*own, *replaced])


def _variables(target: Command) -> Iterator[Field]:
    for one in target.plan.variables:
        if one.name == PLAN_VARIABLE:
            continue
        said = [(one.value, one.origin), *one.losers]
        stack = [
            _variable(one, value, origin, OVERRIDDEN if place else WINS)
            for place, (value, origin) in enumerate(said)
        ]
        yield Field(("env", one.name), stack[0].value, stack)


def _unset_variables(target: Command) -> Iterator[Field]:
    """Variables that a null removes from the program."""
    known = {one.name for one in target.plan.variables}
    scopes = [env for scope in _scopes(target) if (env := tree(scope).get("env"))]
    for name in dict.fromkeys(name for env in scopes for name in env.mapping):
        said = [env.mapping[name] for env in scopes if name in env.mapping]
        if name not in known and len(said) > 1:
            nodes = [node for one in said for node in (one, *one.losers)]
            yield target.origins.field(("env", name), nodes, removed=True)


def _variable(one: Variable, value: str, origin: str, role: str) -> Statement:
    shown = REDACTED if one.secret else KNOWN.text(value)
    return stated(role, "environment" if origin == "shell" else origin, shown)


class _Settings:
    """The settings that become flags of a program, and the flags it declares itself."""

    def __init__(self, target: Command) -> None:
        node = tree(target.level.manifest.node)
        commands = node.get("commands")
        self.target = target
        self.origins = target.origins
        self.base = node
        self.preset = commands.get(target.preset) if commands and target.preset else None
        self.merged = settings(node, self.preset)
        self.options: dict[str, Parameter] = target.schema.options if target.schema else {}
        self.words: dict[str, Parameter] = target.schema.spellings if target.schema else {}
        self.spelling = Spelling(target.schema, target.level.style)
        self.names = {
            (section, field): spelled(field, flag, self.spelling)[1]
            for (section, field), flag in _FLAGS.items()
        }
        self.paths = self._paths()
        switches = [flag for flag, path in self.paths.items() if self._value(path) is True]
        self.typed = typed_values([*target.plan.kept, *target.plan.typed], target.schema, switches)
        self._leave_to_typed()

    def _leave_to_typed(self) -> None:
        """Drop ``mode``, or ``policy`` and ``backend``, if typed flags set the other of the two."""
        for name, rivals in RIVALS.items():
            for rival in rivals if f"--{name}" in self.typed else ():
                if f"--{rival}" not in self.typed:
                    self.merged["ddp"].pop(rival, None)
        self.paths = self._paths()

    def fields(self) -> Iterator[Field]:
        """One field per flag that any place sets, in the order in which flags are generated."""
        done: set[str] = set()
        for flag, path in self.paths.items():
            done.add(flag)
            yield from self._parts(path, flag)
        yield from self._dropped()
        yield from self._removed()
        for flag in [*(one.display for one in self.options.values()), *self.typed]:
            if flag not in done:
                done.add(flag)
                named = [one for one, name in self.names.items() if name == flag]
                field = self._field(named[0] if named else ("options", flag.lstrip("-")), flag)
                if field.stack:
                    yield field

    def _parts(self, path: tuple[str, str], flag: str) -> Iterator[Field]:
        """The field of a flag; for a mapping of the manifest one field for each value inside."""
        field = self._field(path, flag)
        node = self.merged[path[0]].get(path[1])
        if node is None or not node.mapping or not field.top.file:
            yield field
            return
        preset = present(path[0], self.preset).get(path[1])
        for inner, nodes in stacks(node, path):
            said = self.origins.statements(nodes)
            own = preset.get(inner[-1]) if preset else None
            for one in said[: 1 + len(own.losers) if own else 0]:
                one.source = f"preset {self.target.preset}"
            yield Field(inner, nodes[0].plain(), said, flag)

    def _paths(self) -> dict[str, tuple[str, str]]:
        """Flag -> the field that generates it; of several the last, which the program uses."""
        found: dict[str, tuple[str, str]] = {}
        for path, flag in self.names.items():
            if path[1] in self.merged[path[0]]:
                # The exception is `timeline`: generated once, from the first field that is true.
                if flag in found and self._value(found[flag]) is True:
                    continue
                found[flag] = path
        nested = [("training", key) for key in self.merged["training"] if "." in key]
        for path in (*nested, *(("options", key) for key in sorted(self.merged["options"]))):
            found[self.spelling.flag(path[1], self.spelling.declared(path[1]))] = path
        return found

    def _value(self, path: tuple[str, str]) -> object:
        node = self.merged[path[0]].get(path[1])
        return node.value if node else None

    def _field(self, path: tuple[str, str], flag: str) -> Field:
        one = self.words.get(flag)
        by_hand, variable = self._typed(flag), self._program_variable(one)
        merged = self.merged[path[0]].get(path[1])
        said = [*by_hand, *variable]
        value = said[0].value if said else merged.plain() if merged else None
        generated = self._generated(path, flag)
        is_foreign = self.target.schema is not None and self.target.schema.foreign
        if merged and one and one.adds_up and by_hand and not variable and is_foreign:
            # The program gets those of the manifest, too.
            by_hand[0].merge, generated[0].role = "append", PART
            is_list = one.shape == "list"
            below = [item.plain() for item in merged.listed] if is_list else merged.value
            value = added(below, value)
        else:
            for statement in generated if said else ():
                statement.role = OVERRIDDEN
        said += generated
        said += self._declared(one)
        if said:
            said[0].role = WINS
            value = said[0].value if len(said) == 1 else value
        return Field(path, value, said, flag)

    def _typed(self, flag: str) -> list[Statement]:
        return [
            Statement(OVERRIDDEN, "command line", self._shown(flag, value))
            for value in reversed(self.typed.get(flag, []))
        ]

    def _program_variable(self, one: Parameter | None) -> list[Statement]:
        """The environment variable that the program itself reads for the option."""
        if one is None or not one.env:
            return []
        plan = self.target.plan
        inside = {known.name: known.value for known in plan.variables}
        outside = {} if plan.service else self.target.host.variables
        text = {**outside, **inside}.get(one.env)
        if not text:
            return []
        secret = any(known.secret and known.name == one.env for known in plan.variables)
        value = REDACTED if secret or is_secret(one.env, text) else typed(text, one)
        source = f"environment variable {one.env}"
        return [Statement(OVERRIDDEN, source, self._shown(one.display, value))]

    def _generated(self, path: tuple[str, str], flag: str) -> list[Statement]:
        """The statements of manifest and preset, for every field that becomes this flag."""
        paths = [path, *(one for one, name in self.names.items() if name == flag and one != path)]
        made: list[Statement] = []
        for section, field in paths:
            node = self.merged.get(section, {}).get(field)
            if node is None:
                continue
            parts = [loser for part in node.mapping.values() for loser in part.losers]
            statements = self.origins.statements([node, *node.losers, *parts])
            own = self._own(section, field)
            for place, one in enumerate(statements):
                if place < own:
                    one.source = f"preset {self.target.preset}"
                if made:
                    one.role = OVERRIDDEN
            made += statements
        return made

    def _own(self, section: str, field: str) -> int:
        """How many of a field's statements are from the preset."""
        node = present(section, self.preset).get(field)
        return 1 + len(node.losers) if node else 0

    def _declared(self, one: Parameter | None) -> list[Statement]:
        # The default of `--resume [RUN]` counts only where the option is given without a value.
        if one is None or one.default is UNSET or one.absent() is None:
            return []
        value = one.default
        if not isinstance(value, bool | int | float | list):
            value = choice_text(value)
        return [Statement(OVERRIDDEN, "schema default", self._shown(one.display, value))]

    def _removed(self) -> Iterator[Field]:
        """Fields of the manifest that the preset removes by a null."""
        for section in self.merged:
            base = present(section, self.base)
            for name, null in removed_by(section, self.preset, base).items():
                yield self._gone((section, *name.split(".")), null, base[name])

    def _dropped(self) -> Iterator[Field]:
        """Fields of the manifest that the preset drops by setting the same in another way."""
        base = self.base.get("ddp")
        for name, node in (base.mapping if base else {}).items():
            merged = self.merged["ddp"]
            rival = next((merged[one] for one in RIVALS.get(name, ()) if one in merged), None)
            if node.value is None or name in merged or rival is None:
                continue
            yield self._gone(("ddp", name), rival, node)

    def _gone(self, path: Path, by: Node, node: Node) -> Field:
        """The field of the manifest that a value of the preset removes."""
        top = self.origins.statement(REMOVED, by)
        top.source, top.value = f"preset {self.target.preset}", None
        said = self.origins.statements([node, *node.losers])
        said[0].role = OVERRIDDEN
        return Field(path, None, [top, *said])

    def _shown(self, flag: str, value: object) -> object:
        if is_secret(flag, value):
            return REDACTED
        return KNOWN.texts(value)


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else [value]
