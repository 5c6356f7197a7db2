"""A resolved command -> a complete Plan: tokens, folder, variables, container.

Imported on the warm path. Imports that only entries or containers need are inside functions.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH110, PTH112, PTH118
from __future__ import annotations

import os
import sys

from fdl.base.errors import ManifestError, UsageError
from fdl.base.light_record import Record
from fdl.base.masking import PLAN_VARIABLE
from fdl.base.shell_words import compose, join, quote_cmd
from fdl.base.venv import locate, programs
from fdl.manifest.node import Variable, origin, texts
from fdl.plan.script import shell_text, stops_at_failures
from fdl.plan.value import GRACE_S, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.plan.arguments import Arguments
    from fdl.programs.parameters.contract import Schema

# Linux refuses a variable of 128 KiB or more. A plan that large is not passed on.
_PLAN_LIMIT_BYTES = 96 * 1024

_GUARDS = "FLODL_GUARDS"
"""``guards:`` of a training as JSON; the Trainer of flodl reads it."""

_RANK_FLAGS = ("--ranks", "--nodes", "--rdzv", "--max-restarts", "--mode")
_DEPENDING = frozenset(("needs", "inputs"))
"""Keys of a command that waits for others, or may be skipped."""

IN_CONTAINER = "this machine is a container"
"""End of the note of a plan whose ``docker`` service is not used."""
UNCHECKED = "passes it unchecked"
"""End of the note about options that are passed as a guess."""


class Host(Record):
    """The inputs of a plan besides the manifest.

    Attributes:
        variables: The environment variables.
        in_container: Whether fdl itself runs inside a container; then no plan is wrapped.
        terminal: Whether both stdin and stdout are a terminal.
        elsewhere: Whether another machine runs the plan, so that the ranks are planned there.
        exported: Variables that pass global flags to child processes.
        append: Whether to use ``append:``.
    """

    variables: Mapping[str, str]
    in_container: bool
    terminal: bool
    elsewhere: bool = False
    exported: Mapping[str, str] = {}
    append: bool = True


def here(
    exported: Mapping[str, str] = {}, *, append: bool = True, host: Host | None = None
) -> Host:
    """The host of this process, or another one, with the global flags of a call.

    A file that Docker makes marks its containers.
    """
    if host is not None:
        return host.replaced(exported=exported, append=append)
    terminal = os.isatty(0) and os.isatty(1)
    in_container = os.path.exists("/.dockerenv")
    return Host(os.environ, in_container, terminal, exported=exported, append=append)


JOIN_VARIABLE = "FLODL_JOIN"
"""Address of a training whose ranks come and go. Who joins it has no run of its own."""


class Planner(Record):
    """Makes plans for one command line.

    Args:
        root: Directory of the project.
        host: Where the plan will be executed.
        distributes: Whether fdl starts the ranks that ``ddp`` asks for. If not, the program gets
            every setting as a flag and decides itself.
        keeps: Whether what is read from the source of programs may be cached.
        secrets: Gives the secret texts of the manifests, which the program must not record.
    """

    root: str
    host: Host
    distributes: bool = True
    keeps: bool = False
    secrets: Callable[[], Sequence[str]] = tuple

    def run(self, level: Level, name: str, words: Sequence[str]) -> Plan:
        """The plan of a ``run:`` command.

        Args:
            level: Where the command is.
            name: Its name.
            words: The words behind it; those before ``--`` are for a command with ``args:``.

        Raises:
            ManifestError: Its variables cannot be settled, or its container is not available.
            UsageError: The words do not fit ``args:``, or belong behind ``--``.
        """
        spec = level.commands[name]
        cut = words.index("--") if "--" in words else len(words)
        given, user = words[:cut], words[cut + 1 :]
        if cut and not spec.get("args"):
            raise UsageError(
                f"arguments of `{level.typed(name)}` go after `--`",
                hint=f"{level.typed(name)} -- {join([*given, *user])}",
            )
        service = self._service(spec)
        argv, variables = self._script(level, name, given, user, in_service=bool(service))
        plan = Plan(
            kind="run",
            command=[*level.names, name],
            argv=argv,
            typed=user,
            cwd=level.start_folder(name),
            root=self.root,
            service=service,
            origin=origin(spec.get("run") or spec, self.root),
            environment=level.manifest.env,
            secrets=[
                str(node.value)
                for node in (spec.get("run"), spec.get("append"))
                if node and node.secret
            ],
            depends=not _DEPENDING.isdisjoint(spec.mapping),
        )
        self._settle(plan, (*level.scopes, spec), spec, spec.get("cwd"))
        for variable in variables:
            plan.set(variable)
            plan.given.append(f"{variable.name}={variable.value}")
        return self._contained(plan, plan.argv[1:]) if service else self._on_host(plan)

    def _script(
        self,
        level: Level,
        name: str,
        words: Sequence[str],
        user: Sequence[str],
        *,
        in_service: bool,
    ) -> tuple[list[str], list[Variable]]:
        """The words that start the script of a command, and the variables of its ``args:``."""
        spec = level.commands[name]
        on_windows = os.name == "nt" and not in_service
        text = spec.text("run") or ""
        append = spec.text("append") if self.host.append else None
        if on_windows:
            script = compose(text, append, user, quote_cmd)
        else:
            script = shell_text(text, append, user, name)
        variables: list[Variable] = []
        if spec.get("args"):
            from fdl.plan.declared import given

            variables, arguments = given(level, name, words, self.host.variables)
            if arguments and not on_windows:
                script = f"set -- {join(arguments)}\n{script}"
        shell = ["sh", "-e"] if stops_at_failures(text, spec.get("errexit")) else ["sh"]
        return (["cmd", "/C", script] if on_windows else [*shell, "-c", script]), variables

    def entry(self, level: Level, preset: str | None, made: Arguments) -> Plan:
        """The plan of a level's ``entry``.

        Args:
            level: Where the entry is.
            preset: Name of the preset, or None.
            made: The arguments of the program.

        Raises:
            ManifestError: Its variables cannot be settled, or its container is not available.
            UsageError: ``FDL_MEMORY`` is not a known word, or the requested ranks are impossible.
        """
        from fdl.plan.heap import keep_heap
        from fdl.plan.recorded import recording

        plan = self._of_entry(level, preset, made)
        spec = level.commands[preset] if preset else None
        cwd = (spec.get("cwd") if spec else None) or level.cwd
        named = (*level.scopes, spec) if spec else level.scopes
        self._settle(plan, named, level.manifest.node, cwd)
        keep_heap(plan, level.scopes, self.host.variables)
        outside: Mapping[str, str] = {} if plan.service else self.host.variables
        if made.schema is not None and not made.schema.origins:
            _yield_to_variables(plan, made.schema, outside)
        if not plan.service:
            self._on_host(plan)
        if self.distributes and _concerns_ranks(level, preset, made.tail):
            from fdl.plan.ranks import Distribution

            distribution = Distribution(plan, level, preset, made.schema, self.host.variables)
            plan.elastic = distribution.elastic
            if not self.host.elsewhere:
                distribution.settle()
        plan.drop_separator()
        _hand_down_guards(plan, level, preset)
        hand_down(plan, self.secrets())
        if JOIN_VARIABLE not in self.host.variables:
            plan.record = recording(plan, level, preset, made.schema, outside)
        return self._contained(plan, ["-c", join(plan.argv)]) if plan.service else plan

    def _of_entry(self, level: Level, preset: str | None, made: Arguments) -> Plan:
        """The plan of an entry, without what depends on its variables."""
        entry = level.entry
        own = [one for one in (level.spec, *level.holders(preset)[1:]) if one]
        return Plan(
            kind="entry",
            command=[*level.names, *([preset] if preset else [])],
            argv=[*made.argv, *made.tail],
            typed=made.tail,
            cwd=level.start_folder(preset),
            root=self.root,
            service=self._service(level.manifest.node),
            flags=made.flags,
            preset=preset,
            origin=origin(entry, self.root) if entry else "",
            environment=level.manifest.env,
            secrets=made.argv[: made.words] if entry and entry.secret else [],
            subcommand=made.subcommand,
            commands=[] if preset else list(level.commands),
            depends=any(not _DEPENDING.isdisjoint(one.mapping) for one in own),
        )

    def with_values(self, level: Level, preset: str | None) -> Level:
        """The level with values in place of ``${VAR}``, if any of its settings has one.

        Raises:
            ManifestError: A variable is not set, or its value is not allowed in that place.
        """
        nodes = level.holders(preset)
        sections = [node.get(key) for node in nodes for key in ("training", "output", "options")]
        if not any(section and _refers(section) for section in sections):
            return level
        from fdl.manifest.variables import finder, with_values

        scopes = (*level.scopes, *nodes[1:])
        variables = self.host.variables
        return with_values(level, preset, finder(scopes, self.root, variables, self.host.exported))

    def _service(self, holder: Node) -> str | None:
        """The docker service of a command; None inside a container."""
        return None if self.host.in_container else holder.text("docker")

    def _settle(self, plan: Plan, scopes: Sequence[Node], holder: Node, cwd: Node | None) -> None:
        """Add what the manifest says about any command: its question, end, cluster and variables.

        Args:
            plan: The plan.
            scopes: The mappings that concern the command, weakest first.
            holder: The mapping that may name its docker service.
            cwd: What names its folder.
        """
        if self.host.in_container and (docker := holder.get("docker")):
            plan.notes.append(
                f"docker service `{docker.value}` ({origin(docker, self.root)}) was skipped: "
                f"{IN_CONTAINER}"
            )
        if cwd:
            _require_folder(plan, cwd)
        for scope in scopes:
            # The question of a path command is also that of the commands below it.
            plan.confirm = scope.text("confirm") or plan.confirm
            if "secrets" in scope.mapping:
                plan.secrets += _listed(scope, self.host.variables)
            if (cluster := scope.get("slurm")) is not None:
                plan.slurm.append(cluster)
            if (limit := scope.mapping.get("stop_timeout")) is not None:
                plan.stop_timeout = _seconds(limit)
            if (grace := scope.mapping.get("grace")) is not None:
                given = _seconds(grace)
                plan.grace = GRACE_S if given is None else given
        self._add_variables(plan, scopes)

    def _add_variables(self, plan: Plan, scopes: Sequence[Node]) -> None:
        """Add the variables from ``env`` and ``env_file``, and those that global flags set."""
        shell, mine = self.host.variables, self.host.exported
        settled: list[Variable] = []
        if any("env" in scope.mapping or "env_file" in scope.mapping for scope in scopes):
            from fdl.manifest.variables import variables

            settled = variables(scopes, self.root, shell, mine)
        for variable in settled:
            if variable.origin == "shell":
                plan.variables.append(variable)
            else:
                plan.set(variable)
        for name, value in mine.items():
            if name not in plan.env:
                plan.set(Variable(name, value, "command line"))

    def _on_host(self, plan: Plan) -> Plan:
        """Add the variables for children on this machine: project root, programs and libtorch."""
        plan.set(Variable("FDL_PROJECT_ROOT", self.root, "fdl"))
        shell = self.host.variables
        path = shell.get("PATH", os.defpath)
        if scripts := programs(plan.cwd):
            path = scripts + os.pathsep + path
            plan.set(Variable("PATH", path, "fdl"))
        if os.path.isdir(os.path.join(self.root, "libtorch")):
            from fdl.libtorch.active import host_variables

            for name, value in host_variables(self.root, {**shell, **plan.env}).items():
                plan.set(Variable(name, value, "libtorch/.active"))
        is_python = plan.kind == "entry" and plan.argv[0] == "python"
        if is_python and locate("python", path, plan.cwd) is None:
            plan.argv[0] = sys.executable
        return plan

    def _contained(self, plan: Plan, inner: list[str]) -> Plan:
        """Wrap the plan into ``docker compose run``."""
        from fdl.plan.container import wrap

        here = self.host
        return wrap(plan, inner, here.variables, terminal=here.terminal)


def _refers(node: Node) -> bool:
    """Whether any text in a value may hold ``${VAR}`` or ``$$``."""
    value = node.value
    if isinstance(value, str):
        return "$" in value
    children = value if isinstance(value, list) else node.mapping.values()
    return any(_refers(child) for child in children)


def _require_folder(plan: Plan, cwd: Node) -> None:
    if not os.path.isdir(plan.cwd):
        raise ManifestError(
            f"{origin(cwd, plan.root)}: `cwd: {cwd.value}`: there is no folder {plan.cwd}",
            hint="create it; the path is relative to the folder of the fdl.yml",
        )


def _listed(scope: Node, shell: Mapping[str, str]) -> list[str]:
    """The values of the variables that a manifest lists as secret."""
    return [shell[name] for name in texts(scope, "secrets") if name in shell]


def _seconds(node: Node) -> float | None:
    """A number of seconds, or None for null."""
    return float(node.value) if isinstance(node.value, int | float) else None


def _concerns_ranks(level: Level, preset: str | None, tail: Sequence[str]) -> bool:
    """Whether any setting concerns ranks. If not, as in most commands, an import is saved."""
    typed = (token.partition("=")[0] for token in tail)
    return any(node.get("ddp") for node in level.holders(preset)) or any(
        flag in _RANK_FLAGS for flag in typed
    )


def _hand_down_guards(plan: Plan, level: Level, preset: str | None) -> None:
    """Set the variable of ``guards:``, if the manifest or its preset has them; a preset's count.

    A null of the preset removes the guards of the manifest.
    """
    trainings = [
        training for one in reversed(level.holders(preset)) if (training := one.get("training"))
    ]
    nodes = [one.mapping["guards"] for one in trainings if "guards" in one.mapping]
    if not nodes or nodes[0].value is None:
        return
    import json

    value = nodes[0].plain()
    if isinstance(value, dict):
        value = {name: one for name, one in value.items() if one is not None}
    text = json.dumps(value, separators=(",", ":"))
    plan.set(Variable(_GUARDS, text, origin(nodes[0], plan.root)))


def _yield_to_variables(plan: Plan, schema: Schema, outside: Mapping[str, str]) -> None:
    """Remove generated flags whose options the program reads from variables that are set.

    A variable wins over the manifest. But in most parsers argv wins over the environment, so the
    variable would have no effect unless fdl leaves its own flag out.
    """
    there = {**outside, **plan.env}
    options = {
        word: one.env
        for one in schema.parameters
        if one.env and there.get(one.env)
        for word in (one.display, *one.negatives)
    }
    overruled = [flag for flag in plan.flags if flag.name in options]
    plan.drop(overruled)
    for flag in overruled:
        variable = options[flag.name] or ""
        if all(one.name != variable for one in plan.variables):
            known = Variable(variable, there[variable], "shell", secret=flag.secret)
            plan.variables.append(known)


def hand_down(plan: Plan, secrets: Sequence[str] = ()) -> None:
    """Set ``FDL_PLAN``, so that the program can record the manifest line of each argument.

    It also gets the secrets that it must not record.
    """
    import json

    known = sorted({*plan.secrets, *secrets})
    text = json.dumps({**plan.inner(), "secrets": known}, separators=(",", ":"))
    if len(text) <= _PLAN_LIMIT_BYTES:
        plan.set(Variable(PLAN_VARIABLE, text, "fdl"))
