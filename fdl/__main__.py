"""argv -> exit code; the only place that turns an :class:`FdlError` into text.

Imported on the warm path: what a branch needs is imported in that branch.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH109
from __future__ import annotations

import os
import sys

from fdl import __version__
from fdl.errors import FdlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from fdl.dispatch.planner import Surroundings
    from fdl.dispatch.walk import Help, Unknown
    from fdl.manifest import Found, Manifest
    from fdl.plan import Plan
    from fdl.prepass import Invocation


def main(argv: Sequence[str] | None = None, surroundings: Surroundings | None = None) -> int:
    """Run ``fdl`` and return its exit code.

    Args:
        argv: Arguments without the program's name; ``sys.argv`` when omitted.
        surroundings: Where commands are taken to run; looked up when omitted.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        # Asking for the version is common enough in scripts to load nothing for it.
        if arguments[:1] in (["--version"], ["-V"]):
            code = _version()
        else:
            code = _dispatch(arguments, surroundings)
        sys.stdout.flush()
        return code
    except FdlError as problem:
        from fdl import output

        output.error(problem.message, problem.hint)
        return problem.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone (`fdl --help | head -1`); the interpreter must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _version() -> int:
    sys.stdout.write(f"flodl-cli {__version__}\n")
    return 0


def _dispatch(arguments: list[str], surroundings: Surroundings | None) -> int:
    from fdl import output
    from fdl.commands import BUILTINS, HIDDEN
    from fdl.prepass import scan

    invocation = scan(arguments)
    output.configure(invocation.color, quiet=invocation.verbosity == 0)
    if invocation.version:
        return _version()
    if invocation.tokens and invocation.tokens[0] in (*BUILTINS, *HIDDEN):
        return _built_in(invocation)
    return _from_manifest(invocation, surroundings)


def _built_in(invocation: Invocation) -> int:
    name = invocation.tokens[0]
    if invocation.dry_run:
        from fdl.errors import UsageError

        raise UsageError(f"`--dry-run` shows commands of a manifest, and `{name}` is built in")
    if invocation.tokens == ["version"] and not invocation.help:
        return _version()
    # Children of a built-in, and the built-in itself, learn of the flags as other programs do.
    os.environ.update(invocation.exported())
    from fdl.app import run

    return run([*invocation.tokens, *(["--help"] if invocation.help else [])])


def _from_manifest(invocation: Invocation, surroundings: Surroundings | None) -> int:
    from fdl.manifest import find

    try:
        found = find(os.getcwd())
    except OSError as problem:
        raise FdlError(
            f"the current directory cannot be read: {problem.strerror}", hint="cd to another one"
        ) from None
    if not invocation.tokens:
        return _project_help(found, sys.stdout)
    if found is None:
        from fdl import output

        output.error(
            f"unknown command: {invocation.tokens[0]}",
            "there is no fdl.yml here or above; `fdl init NAME` starts a project",
        )
        return _project_help(None, sys.stderr) or 1
    from fdl.plan import Plan

    outcome = _resolve(found, invocation, surroundings)
    if isinstance(outcome, Plan):
        return _carry_out(outcome, invocation)
    return _explain(outcome)


class _Reader:
    """Reads the manifests of one walk.

    Attributes:
        examples: Whether an example stood in for a manifest that does not exist yet.
        warnings: What the manifests give reason to warn about.
    """

    __slots__ = ("_env", "_executes", "_write_cache", "examples", "warnings")

    def __init__(self, *, executes: bool, write_cache: bool, env: str | None = None) -> None:
        self._env = env
        self._executes = executes
        self._write_cache = write_cache
        self.examples = False
        self.warnings: list[str] = []

    def read(self, found: Found) -> Manifest:
        from fdl.manifest import load, settle

        settled = settle(found, executes=self._executes)
        self.examples = self.examples or settled.is_example
        manifest = load(settled, self._env, write_cache=self._write_cache)
        self.warnings.extend(manifest.warnings)
        return manifest

    def child(self, directory: str) -> Manifest | None:
        """The manifest of a directory, None when there is none."""
        from fdl.manifest import find_in

        found = find_in(directory)
        return None if found is None else self.read(found)

    def describe(self, directory: str) -> str | None:
        """A child's description for a list of commands; its errors are not this page's."""
        try:
            manifest = self.child(directory)
        except FdlError:
            return None
        return None if manifest is None else manifest.node.text("description")


def _resolve(
    found: Found, invocation: Invocation, surroundings: Surroundings | None
) -> Plan | Help | Unknown:
    """What the tokens mean; examples become real manifests only when something will run."""
    from fdl import output
    from fdl.plan import Plan

    acts = not invocation.help and not invocation.dry_run
    env = None
    if not invocation.help:
        from fdl.prepass import environment

        env = environment(os.environ)
    reader = _Reader(executes=False, write_cache=acts, env=env)
    outcome = _walk(reader, found, invocation, surroundings)
    if reader.examples and acts and isinstance(outcome, Plan):
        reader = _Reader(executes=True, write_cache=True, env=env)
        outcome = _walk(reader, found, invocation, surroundings)
    for text in reader.warnings:
        output.warning(text)
    return outcome


def _walk(
    reader: _Reader, found: Found, invocation: Invocation, surroundings: Surroundings | None
) -> Plan | Help | Unknown:
    from fdl.dispatch.planner import Planner, here
    from fdl.dispatch.walk import Level, resolve

    manifest = reader.read(found)
    root = manifest.directory
    return resolve(
        Level(manifest, (), root, None),
        invocation.tokens,
        help_wanted=invocation.help,
        load=reader.child,
        planner=Planner(root, surroundings or here(), invocation.exported(), invocation.append),
    )


def _carry_out(plan: Plan, invocation: Invocation) -> int:
    if not invocation.dry_run:
        from fdl.run import execute

        return execute(plan)
    from fdl import dry_run, output

    if invocation.json:
        output.write(sys.stdout, dry_run.as_json(plan))
    else:
        output.write(sys.stdout, dry_run.as_text(plan, output.palette(sys.stdout)))
    return 0


def _explain(outcome: Help | Unknown) -> int:
    """Show a requested page, or say that a word is no command and show where it was looked for."""
    from fdl.dispatch.walk import Help

    if isinstance(outcome, Help):
        _print_page(outcome, sys.stdout)
        return 0
    _report(outcome)
    _print_page(Help(outcome.level), sys.stderr)
    return 1


def _report(unknown: Unknown) -> None:
    from fdl import output
    from fdl.commands import BUILTINS
    from fdl.prepass import GLOBAL_FLAGS
    from fdl.suggest import nearest

    level, token = unknown.level, unknown.token
    is_flag = token.startswith("-")
    names = [*([] if level.names else BUILTINS), *level.commands]
    close = nearest(token, GLOBAL_FLAGS if is_flag else names)
    typed = close if is_flag else level.typed(close or "")
    output.error(
        f"unknown {'option' if is_flag else 'command'}: {' '.join([*level.names, token])}",
        f"did you mean `{typed}`?" if close else "",
    )
    output.write(sys.stderr, "\n")


def _project_help(found: Found | None, stream: TextIO) -> int:
    """The project's page; a broken manifest costs its commands, not the page."""
    from fdl import output
    from fdl.dispatch.walk import Help, Level

    reader = _Reader(executes=False, write_cache=False)
    page, problem = None, None
    if found is not None:
        try:
            manifest = reader.read(found)
            page = Help(Level(manifest, (), manifest.directory, None))
        except FdlError as broken:
            problem = broken
    for text in reader.warnings:
        output.warning(text)
    _print_page(page, stream)
    if problem:
        output.error(problem.message, problem.hint)
    return 0


def _print_page(page: Help | None, stream: TextIO) -> None:
    from fdl import output
    from fdl.help import render, terminal_width

    reader = _Reader(executes=False, write_cache=False)
    text = render(page, output.palette(stream), terminal_width(stream), reader.describe)
    output.write(stream, text)


if __name__ == "__main__":
    sys.exit(main())
