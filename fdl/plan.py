"""What is about to run, as a value: printed by ``--dry-run``, executed by ``fdl.run``.

Imported on the warm path: no yaml, pydantic, json, typing or dataclasses at module top.
"""

from __future__ import annotations

SCHEMA_VERSION = 1


class Flag:
    """One generated argument group inside ``Plan.argv`` and the place it came from.

    Attributes:
        index: Position of its first token in ``Plan.argv``.
        count: Number of tokens (``--epochs 5`` is 2, ``--timeline`` is 1).
        name: The flag, e.g. ``--epochs``.
        field: Dotted manifest path, e.g. ``training.epochs``.
        origin: ``file:line:column``, the file relative to the project root.
    """

    __slots__ = ("count", "field", "index", "name", "origin")

    def __init__(self, index: int, count: int, name: str, field: str, origin: str) -> None:
        self.index = index
        self.count = count
        self.name = name
        self.field = field
        self.origin = origin


class Plan:
    """One execution, complete and without side effects.

    Attributes:
        kind: ``"run"`` (a shell script) or ``"entry"`` (a program with generated arguments).
        command: The command path as typed, e.g. ``["train", "quick"]``.
        argv: The command's own tokens; for a run-kind ``["sh", "-c", SCRIPT]``.
        cwd: Absolute working directory of the process that is started.
        root: Absolute project root.
        env: Variables set for the child on top of the inherited ones.
        service: Docker compose service, or None for the host.
        flags: Origin of every generated flag (entries only).
        preset: Name of the preset that shaped the arguments, or None.
        origin: ``file:line:column`` of the ``run`` or ``entry`` itself.
        launch: The tokens really started: ``argv`` on the host, ``docker compose run …`` around it
            for a service.
    """

    __slots__ = (
        "argv", "command", "cwd", "env", "flags", "kind", "launch", "origin", "preset", "root",
        "service",
    )  # fmt: skip

    def __init__(
        self,
        *,
        kind: str,
        command: list[str],
        argv: list[str],
        cwd: str,
        root: str,
        env: dict[str, str],
        service: str | None,
        flags: list[Flag],
        preset: str | None,
        origin: str,
    ) -> None:
        self.kind = kind
        self.command = command
        self.argv = argv
        self.cwd = cwd
        self.root = root
        self.env = env
        self.service = service
        self.flags = flags
        self.preset = preset
        self.origin = origin
        self.launch = argv

    def as_dict(self) -> dict[str, object]:
        """The plan as JSON data: what ``--dry-run --json`` prints."""
        return {**self.inner(), "env": self.env, "launch": self.launch}

    def inner(self) -> dict[str, object]:
        """What the started program may know about itself: what ``FDL_PLAN`` carries."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "command": self.command,
            "argv": self.argv,
            "cwd": self.cwd,
            "root": self.root,
            "service": self.service,
            "flags": [
                {name: getattr(flag, name) for name in Flag.__slots__} for flag in self.flags
            ],
            "preset": self.preset,
            "origin": self.origin,
        }
