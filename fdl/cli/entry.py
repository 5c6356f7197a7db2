"""argv -> exit code; the only place that turns an :class:`FdlError` into text.

Imported on the warm path: what a branch needs is imported in that branch.
"""

# pathlib would double the start-up time of a warm command.
from __future__ import annotations

import os
import sys

from fdl.base.errors import FdlError
from fdl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.cli.help import Ask
    from fdl.cli.prepass import Invocation
    from fdl.manifest.discover import Found
    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.project import Project
    from fdl.plan.planner import Host
    from fdl.plan.value import Plan


_USAGE = "fdl [OPTIONS] COMMAND [ARGS]"


def main(argv: Sequence[str] | None = None, host: Host | None = None) -> int:
    """Run ``fdl`` and return its exit code.

    Args:
        argv: Arguments without the program's name; ``sys.argv`` when omitted.
        host: Where commands are taken to run; looked up when omitted.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if sys.stdout is None or sys.stderr is None:
        from fdl.base.streams import replace_closed

        replace_closed()
    try:
        return _answer(arguments, host)
    # A full disk, or a stream that cannot be written.
    except OSError as problem:
        from fdl.base.streams import failed

        return failed(problem, silent=arguments[:1] == ["__complete"])


def _answer(arguments: list[str], host: Host | None) -> int:
    invocation = None
    try:
        # Asking for the version is common enough in scripts to load nothing for it.
        if arguments[:1] in (["--version"], ["-V"]):
            code = _version()
        elif arguments[:1] == ["__complete"]:
            from fdl.cli.complete import answer

            code = answer(arguments[1:])
        else:
            from fdl.cli.prepass import scan

            invocation = scan(arguments)
            code = _dispatch(invocation, host)
        sys.stdout.flush()
    except FdlError as problem:
        from fdl.base import output

        output.error(problem.message, problem.hint)
        if problem.see:
            output.see(*problem.see)
        code = problem.exit_code
    except KeyboardInterrupt as stop:
        from fdl.base.signals import asked_by

        return 128 + asked_by(stop)
    except BrokenPipeError:
        # The reader has gone (`fdl --help | head -1`); the interpreter must not try again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    if invocation is not None and sys.stderr.isatty():
        from fdl.machine.update import at_exit

        at_exit(invocation, in_container=host.in_container if host else None)
    return code


def _version() -> int:
    sys.stdout.write(f"flodl-cli {__version__}\n")
    return 0


def _dispatch(invocation: Invocation, host: Host | None) -> int:
    from fdl.base import output
    from fdl.manifest.select.project import locate

    output.configure(invocation.color, quiet=invocation.verbosity == 0)
    if invocation.yes:
        from fdl.base.terminal import answer_yes

        answer_yes()
    if invocation.version:
        return _version()
    found = locate()
    _take_environment(invocation, found)
    if invocation.tokens == ["version"] and not invocation.help:
        return _version()
    return _route(found, invocation, host)


def _route(found: Found | None, invocation: Invocation, host: Host | None) -> int:
    from fdl.manifest.builtins import BUILTINS, HIDDEN

    word = invocation.tokens[0] if invocation.tokens else ""
    if word in (*BUILTINS, *HIDDEN):
        from fdl.manifest.select.yielding import steps_back

        if not steps_back(word, found, invocation.tokens[1:]):
            return _built_in(invocation, host)
    return _from_manifest(found, invocation, host)


def _take_environment(invocation: Invocation, found: Found | None) -> None:
    """Let the first word select the environment, where nothing stronger does and it names one."""
    from fdl.manifest.builtins import BUILTINS, HIDDEN
    from fdl.manifest.select.environment import explicit, is_first_word

    if not invocation.tokens or explicit(invocation.env, os.environ):
        return
    word = invocation.tokens[0]

    def commands() -> list[str]:
        from fdl.manifest.select.project import base_commands

        writes = not (invocation.help or invocation.dry_run)
        return base_commands(found, write_cache=writes) if found else []

    if is_first_word(word, found, (*BUILTINS, *HIDDEN), commands):
        invocation.first_word_env = word
        del invocation.tokens[0]
        invocation.help = invocation.help or not invocation.tokens


def _built_in(invocation: Invocation, host: Host | None) -> int:
    if invocation.tokens[0] == "version":
        return _project_help(None)
    # Children of a built-in, and the built-in itself, learn of the flags as other programs do.
    os.environ.update(invocation.exported())
    from fdl.cli.commands.application import run

    return run(invocation, host)


def _from_manifest(found: Found | None, invocation: Invocation, host: Host | None) -> int:
    from fdl.manifest.select.environment import active_environment

    if invocation.json and not invocation.dry_run:
        from fdl.base.errors import UsageError

        raise UsageError(
            "`--json` before a command needs `--dry-run`", hint="fdl --dry-run --json COMMAND"
        )
    asks_for_all = invocation.tokens == ["all"] and invocation.help_word == "all"
    if not invocation.tokens or (found is None and asks_for_all):
        return _help_page(found, invocation)
    env = active_environment(invocation, found)
    from fdl.base import output

    if found is None:
        output.error(
            f"unknown command: {invocation.tokens[0]}",
            "there is no fdl.yml here or above; `fdl init NAME` starts a project",
        )
        output.see(_USAGE, "fdl")
        return 1
    words = invocation.tokens
    if invocation.work.wants_sweep() or any(word.startswith("--each") for word in words):
        code = _sweep(found, env, invocation, host)
        if code is not None:
            return code
    if invocation.work.on and not invocation.help:
        from fdl.run.batch.slurm import run as run_there

        return run_there(found, env, invocation, host)
    if (invocation.work.jobs or invocation.work.gpus_each) and not invocation.help:
        from fdl.run.jobs.start import run

        return run(found, env, invocation, host)
    return _one_command(found, env, invocation, host)


def _one_command(found: Found, env: str | None, invocation: Invocation, host: Host | None) -> int:
    """Select, plan and run one command, or explain it."""
    from fdl.manifest.select.project import Project

    acts = not invocation.help and not invocation.dry_run
    project = Project(found, env, write_cache=acts)
    selected = _select(project, invocation)
    if env is None and _is_environment(selected, project):
        invocation.first_word_env = invocation.tokens.pop(0)
        invocation.help = invocation.help or not invocation.tokens
        return _route(found, invocation, host)
    if not selected.runs:
        _warn(project)
        return _explain(selected, project, invocation, host)
    from fdl.plan.command import plan_of
    from fdl.plan.planner import here

    place = host or here()
    plan = plan_of(selected, project, invocation, place)
    if project.examples and acts:
        # Examples become real manifests only when something will run.
        project = Project(found, env, executes=True, write_cache=True)
        plan = plan_of(_select(project, invocation), project, invocation, place)
    _warn(project)
    if plan.depends:
        from fdl.run.jobs.start import one

        return one(plan, project, invocation, place)
    return _run_or_show(plan, invocation)


def _select(project: Project, invocation: Invocation) -> Selection:
    return project.select(
        invocation.tokens, help_wanted=invocation.help, help_word=invocation.help_word
    )


def _warn(project: Project) -> None:
    from fdl.base import output

    output.warnings(project.untold())


def _sweep(found: Found, env: str | None, invocation: Invocation, host: Host | None) -> int | None:
    """Run a command with several values; None if it is no sweep."""
    if invocation.help:
        return None
    from fdl.run.sweeps.start import run

    return run(found, env, invocation, host)


def _is_environment(selected: Selection, project: Project) -> bool:
    """Whether an unknown first word is an environment that only a folder below the project has."""
    if selected.known or selected.level.names:
        return False
    return selected.name in project.nested()


def _run_or_show(plan: Plan, invocation: Invocation) -> int:
    if not invocation.dry_run:
        from fdl.run.execute import execute

        if plan.confirm:
            from fdl.run.confirm import require_yes

            require_yes(plan.confirm, plan.command)
        return execute(plan)
    from fdl.base import output
    from fdl.plan import dry_run

    if invocation.json:
        text = dry_run.as_json(plan)
    else:
        text = dry_run.as_text(plan, output.palette(sys.stdout))
    output.write(sys.stdout, text)
    return 0


def _explain(
    selected: Selection,
    project: Project,
    invocation: Invocation,
    host: Host | None,
) -> int:
    """Show a requested page, or report a word that is not a command."""
    if not selected.known:
        return _report(selected)
    if selected.refreshes:
        from fdl.cli.commands.schema import refresh_one

        return refresh_one(selected.level, host, dry_run=invocation.dry_run)
    from fdl.plan.probe import learn

    _print_page(selected, project, lambda level: learn(level, host))
    return 0


def _report(unknown: Selection) -> int:
    from fdl.base import output
    from fdl.base.global_flags import GLOBAL_FLAGS, misplaced
    from fdl.base.suggest import nearest
    from fdl.manifest.builtins import BUILTINS
    from fdl.manifest.select.command import of_the_project_above

    level, token = unknown.level, unknown.name
    is_flag = token.startswith("-")
    names = [*([] if level.names else BUILTINS), *level.commands]
    close = nearest(token, GLOBAL_FLAGS if is_flag else names)
    typed = close if is_flag else level.typed(close or "")
    problem = f"unknown {'option' if is_flag else 'command'}: {' '.join([*level.names, token])}"
    hint = misplaced(token, level.manifest.env) or (f"did you mean `{typed}`?" if close else "")
    if not (is_flag or level.names):
        hint = of_the_project_above(level, token) or hint
        if not level.commands:
            file = level.manifest.found.path.removeprefix(f"{level.root}{os.sep}")
            problem += f"; {file} has no commands"
            hint = hint or f"add `commands: {{{token}: {{run: …}}}}` to {file}"
    output.error(problem, hint)
    usage = level.typed("[<command>]") if level.names else _USAGE
    output.see(usage, level.typed())
    return 1


def _help_page(found: Found | None, invocation: Invocation) -> int:
    """The project's page under the active environment.

    A variable left over from another project costs its environment, not the page.
    """
    from fdl.base import output
    from fdl.base.errors import SelectionError
    from fdl.manifest.select.environment import active_environment

    try:
        env = active_environment(invocation, found)
    except SelectionError as problem:
        if invocation.env is not None:
            raise
        code = _project_help(found)
        output.error(problem.message, problem.hint)
        return code
    return _project_help(found, env)


def _project_help(found: Found | None, env: str | None = None) -> int:
    """The project's page; a broken manifest costs its commands, not the page."""
    from fdl.base import output
    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.project import Project

    project = Project(found, env) if found else None
    page, problem = None, None
    if project is not None:
        try:
            page = Selection(project.level(), page=True)
            project.warn_of_unread(page.level)
        except FdlError as broken:
            problem = broken
        _warn(project)
    _print_page(page, project)
    if problem:
        output.error(problem.message, problem.hint)
    return 0


def _print_page(page: Selection | None, project: Project | None, ask: Ask | None = None) -> None:
    """Print a help page that was asked for; only with ``ask`` programs are asked in turn."""
    from fdl.base import output
    from fdl.base.layout import terminal_width
    from fdl.cli.help import render
    from fdl.programs.schema import known

    width = terminal_width(sys.stdout)
    text = render(page, project, output.palette(sys.stdout), width, ask or known)
    output.write(sys.stdout, text)
