"""What the built-in commands share: their context, their usual options, their Typer classes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from fdl.base import output
from fdl.base.errors import UsageError
from fdl.cli.builtins import schema
from fdl.manifest.select.environment import active_environment, meaning, require_overlay
from fdl.manifest.select.project import Project, locate, required
from fdl.plan.planner import here
from fdl.programs.args.annotations import Complete as Complete
from fdl.programs.parameters.parser import RefusedError, read_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fdl.cli.prepass import Invocation
    from fdl.plan.planner import Host

DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Show what would happen and change nothing")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document")]

_SECTION = re.compile(r"\n\n(?:Args|Returns|Raises):\n")


class Call:
    """One call of a built-in command: the object of its Typer context.

    Attributes:
        invocation: The whole command line with its global flags.
        host: Where commands are taken to run; looked up when None.
        dry_run: Whether ``--dry-run`` stands before the command, or behind it.
    """

    def __init__(self, invocation: Invocation, host: Host | None = None) -> None:
        self.invocation = invocation
        self.host = host
        self.dry_run = invocation.dry_run

    @property
    def yes(self) -> bool:
        """Whether ``-y`` answers every question with yes."""
        return self.invocation.yes

    def project(self, env: str | None = None, *, writes_cache: bool = False) -> Project:
        """The project around the working directory, under the active environment.

        Args:
            env: An environment to use instead of the active one.
            writes_cache: Whether its manifests are kept for the next call, unless this is a dry
                run.

        Raises:
            FdlError: There is no project, or it has no overlay for the environment.
        """
        found = required(locate())
        if env is None:
            env = active_environment(self.invocation, found)
        else:
            require_overlay(found, env, env)
        return Project(found, env, writes_cache=writes_cache and not self.dry_run)

    def here(self) -> Host:
        """Where commands are taken to run: this process, unless the caller said otherwise."""
        given = self.invocation
        return here(given.exported(), append=given.append, host=self.host)

    def behind_environment(self, words: Sequence[str]) -> tuple[Project, list[str]]:
        """The project, and the command that words name; the first may name environments.

        A word that names both is the command, as ``fdl --env NAME`` still names the environment.

        Raises:
            FdlError: There is no project, or the environment has no overlay in it.
        """
        rest = list(words)
        if rest[:1] == ["--"]:
            del rest[0]
        word = rest[0] if rest else ""
        if word:
            names_one, is_command = meaning(word, Project(required(locate())))
            if (names_one or "," in word) and not is_command:
                return self.project(word), rest[1:]
            if names_one:
                output.note(f"`{word}` is the command here; for the environment, type --env {word}")
        return self.project(), rest


class Context(typer.Context):
    """The context of a built-in command, with its call."""

    obj: Call


class Verb(TyperCommand):
    """A built-in command. Its help is its docstring, up to the sections about code."""

    def __init__(self, *args: Any, **more: Any) -> None:
        paragraphs = _SECTION.split(more["help"] or "")[0].split("\n\n")
        more["help"] = "\n\n".join(" ".join(one.split()) for one in paragraphs)
        super().__init__(*args, **more)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and with them the global flags that the command has as options.

        Raises:
            UsageError: A global flag is given that the command cannot follow.
            RefusedError: An option has no value.
        """
        _require_values(ctx, args)
        rest = super().parse_args(ctx, [*self._global_flags(ctx), *args])
        ctx.obj.dry_run |= ctx.params.get("dry_run", False)
        return rest

    def _global_flags(self, ctx: Any) -> list[str]:
        given: Invocation = ctx.obj.invocation
        known = {flag for one in self.params for flag in one.opts}
        flags = []
        for flag, wanted, refusal in (
            ("--yes", given.yes, ""),
            ("--dry-run", given.dry_run, "has no dry run; leave `--dry-run` out"),
            ("--json", given.json, "has no JSON to print"),
        ):
            if wanted and flag in known:
                flags.append(flag)
            elif wanted and refusal and not given.help:
                raise UsageError(f"`{ctx.command_path.removeprefix('fdl ')}` {refusal}")
        return flags


def _require_values(ctx: Any, args: list[str]) -> None:
    """Refuse `--path --dry-run`: Typer takes the second option for the value of the first."""
    known = schema(ctx.command_path.split()[1:]).spellings
    end = args.index("--") + 1 if "--" in args else len(args)
    for word, following in pairwise(args[:end]):
        one = known.get(word)
        if one and one.shape != "flag" and not one.may_take(following):
            raise RefusedError(f"`{one.display}` requires a value")


def print_json(document: Mapping[str, object]) -> int:
    """Print one document with the version of its form; return the exit code."""
    output.write(sys.stdout, output.versioned(document))
    return 0


class Open(Verb):
    """A built-in command that takes another command with its arguments, as a person types it."""

    ignore_unknown_options = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep unknown options and ``--`` for the command.

        Raises:
            RefusedError: An unknown option stands before the first word.
        """
        end = args.index("--") if "--" in args else len(args)
        if any(not word.startswith("-") for word in args[:end]):
            # Typer drops the first separator, and the command is to see it.
            args = [*args[:end], *(["--"] if end < len(args) else []), *args[end:]]
        rest = super().parse_args(ctx, list(args))
        arguments = [one.name for one in self.params if one.param_type_name == "argument"]
        # The field of `why` may be an option of the command: `fdl why --lr train`.
        words = ctx.params[arguments[0]] if len(arguments) == 1 else None
        if words and words[0].startswith("-") and words[0] in args[:end]:
            read_words(schema(ctx.command_path.split()[1:]).parameters, [words[0]], {})
        return rest


class Program(Verb):
    """A built-in command that is a program of its own: it gets every word, and a dry run."""

    ignore_unknown_options = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take every word unchanged."""
        return super().parse_args(ctx, ["--", *args])

    def _global_flags(self, ctx: Any) -> list[str]:
        given: Invocation = ctx.obj.invocation
        if given.json and not given.dry_run:
            raise UsageError(f"`{self.name}` has no JSON to print")
        return []


def in_module(module: str, name: str) -> Any:
    """The command or the group of a name, from a module of this package."""
    verbs: Group = import_module(f"fdl.cli.commands.{module}").verbs
    return verbs.built(name) if name in verbs.names() else verbs.as_command()


class Group(typer.Typer):
    """The commands of one module, or of a group of several modules.

    Building all commands of a group takes longer than most of them do. So a command is built when
    it is named, and its module is imported then.

    Args:
        name: The word of the group; empty in a module that has no group of its own.
        help: What the group is for.
        modules: The commands that stand in other modules of this package -> those modules. They
            come after the commands of this module.
    """

    def __init__(
        self, name: str = "", help: str = "", modules: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name=name, help=help, add_completion=False)
        self._modules = modules or {}

    def names(self) -> list[str]:
        """The names of all commands, in the order of the help page."""
        return [*(one.name for one in self.registered_commands if one.name), *self._modules]

    def built(self, name: str) -> Any:
        """The command of a name."""
        if module := self._modules.get(name):
            return in_module(module, name)
        alone = typer.Typer(add_completion=False)
        alone.registered_commands = [one for one in self.registered_commands if one.name == name]
        return get_command(alone)

    def as_command(self) -> TyperGroup:
        """The group itself."""
        commands: Any = Commands(self.names(), self.built)
        return TyperGroup(name=self.info.name, help=self.info.help, commands=commands)


class Commands(Mapping[str, Any]):
    """The commands of a group by name. Each is built when it is read."""

    def __init__(self, names: Sequence[str], built: Callable[[str], Any]) -> None:
        self._names = names
        self._built = built

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._built(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
