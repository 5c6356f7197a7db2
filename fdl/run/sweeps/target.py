"""The command of a sweep: its program's options, and command lines with varied settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.errors import UsageError
from fdl.base.masking import KNOWN
from fdl.base.secrets import is_secret
from fdl.base.suggest import did_you_mean
from fdl.manifest.node import Node
from fdl.manifest.select.level import SECTIONS
from fdl.plan.declared import declared
from fdl.plan.generate import FIELDS, SWITCHES
from fdl.plan.recorded import OUTPUT, RunsFolder
from fdl.plan.spelling import Spelling, valued
from fdl.plan.value import Plan
from fdl.programs.schema import known, select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fdl.manifest.select.project import Project
    from fdl.programs.parameters.contract import Schema
    from fdl.programs.parameters.parameter import Parameter

_FLAGS = {f"{section}.{field}": flag for section, field, flag in FIELDS}
_SWITCHES = [f"{section}.{field}" for section, field, _ in FIELDS if field in SWITCHES]


class Target:
    """What a sweep runs.

    Args:
        project: The project.
        words: The command line without ``fdl``, as it would be typed for a single run.
        plan: The plan of that command line.
    """

    def __init__(self, project: Project, words: Sequence[str], plan: Plan) -> None:
        self._words = list(words)
        self._plan = plan
        self._schema: Schema | None = None
        style = ""
        level, rest = project.descend(plan.command)
        if plan.kind == "entry":
            found = known(level)
            self._schema = select(found, plan.subcommand)[0] if found else None
            style = level.style
        self._runs = RunsFolder(plan, self._schema, style)
        if plan.kind == "run":
            self._schema = declared(level, rest[0])
        self._spelling = Spelling(self._schema, style)
        self._output = self._runs.option
        self._options: Mapping[str, Parameter] = self._schema.options if self._schema else {}
        self._typed = f"fdl {' '.join(plan.command)}"

    def folder(self) -> Path:
        """The folder of its runs: typed, in the manifest, the program's default, or ``runs/…``."""
        return Path(self._runs.path)

    def words(
        self, settings: Mapping[str, str], output: Path, resume: Path | None = None
    ) -> list[str]:
        """The command line with settings behind it, and as a setting of its own the run's folder.

        Args:
            settings: Key -> value.
            output: The folder of the run.
            resume: A run to continue, or None.

        Raises:
            UsageError: A setting is not one of the program.
        """
        extra = [token for key, value in settings.items() for token in self._tokens(key, value)]
        if self._runs.is_setting:
            extra += self._spelled(
                self._output.name if self._output else "output", self.inside(output)
            )
        if resume is not None:
            extra += self._spelled("resume", self.inside(resume))
        words = self._words
        cut = words.index("--") if "--" in words else len(words)
        if self._plan.kind == "entry" or self._schema is not None:
            return [*words[:cut], *extra, *words[cut:]]
        return [*words[:cut], "--", *words[cut + 1 :], *extra] if extra else words

    def inside(self, path: Path) -> str:
        """A path as the program sees it: in a container, the project is in another place."""
        is_below = self._plan.service and path.is_relative_to(self._plan.root)
        return str(path.relative_to(self._plan.root) if is_below else path)

    def _tokens(self, key: str, value: str) -> list[str]:
        """A setting as the program's arguments."""
        section, dot, _ = key.partition(".")
        named = self._spelling.declared(key)
        if (
            key == OUTPUT
            or (key == "output" and self._runs.is_setting)
            or (named and named is self._output)
        ):
            raise UsageError(
                f"`--each {key}`: a sweep gives each run a folder of its own",
                hint=f"`{self._typed} --output FOLDER --each …` sets the folder of the sweep",
            )
        if is_secret(key, value) or KNOWN.text(value) != value:
            raise UsageError(
                f"`--each {key}`: the values are part of folder names, and this is a secret",
                hint="set it in the environment",
            )
        if key in _FLAGS:
            return self._spelled(_FLAGS[key].removeprefix("--"), value, bare=key in _SWITCHES)
        if dot and section == "options" and key not in self._options:
            return self._spelled(self._known(key, key.partition(".")[2]), value, bare=True)
        if dot and section in SECTIONS and key not in self._options:
            raise self._unknown(key, _FLAGS)
        return self._spelled(self._known(key, key), value)

    def _known(self, key: str, option: str) -> str:
        """The name of the option that a key means."""
        one = self._spelling.declared(option)
        if one is None and self._schema is not None and self._schema.strict:
            raise self._unknown(key, self._options)
        return one.name if one else option

    def _spelled(self, name: str, value: str, *, bare: bool = False) -> list[str]:
        """An option with its value, in the program's spelling.

        With ``bare``, an option that no schema describes is a flag if its value is true or false.
        """
        one = self._spelling.declared(name)
        flag = self._spelling.flag(name, one)
        if one is not None and one.kind == "arg":
            return self._argument(one, value)
        if self._spelling.bare and not flag.startswith("-"):
            return [f"{flag}={value}"]
        written = _scalar(value, one)
        if isinstance(written, str):
            if one is not None and one.shape == "flag" and "type" not in one.computed:
                raise UsageError(
                    f"`--each {name}={value}`: `{flag}` is a flag", hint="write `true` or `false`"
                )
            word = one.words.get(value, value) if one else value
            # Arguments may follow, and a list would take them.
            is_open = one is not None and one.nargs in ("*", "+")
            return [f"{flag}={word}"] if is_open else valued(flag, word, one)
        groups = self._spelling.groups(name, Node(written, "", 0, 0), one, switch=bare)
        if not groups and any(given.name == flag for given in self._plan.flags):
            raise UsageError(
                f"`--each {name}`: the manifest sets `{flag}`, and no flag turns it off",
                hint="remove it from the manifest",
            )
        return [token for group in groups for token in group]

    def _argument(self, one: Parameter, value: str) -> list[str]:
        """A positional argument; it stands behind those that the manifest and the user give."""
        given = {flag.name for flag in self._plan.flags}
        arguments = self._schema.arguments if self._schema else []
        if one.display in given:
            raise UsageError(
                f"`--each {one.name}`: the manifest sets `{one.display}`, and a second value would "
                "follow it",
                hint="remove it from the manifest",
            )
        missing = [each.display for each in arguments[: arguments.index(one)]]
        missing = [each for each in missing if each not in given]
        if missing and not self._plan.typed:
            raise UsageError(
                f"`--each {one.name}`: `{missing[0]}` stands before it and has no value",
                hint=f"set `{missing[0].strip('<>')}` in `options` of the manifest",
            )
        return [value]

    def _unknown(self, key: str, names: Mapping[str, object]) -> UsageError:
        return UsageError(
            f"`--each {key}`: `{self._typed}` has no setting `{key}`",
            hint=did_you_mean(key, names, f"`{self._typed} --help` lists them"),
        )


def _scalar(value: str, one: Parameter | None) -> str | bool | int:
    """A value as a manifest would hold it, if the program does not simply get the word."""
    if value in ("true", "false"):
        return value == "true"
    return int(value) if one is not None and one.counted and value.isdigit() else value
