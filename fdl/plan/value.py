"""What is about to run, as a value: printed by ``--dry-run``, executed by ``fdl.run``.

Imported on the warm path: no yaml, pydantic, json, typing or dataclasses at module top.
"""

from __future__ import annotations

from fdl.base.light_record import Record
from fdl.base.masking import PLAN_VARIABLE
from fdl.base.secrets import REDACTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from fdl.manifest.node import Loser, Node, Variable


SCHEMA_VERSION = 1

GRACE_S = 10.0
"""Seconds before leftover processes are killed, without a ``grace:`` in the manifest."""


class Flag(Record):
    """One generated argument group inside ``Plan.argv`` and the place it came from.

    Attributes:
        index: Position of its first token in ``Plan.argv``.
        count: Number of tokens (``--epochs 5`` is 2, ``--timeline`` is 1).
        name: The flag, e.g. ``--epochs``.
        field: Dotted manifest path, e.g. ``training.epochs``.
        origin: ``file:line:column``, the file relative to the project root.
        secret: Whether the value is kept from print; None for one marked ``!public``.
        losers: Values it has replaced (of weaker layers, of the manifest under a preset),
            strongest first.
        reference: The variables that the value was made from, ``${A} ${B}``; empty without any.
    """

    index: int
    count: int
    name: str
    field: str
    origin: str
    secret: bool | None = False
    losers: Sequence[Loser] = ()
    reference: str = ""


class Recording(Record):
    """What is recorded about a start, and where.

    Attributes:
        runs: Folder of the runs, absolute; the run gets a folder in it.
        settings: What the program is set to: name -> its value and the origin of it.
        metrics: Metric -> the regular expressions of its value and of its step in the output.
        inside: The project's root in the container of the program; empty without one.
        folder: The folder of the run itself, if it has been chosen as that of a sweep is.
        track: The tracker to which the program logs: ``mlflow``, ``wandb`` or empty.
    """

    runs: str
    settings: Mapping[str, Mapping[str, object]] = {}
    metrics: Mapping[str, tuple[str, str]] = {}
    inside: str = ""
    folder: str = ""
    track: str = ""


class Ranks(Record):
    """How many processes of one program are started, and how they find each other.

    Attributes:
        here: Processes on this machine.
        nodes: The fewest and the most machines that take part.
        rdzv: ``host:port`` where several machines meet; empty for one machine.
        max_restarts: How often all of them are started again when one is lost.
        gpus: Names of the GPUs of this machine that they get, in their order; empty for the CPU.
        node: Number of this machine, if fdl on another one has numbered them; else None.
    """

    here: int
    nodes: tuple[int, int]
    rdzv: str
    max_restarts: int
    gpus: Sequence[str] = ()
    node: int | None = None


_LISTS = (
    "argv", "typed", "flags", "variables", "secrets", "kept", "commands", "notes", "subcommand",
    "given", "slurm",
)  # fmt: skip


class Plan(Record):
    """One execution, complete and without side effects.

    Attributes:
        kind: ``"run"`` (a shell script) or ``"entry"`` (a program with generated arguments).
        command: The command path as typed, e.g. ``["train", "quick"]``.
        environment: The environment whose overlays were used, or None.
        argv: The command's own tokens; for a run-kind ``["sh", "-c", SCRIPT]``.
        typed: The tokens among them that were typed.
        unchecked: How many of the last typed tokens stood after ``--``. The program does not get
            this ``--``.
        cwd: Absolute working directory of the process that is started.
        root: Absolute project root.
        env: Variables set for the child on top of the inherited ones.
        variables: What is known about the child's variables: those of ``env``, and those a
            manifest names and the shell has already.
        service: Docker compose service, or None for the host.
        flags: Origin of every generated flag (entries only).
        preset: Name of the preset that shaped the arguments, or None.
        origin: ``file:line:column`` of the ``run`` or ``entry`` itself.
        launch: The tokens really started: ``argv`` on the host, ``docker compose run …`` around it
            for a service.
        secrets: Texts in ``argv`` that the manifest marks as secret.
        ranks: The processes that ``argv`` starts through torchrun, or None where it is one.
        kept: Tokens that were typed for fdl itself and are not handed on.
        commands: Names that could have followed the command, for a suggestion after a typo.
        notes: What was decided on the way, one sentence each, for readers of the plan.
        subcommand: Names of the program's own subcommands that it is started with.
        stop_timeout: Seconds from the first signal until everything that is left of the job is
            killed; None for no limit.
        confirm: A question that is asked before anything runs; empty for none.
        grace: Seconds that the processes it left behind have, once it ended on a signal; not
            longer than until the end of ``stop_timeout``.
        given: The values of declared ``args:``, as ``name=value``.
        depends: Whether the manifest gives the command `needs` or `inputs`.
        slurm: What the command asks of a cluster, the strongest mapping last.
        record: What is recorded about its start; None for a start without a run directory.
        elastic: Whether its ranks may come and go.
    """

    kind: str
    command: list[str]
    argv: list[str]
    cwd: str
    root: str
    origin: str
    typed: list[str]
    env: dict[str, str]
    variables: list[Variable]
    flags: list[Flag]
    launch: list[str]
    secrets: list[str]
    kept: list[str]
    commands: list[str]
    notes: list[str]
    subcommand: list[str]
    given: list[str]
    slurm: list[Node]
    service: str | None = None
    preset: str | None = None
    environment: str | None = None
    unchecked: int = 0
    ranks: Ranks | None = None
    confirm: str = ""
    stop_timeout: float | None = None
    grace: float = GRACE_S
    depends: bool = False
    record: Recording | None = None
    elastic: bool = False

    def __init__(self, **named: Any) -> None:
        for name in _LISTS:
            named[name] = list(named.get(name, ()))
        super().__init__(env={}, launch=named["argv"], **named)

    def drop(self, unwanted: Iterable[Flag]) -> None:
        """Take generated argument groups out of ``argv``."""
        doomed = {id(flag) for flag in unwanted}
        kept: list[Flag] = []
        dropped = 0
        for flag in self.flags:
            flag.index -= dropped
            if id(flag) in doomed:
                del self.argv[flag.index : flag.index + flag.count]
                dropped += flag.count
            else:
                kept.append(flag)
        self.flags = kept

    def drop_separator(self) -> None:
        """Take the first typed ``--`` out of ``argv``: it is for fdl, not for the program."""
        if "--" in self.typed:
            place = self.typed.index("--")
            self.unchecked = len(self.typed) - place - 1
            del self.argv[len(self.argv) - self.unchecked - 1]
            del self.typed[place]

    def set(self, variable: Variable) -> None:
        """Give the child a variable, in place of one of the same name."""
        self.env[variable.name] = variable.value
        self.variables = [one for one in self.variables if one.name != variable.name]
        self.variables.append(variable)

    def as_dict(self) -> dict[str, object]:
        """The plan as JSON data, secrets included; print ``plan.redaction.redacted`` of it."""
        return {
            **self.inner(),
            "environment": self.environment,
            "env": self.env,
            "variables": [
                {**_fields(one), "losers": _losers(one.losers)}
                for one in self.variables
                if one.name != PLAN_VARIABLE
            ],
            "launch": self.launch,
            "ranks": None if self.ranks is None else _fields(self.ranks),
            "notes": self.notes,
            "subcommand": self.subcommand,
            "confirm": self.confirm,
            "stop_timeout": self.stop_timeout,
            "grace": self.grace,
            "depends": self.depends,
            "elastic": self.elastic,
            "record": None if self.record is None else {"runs": self.record.runs},
            "slurm": {key: one.plain() for each in self.slurm for key, one in each.mapping.items()},
        }

    def inner(self) -> dict[str, object]:
        """What the started program may know about itself: what ``FDL_PLAN`` carries.

        It holds the arguments as they are, for comparison with the program's own. Values that
        lost, and values of variables, are not in it when they are secret. Of an entry's arguments
        the last ``typed`` ones were typed; a program lets its environment win over the others.
        """
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "command": self.command,
            "env": self.environment,
            "argv": self.argv,
            "typed": len(self.typed),
            "unchecked": self.unchecked,
            "kept": self.kept,
            "commands": self.commands,
            "cwd": self.cwd,
            "root": self.root,
            "service": self.service,
            "flags": [
                {**_fields(flag), "losers": _losers(flag.losers, REDACTED if flag.secret else "")}
                for flag in self.flags
            ],
            "variables": [
                {"name": one.name, "origin": one.origin, "secret": one.secret}
                for one in self.variables
                if one.name != PLAN_VARIABLE
            ],
            "preset": self.preset,
            "origin": self.origin,
        }


def _fields(record: Flag | Variable | Ranks) -> dict[str, object]:
    return {name: getattr(record, name) for name in sorted(record.field_names)}


def _losers(losers: Iterable[Loser], instead: str = "") -> list[dict[str, str]]:
    return [{"value": instead or value, "origin": origin} for value, origin in losers]
