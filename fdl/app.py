"""Running the built-in commands: find the one that is meant, parse its arguments, call it."""

from __future__ import annotations

import sys

from fdl import output
from fdl.args.parser import Parser
from fdl.commands.registry import REGISTRY, Builtin
from fdl.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from fdl.dispatch.planner import Surroundings
    from fdl.prepass import Invocation
    from fdl.project import Project


class Arguments:
    """Parsed arguments as attributes: ``args.dry_run``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Call:
    """One call of a built-in command.

    Attributes:
        args: What was typed for it.
        invocation: The whole command line with its global flags.
        names: The words that name the command: ``("config", "show")``.
        surroundings: Where commands are taken to run.
    """

    __slots__ = ("args", "invocation", "names", "surroundings")

    def __init__(
        self,
        args: Arguments,
        invocation: Invocation,
        names: tuple[str, ...],
        surroundings: Surroundings | None,
    ) -> None:
        self.args = args
        self.invocation = invocation
        self.names = names
        self.surroundings = surroundings

    @property
    def dry_run(self) -> bool:
        """Whether to show instead of do, wherever the flag stood."""
        return self.invocation.dry_run or bool(getattr(self.args, "dry_run", False))

    @property
    def yes(self) -> bool:
        """Whether questions answer themselves."""
        return self.invocation.yes or bool(getattr(self.args, "yes", False))

    def project(self, env: str | None = None) -> Project:
        """The project around the working directory, under the active environment.

        Args:
            env: An environment that counts instead of the active one.

        Raises:
            FdlError: There is no project, or the environment has no overlay in it.
        """
        from fdl.manifest.select import require_overlay
        from fdl.project import Project, active_environment, locate, required

        found = required(locate())
        if env is None:
            env = active_environment(self.invocation, found)
        else:
            require_overlay(found, env, env)
        return Project(found, env)

    def here(self) -> Surroundings:
        """Where commands are taken to run: this process, unless a caller said otherwise."""
        from fdl.dispatch.planner import here

        return self.surroundings or here()


def run(invocation: Invocation, surroundings: Surroundings | None = None) -> int:
    """Run one built-in.

    Args:
        invocation: A command line whose first token names a built-in.
        surroundings: Where commands are taken to run; looked up when omitted.

    Returns:
        0 for success and requested help, 1 for an unknown sub-command, 2 for refused arguments.

    Raises:
        FdlError: Whatever the command raises.
    """
    builtin, names, tail = _find(invocation.tokens)
    if builtin.children and not invocation.help and tail and not tail[0].startswith("-"):
        return _unknown_subcommand(builtin, names, tail[0])
    if (invocation.help and not builtin.wraps) or (builtin.children and not tail):
        output.write(sys.stdout, _page(builtin, names, sys.stdout))
        return 0
    try:
        own, others = apart(builtin, tail) if builtin.open else (tail, [])
        values, _ = Parser(builtin.parameters).parse(own, {})
        if builtin.open:
            values[_last_argument(builtin)] = others
    except ValueError as problem:
        output.error(str(problem))
        output.write(sys.stderr, "\n" + _page(builtin, names, sys.stderr))
        return 2
    if invocation.dry_run and not (builtin.wraps or builtin.takes("dry-run")):
        raise UsageError(f"`{' '.join(names)}` changes nothing, so it has no dry run")
    if invocation.json and not (builtin.wraps and invocation.dry_run):
        if not builtin.takes("json"):
            raise UsageError(f"`{' '.join(names)}` has no JSON to print")
        values["json"] = True
    return _handler(builtin)(Call(Arguments(values), invocation, names, surroundings))


def _find(tokens: list[str]) -> tuple[Builtin, tuple[str, ...], list[str]]:
    """The deepest built-in the tokens name, its names, and the tokens behind them."""
    builtin = REGISTRY[tokens[0]]
    depth = 1
    while depth < len(tokens) and tokens[depth] in builtin.children:
        builtin = builtin.children[tokens[depth]]
        depth += 1
    return builtin, tuple(tokens[:depth]), tokens[depth:]


def _last_argument(builtin: Builtin) -> str:
    return [one.field for one in builtin.parameters if one.kind == "arg"][-1]


def apart(builtin: Builtin, tail: list[str]) -> tuple[list[str], list[str]]:
    """The options that an open built-in declares with their values, and all other words."""
    options = {one.display: one for one in builtin.parameters if one.kind == "option"}
    own: list[str] = []
    others: list[str] = []
    end = tail.index("--") if "--" in tail else len(tail)
    words = iter(tail[:end])
    for token in words:
        flag, equals, _ = token.partition("=")
        one = options.get(flag)
        (own if one else others).append(token)
        if one and one.shape != "flag" and not equals:
            own += [value for value in [next(words, None)] if value is not None]
    return own, [*others, *tail[end:]]


def _handler(builtin: Builtin) -> Callable[[Call], int]:
    from importlib import import_module

    module, _, function = builtin.handler.partition(":")
    handler: Callable[[Call], int] = getattr(import_module(module), function)
    return handler


def _page(builtin: Builtin, names: tuple[str, ...], stream: Any) -> str:
    from fdl.help.builtin import render
    from fdl.help.layout import terminal_width

    return render(builtin, names, output.palette(stream), terminal_width(stream))


def _unknown_subcommand(group: Builtin, names: tuple[str, ...], word: str) -> int:
    """The group's help on stderr, as for an unknown command of a manifest."""
    from fdl.suggest import nearest

    typed = " ".join(names)
    close = nearest(word, group.children)
    output.error(
        f"unknown command: {typed} {word}", f"did you mean `fdl {typed} {close}`?" if close else ""
    )
    output.write(sys.stderr, "\n" + _page(group, names, sys.stderr))
    return 1
