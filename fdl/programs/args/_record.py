"""What ``fdl`` told this process about its own arguments, and the record of a run made from it.

``fdl`` hands its plan down in ``FDL_PLAN``: the arguments it has generated, the manifest line of
each, and what each has replaced.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from fdl.base.global_flags import before_command
from fdl.base.masking import PLAN_VARIABLE
from fdl.base.secrets import REDACTED
from fdl.base.suggest import did_you_mean, setting_as_option
from fdl.programs.parameters.document import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.programs.parameters.parameter import Parameter
    from fdl.programs.parameters.parser import Stack, Where

TYPED = "command line"
DEFAULT = "default"
PROGRAM = "program"
"""Origin of a value that the program itself has set."""


class Place(NamedTuple):
    """Where a value was written.

    Attributes:
        origin: ``file:line:column``, ``command line``, ``env NAME``, ``default`` or ``program``.
        field: Dotted path in the manifest; empty for what no manifest says.
        secret: Whether the manifest keeps the value from print; None for one marked ``!public``.
        losers: Texts it has replaced in the manifests, strongest first, with their origins.
    """

    origin: str
    field: str = ""
    secret: bool | None = False
    losers: Sequence[tuple[str, str]] = ()


class Handover:
    """The plan behind an argument vector; empty for a program that was started by hand.

    Attributes:
        command: The command as typed to ``fdl``, or nothing.
        preset: The preset that the command names, or nothing.
        generated: Positions in argv of the tokens that nobody typed.
    """

    def __init__(self, environ: Mapping[str, str], argv: Sequence[str] = ()) -> None:
        plan = _plan(environ)
        # A `run:` script takes its arguments in another way than the programs in it.
        typed = plan.get("command") if plan.get("kind") != "run" else None
        self.command: list[str] = [str(word) for word in typed or []]
        self.preset = str(plan.get("preset") or "")
        self._commands: list[str] = plan.get("commands") or []
        self._environment = str(plan.get("env") or "")
        self._variables = {one["name"]: one for one in plan.get("variables") or []}
        self._flags: dict[int, dict[str, Any]] = {}
        self._entry = Place(str(plan.get("origin") or TYPED), "entry")
        self.generated: frozenset[int] = frozenset()
        planned = plan.get("argv") or []
        offset = len(planned) - len(argv)
        # A launcher in between may have changed the arguments: then the positions mean nothing.
        if not argv or offset < 0 or planned[offset:] != list(argv):
            return
        for flag in plan.get("flags") or []:
            for position in range(flag["index"] - offset, flag["index"] - offset + flag["count"]):
                self._flags[position] = flag
        end = len(argv) - plan["typed"] if "typed" in plan else 0
        self.generated = frozenset((*self._flags, *range(end)))

    def meant_by_argument(self, word: str, options: Mapping[str, str]) -> str:
        """The hint for an argument too many: a preset with a slip, or a setting; empty for none.

        ``options`` holds name -> spelling: ``lr`` -> ``--lr``.
        """
        typed = " ".join(["fdl", *self.command])
        preset = did_you_mean(word, self._commands, typed=f"{typed} {{}}")
        return preset or setting_as_option(word, options)

    def meant_by_option(self, flag: str) -> str:
        """The hint for an option that is a preset, or belongs to fdl; empty for any other."""
        if not self.command:
            return ""
        typed = " ".join(["fdl", *self.command])
        name = flag.removeprefix("--")
        if name in self._commands:
            return f"`{name}` is a preset: {typed} {name}"
        return before_command(flag, typed, self._environment)

    def place(self, where: Where) -> Place:
        """Where a value comes from, in words for a person."""
        if isinstance(where, str):
            return self._variable(where)
        if where is None:
            return Place(DEFAULT)
        flag = self._flags.get(where)
        if flag is not None:
            losers = [(one["value"], one["origin"]) for one in flag.get("losers") or []]
            secret = flag.get("secret", False)
            return Place(flag["origin"], str(flag.get("field", "")), secret=secret, losers=losers)
        return self._entry if where in self.generated else Place(TYPED)

    def _variable(self, name: str) -> Place:
        known = self._variables.get(name, {})
        origin, secret = known.get("origin", ""), known.get("secret", False)
        # Only a manifest or env file names a line; everything else is the process's environment.
        if ":" in origin:
            return Place(origin, f"env.{name}", secret=secret)
        return Place(f"env {name}", secret=secret)


def _plan(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        plan = json.loads(environ.get(PLAN_VARIABLE, ""))
    except ValueError:
        return {}
    return plan if isinstance(plan, dict) else {}


def trail(one: Parameter, value: Any, stack: Stack, handover: Handover) -> list[tuple[Any, Place]]:
    """Every value of a parameter as JSON data with its place, strongest first.

    ``value`` is what has become of the strongest one.
    """
    found: list[tuple[Any, Place]] = []
    for candidate, where in [(value, stack[0][1]), *stack[1:]]:
        place = handover.place(where)
        found.append((plain(candidate), place))
        found += [
            (_read(one, text), Place(origin, place.field, secret=place.secret))
            for text, origin in place.losers
        ]
    return found


def record(one: Parameter, stack: list[tuple[Any, Place]]) -> dict[str, Any]:
    """``{value, origin}`` from :func:`trail`, and ``field`` and ``overrides`` if there are any."""
    shown: list[dict[str, Any]] = []
    secret = False
    # What replaces a secret is a secret as well, so the weakest value comes first here.
    for value, place in reversed(stack):
        is_public = place.secret is None
        secret = secret or bool(place.secret) or (not is_public and one.hides(value))
        hidden = secret and not is_public and value not in (None, "", [])
        row = {"value": REDACTED if hidden else value, "origin": place.origin}
        shown.insert(0, {**row, "field": place.field} if place.field else row)
    winner, *overrides = shown
    return {**winner, "overrides": overrides} if overrides else winner


def _read(one: Parameter, text: str) -> Any:
    """A value a manifest has dropped, as the program would have understood it."""
    if one.shape == "flag":
        return text == "true"
    try:
        return plain(one.split(text) if one.shape == "list" else one.convert(text))
    except ValueError:
        return text
