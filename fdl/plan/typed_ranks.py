"""The settings about ranks on the command line of an entry, and which of them are for fdl."""

from __future__ import annotations

from fdl.base.errors import FdlError, ManifestError, UsageError
from fdl.base.light_record import Record
from fdl.base.secrets import REDACTED
from fdl.manifest.words import BACKENDS, NAMED_MODES, POLICIES, is_endpoint, node_range, solo_device
from fdl.programs.parameters.contract import spellings
from fdl.programs.parameters.parameter import Parameter
from fdl.programs.parameters.parser import typed_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, TypeGuard

    from fdl.plan.value import Plan
    from fdl.programs.parameters.contract import Schema

TYPED = "command line"
"""Origin of typed settings."""

OPTIONS = {
    **{name: Parameter(name) for name in ("ranks", "nodes", "rdzv", "max-restarts")},
    "elastic": Parameter("elastic", type="bool", shape="flag"),
}
"""Long name -> a flag that fdl itself understands, whether or not the program declares it."""

_MODES = {"mode": NAMED_MODES, "policy": POLICIES, "backend": BACKENDS}
_FLAGS = spellings((*OPTIONS.values(), *map(Parameter, _MODES)))
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
        self._said = [one for one in typed_words(plan.typed, None, _FLAGS) if one.option]
        texts = {one.flag[2:]: "".join(one.words) or None for one in self._said}
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
        for one in reversed(self._said):
            name = one.flag[2:]
            if name.replace("-", "_") in self.launch and name not in declared:
                plan.kept[:0] = plan.typed[one.start : one.end]
                del plan.typed[one.start : one.end]
                del plan.argv[first + one.start : first + one.end]


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
