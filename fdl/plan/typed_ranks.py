"""The settings about ranks on the command line of an entry, and which of them are for fdl."""

from __future__ import annotations

from fdl.base.errors import FdlError, ManifestError, UsageError
from fdl.base.light_record import Record
from fdl.base.secrets import REDACTED
from fdl.manifest.words import BACKENDS, NAMED_MODES, POLICIES, is_endpoint, node_range, solo_device
from fdl.programs.parameters.parameter import Parameter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, TypeGuard

    from fdl.plan.value import Plan
    from fdl.programs.parameters.contract import Schema

TYPED = "command line"
"""Origin of typed settings."""

OPTIONS = {
    one.name: one
    for one in (
        Parameter("ranks", help="Processes to start on this machine: a number, or `auto`"),
        Parameter("nodes", help="Machines that take part: 2, or 1:2 for one or two"),
        Parameter("rdzv", help="Where the machines meet: host:port of one of them"),
        Parameter("max-restarts", type="int", help="Restarts of all ranks when one is lost"),
        Parameter("elastic", type="bool", help="Let ranks come and go while the others train on"),
    )
}
"""Long name -> a flag that fdl itself understands, whether or not the program declares it."""

_MODES = {"mode": NAMED_MODES, "policy": POLICIES, "backend": BACKENDS}
_EXAMPLES = {"ranks": "2", "nodes": "1:2", "rdzv": "gpu1:29400", "max-restarts": "3"}


class Setting(Record):
    """One setting as the user wrote it.

    Attributes:
        value: Its value.
        origin: ``file:line:column``, or ``command line``.
        name: The key in ``ddp``.
        secret: Whether the value must not be printed.
    """

    value: Any
    origin: str
    name: str
    secret: bool = False

    @property
    def shown(self) -> str:
        """The setting as messages show it: ``--ranks 2``, or ```ddp.ranks: 2```."""
        if self.origin == TYPED:
            return f"--{self.name.replace('_', '-')} {self.value}"
        return f"`ddp.{self.name}: {REDACTED if self.secret else self.value}`"


def refused(setting: Setting, problem: str, hint: str) -> FdlError:
    """The error for a setting, with its place if it is from a manifest."""
    if setting.origin == TYPED:
        return UsageError(problem, hint=hint)
    return ManifestError(f"{setting.origin}: {problem}", hint=hint)


class Typed:
    """fdl's own flags among an entry's arguments, and those that name a mode.

    A program may use flags of these names for something else. They are fdl's if the program is
    known not to declare them, or if ranks are asked for.

    Attributes:
        launch: Field -> its last value, for fdl's own flags.
        modes: ``mode``, ``policy`` and ``backend`` as typed; the program gets these as well.

    Args:
        plan: The plan of the entry.
        schema: The known arguments of the program, or None.
        launchable: Whether fdl can start the entry as several ranks.

    Raises:
        UsageError: A value is not of the flag's type.
    """

    def __init__(self, plan: Plan, schema: Schema | None, *, launchable: bool) -> None:
        self._plan = plan
        self._groups = _groups(plan.typed)
        texts: dict[str, str | None] = {name: text for name, text, _, _ in self._groups}
        self.modes = {
            name: Setting(text, TYPED, name)
            for name, known in _MODES.items()
            # fdl ignores a program's own `--mode fast`.
            if (text := texts.get(name))
            and (text in known or (name == "mode" and solo_device(text) is not None))
        }
        self.launch: dict[str, Setting] = {}
        if not launchable:
            return
        said = {one.field.removeprefix("ddp.") for one in plan.flags}
        asked = "ranks" in texts or "ranks" in said or {"nodes", "rdzv"} <= {*texts, *said}
        for name in OPTIONS:
            unknown = schema is not None and schema.strict and name not in schema.options
            if name in texts and (asked or unknown):
                field = name.replace("-", "_")
                value = _value(name, texts[name])
                self.launch[field] = Setting(value, TYPED, field)

    def keep(self, declared: Collection[str]) -> None:
        """Remove fdl's flags from the plan's arguments, except those that the program declares."""
        if not self.launch:
            return
        plan = self._plan
        first = len(plan.argv) - len(plan.typed)
        for name, _, start, count in reversed(self._groups):
            if name.replace("-", "_") in self.launch and name not in declared:
                plan.kept[:0] = plan.typed[start : start + count]
                del plan.typed[start : start + count]
                del plan.argv[first + start : first + start + count]


def _groups(tokens: list[str]) -> list[tuple[str, str | None, int, int]]:
    """Name, text, place and length of each known flag; the text may be missing."""
    found: list[tuple[str, str | None, int, int]] = []
    place = 0
    end = tokens.index("--") if "--" in tokens else len(tokens)
    while place < end:
        flag, equals, text = tokens[place].partition("=")
        count = 1
        name = flag[2:] if flag.startswith("--") else ""
        if name in OPTIONS or name in _MODES:
            follows = not equals and place + 1 < end and not tokens[place + 1].startswith("--")
            follows = follows and name != "elastic"  # a switch
            count = 2 if follows else 1
            given = text if equals else tokens[place + 1] if follows else None
            found.append((name, given, place, count))
        place += count
    return found


def _value(name: str, text: str | None) -> int | str | bool:
    """The value of one of fdl's flags.

    Raises:
        UsageError: The text is not a value of the flag. The message says which values are.
    """
    if name == "elastic":
        return True
    whole = int(text) if _is_whole(text) else None
    if name == "ranks":
        value = "auto" if text == "auto" else whole or None
        demand = "`auto` or a whole number from 1"
    elif name == "nodes":
        value = text if text and node_range(text) else None
        demand = "a whole number from 1, or a range such as 1:2"
    elif name == "rdzv":
        value = text if text and is_endpoint(text) else None
        demand = "a host and a port"
    else:
        value, demand = whole, "a whole number"
    if value is None:
        raise UsageError(
            f"--{name} takes {demand}{f', not `{text}`' if text else ''}",
            hint=f"--{name} {_EXAMPLES[name]}",
        )
    return value


def _is_whole(text: str | None) -> TypeGuard[str]:
    return text is not None and text.isascii() and text.isdigit() and len(text) <= 6
