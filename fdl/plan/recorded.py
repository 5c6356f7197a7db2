"""What is recorded about a start of an entry: where, with which settings, and which metrics.

Imported on the warm path of entries.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH118
from __future__ import annotations

import os
from itertools import groupby

from fdl.base import run_record
from fdl.base.secrets import REDACTED, is_secret
from fdl.plan.spelling import Spelling, output_keys
from fdl.plan.value import Recording
from fdl.programs.parameters.parameter import UNSET, choice_text
from fdl.programs.parameters.parser import (
    added,
    bare,
    typed,
    typed_values,
    typed_words,
    valued,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fdl.manifest.node import Node
    from fdl.manifest.select.level import Level
    from fdl.plan.value import Flag, Plan
    from fdl.programs.parameters.contract import Schema
    from fdl.programs.parameters.parameter import Parameter

    Settings = dict[str, dict[str, object]]

USUAL_FOLDER = "runs"
"""Where runs go, and are searched, if nothing names a folder."""

OUTPUT = "output.dir"
_ASKING = ("--help", "--version")
_HELP = "-h"


def recording(
    plan: Plan,
    level: Level,
    preset: str | None,
    schema: Schema | None,
    outside: Mapping[str, str],
) -> Recording | None:
    """What is recorded about a start; None if it leaves no run.

    The program sees the variables ``outside``, too. A question to it (``--help``) leaves no run. If
    several machines take part, none of them knows which one has rank 0, so the training alone makes
    the folder.
    """
    nodes = level.holders(preset)
    if not _is_wanted(nodes) or _asks(plan, schema) or (plan.ranks and plan.ranks.nodes[1] > 1):
        return None
    runs = RunsFolder(plan, schema, level.style).path
    return Recording(
        runs,
        _settings(plan, schema, level.style, outside),
        _patterns(nodes),
        _inside(plan),
        track=_tracker(nodes),
    )


def chosen(plan: Plan, folder: str, varied: Mapping[str, str]) -> Recording:
    """What is recorded about one run of a sweep, which always leaves a run.

    Args:
        plan: Its plan.
        folder: Its folder. If it holds runs that the program has made itself, this run gets a
            folder in it.
        varied: What the sweep varies.
    """
    known = plan.record or Recording(folder, inside=_inside(plan))
    settings = {**known.settings}
    for key, value in varied.items():
        # Most are among the typed options already, under the program's name and with its type.
        names = (key, key.rpartition(".")[2].replace("-", "_"))
        name = next((name for name in names if name in settings), key)
        known_value = settings[name]["value"] if name in settings else typed(value, None)
        settings[name] = {"value": known_value, "origin": "--each"}
    return Recording(
        folder,
        settings,
        known.metrics,
        known.inside,
        "" if run_record.holds_runs(folder) else folder,
        known.track,
    )


def _inside(plan: Plan) -> str:
    """The project's root in the container of a program; empty without one."""
    if not plan.service:
        return ""
    from fdl.base.compose_file import container_root

    return container_root(plan.root, plan.service)


class RunsFolder:
    """The folder of a program's runs.

    Args:
        plan: How the program is started.
        schema: What it takes, or None.
        style: The style of its options.

    Attributes:
        option: The option that takes the folder, or None.
        in_manifest: The folder that the manifest names, or empty.
        path: The folder: typed, of the manifest, the program's default, or ``runs/COMMAND``.
    """

    def __init__(self, plan: Plan, schema: Schema | None, style: str) -> None:
        self.in_manifest = _generated(plan)
        self.option = Spelling(schema, style).declared(*output_keys(style))
        foreign = schema is not None and schema.foreign
        if self.option and self.option.name == "output" and foreign and not self.in_manifest:
            # In a program that was not written for fdl, it may be a file.
            self.option = None
        option = self.option
        default = option.default if option and isinstance(option.default, str) else ""
        usual = os.path.join(USUAL_FOLDER, *plan.command)
        text = self._typed(plan, schema) or self.in_manifest or default or usual
        self.path = os.path.normpath(os.path.join(plan.root, text))

    @property
    def is_setting(self) -> bool:
        """Whether the program takes the folder as a setting."""
        return self.option is not None or bool(self.in_manifest)

    def _typed(self, plan: Plan, schema: Schema | None) -> str:
        wanted = self.option or ("--output" if self.is_setting else "")
        found = ""
        for said in typed_words(plan.typed, schema):
            if said.flag and (said.option or said.flag) == wanted:
                found = "".join(said.words)
        return found


def _generated(plan: Plan) -> str:
    """The folder in the arguments that the manifest makes."""
    for flag in plan.flags:
        if flag.field == OUTPUT:
            *_, last = plan.argv[flag.index : flag.index + flag.count]
            return last if flag.count > 1 else last.partition("=")[2]
    return ""


def _is_wanted(nodes: list[Node]) -> bool:
    outputs = [section for node in nodes if (section := node.get("output"))]
    said = [switch.value for one in outputs if (switch := one.get("record")) is not None]
    return not said or said[-1] is not False


def _asks(plan: Plan, schema: Schema | None) -> bool:
    """Whether the program is only asked about itself."""
    asking = (*_ASKING, *(() if schema is not None and _HELP in schema.spellings else (_HELP,)))
    return any(word in asking for word in plan.typed)


def _settings(
    plan: Plan, schema: Schema | None, style: str, outside: Mapping[str, str]
) -> Settings:
    """Every known setting, later ones winning: defaults, manifest, variables, what was typed."""
    parameters = schema.parameters if schema else ()
    options = {one.display: one for one in parameters} | (schema.spellings if schema else {})
    found = {
        one.field: _setting(one.display, default, "default")
        for one in parameters
        if one.kind == "option" and (default := _default(one, schema)) is not None
    }
    generated: set[str] = set()
    for _, same in groupby(plan.flags, lambda flag: flag.field):
        flag, *more = same
        one = options.get(flag.name)
        words = [word for each in (flag, *more) for word in _value_words(plan, each)]
        value = valued(words, one) if words else bare(flag.name, one)
        if one is not None and one.counted:
            value = 1 + len(more)
        name = _name(flag.name, one)
        generated.add(name)
        found[name] = (
            {"value": REDACTED, "origin": flag.origin}
            if flag.secret
            else _setting("" if flag.secret is None else flag.name, value, flag.origin)
        )
    found |= _of_variables(plan, parameters, outside)
    for word, values in typed_values([*plan.kept, *plan.typed], schema).items():
        one = options.get(word)
        value = values if one is None and len(values) > 1 else values[-1]
        name = _name(word, one)
        if one and one.adds_up and schema and schema.foreign and name in generated:
            # The program gets those of the manifest, too.
            value = added(found[name]["value"], value)
        found[name] = _setting(word, value, "command line")
    if schema is None or Spelling(schema, style).bare:
        found |= _assignments(plan)
    return found


def _of_variables(
    plan: Plan, parameters: Iterable[Parameter], outside: Mapping[str, str]
) -> Settings:
    """The settings that a program reads from variables."""
    there = {**outside, **plan.env}
    secret = {one.name for one in plan.variables if one.secret}
    return {
        one.field: {
            "value": REDACTED if one.env in secret or one.hides(text) else typed(text, one),
            "origin": f"env {one.env}",
        }
        for one in parameters
        if one.env and (text := there.get(one.env))
    }


def _value_words(plan: Plan, flag: Flag) -> list[str]:
    """The words of a generated value; without a flag in front, it stands alone."""
    first, *rest = plan.argv[flag.index : flag.index + flag.count]
    return rest if first == flag.name else [first.removeprefix(f"{flag.name}="), *rest]


def _assignments(plan: Plan) -> Settings:
    """The typed words ``key=value`` of programs whose options have no dashes."""
    pairs = [word.partition("=") for word in plan.typed if word[:1] not in ("-", "=")]
    return {
        key: _setting(key, typed(value, None), "command line")
        for key, equals, value in pairs
        if equals and all(char.isalnum() or char in "._/" for char in key)
    }


def _setting(name: str, value: object, origin: str) -> dict[str, object]:
    hidden = bool(name) and is_secret(name, value)
    return {"value": REDACTED if hidden else value, "origin": origin}


def _default(one: Parameter, schema: Schema | None) -> object:
    """What an option means that is not given; None if that is not known."""
    if one.shape == "list" and one.default is UNSET and schema is not None and schema.foreign:
        return None
    return _plain(one.absent())


def _plain(value: object) -> object:
    """A default as a typed value is recorded."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else choice_text(value)


def _name(flag: str, one: Parameter | None) -> str:
    return one.field if one else flag.lstrip("-").replace("-", "_")


def _patterns(nodes: list[Node]) -> Mapping[str, tuple[str, str]]:
    """The patterns of the manifest, with those of the preset; a null removes one."""
    found: dict[str, tuple[str, str]] = {}
    for name, node in _named(nodes):
        found.pop(name, None)
        if node.value is not None:
            found[name] = (node.text("value") or "", node.text("step") or "")
    return found


def _tracker(nodes: list[Node]) -> str:
    """The tracker of the manifest, or that of the preset; a null there means none."""
    said = [node.mapping["track"].value for node in nodes if "track" in node.mapping]
    return str(said[-1] or "") if said else ""


def _named(nodes: list[Node]) -> Iterator[tuple[str, Node]]:
    for node in nodes:
        if section := node.get("metrics"):
            yield from section.mapping.items()
