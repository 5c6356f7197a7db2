"""argv -> exit code; the only place that turns an :class:`FdlError` into text.

Imported on the warm path: what a branch needs is imported in that branch.
"""

# pathlib would double the start-up time of a warm command.
from __future__ import annotations

import os
import sys

from fdl.base.errors import FdlError, SelectionError, UsageError
from fdl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.cli.prepass import Invocation
    from fdl.manifest.discover import Found
    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.project import Project
    from fdl.plan.planner import Host
    from fdl.run.step import Step, Where
    from fdl.run.sweeps.request import Request


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
    from fdl.manifest.builtins import BUILTINS, HIDDEN
    from fdl.manifest.select.project import Project, locate

    output.configure(invocation.color, quiet=invocation.verbosity == 0)
    if invocation.yes:
        from fdl.base.terminal import answer_yes

        answer_yes()
    if invocation.version:
        return _version()
    found, built_in = locate(), (*BUILTINS, *HIDDEN)
    # A built-in command writes nothing, also if it leaves its name to a command of the project.
    acts = not (invocation.help or invocation.dry_run)
    writes = acts and invocation.tokens[0] not in built_in
    project = Project(found, writes_cache=writes) if found else None
    invocation = _behind_environment(invocation, project, built_in)
    word = invocation.tokens[0] if invocation.tokens else ""
    if word == "version" and len(invocation.tokens) == 1 and not invocation.help:
        return _version()
    if word in built_in:
        from fdl.manifest.select.environment import steps_back

        if not steps_back(word, project, invocation.tokens[1:]):
            return _built_in(invocation, host)
        project = Project(found, writes_cache=acts) if found else None
    return _from_manifest(project, invocation, host)


def _behind_environment(
    invocation: Invocation, project: Project | None, built_in: Sequence[str]
) -> Invocation:
    """The command line behind an environment, if the first word names one and nothing stronger."""
    from fdl.manifest.select.environment import explicit, is_first_word

    if project is None or not invocation.tokens or explicit(invocation.env, os.environ):
        return invocation
    if is_first_word(invocation.tokens[0], project, built_in):
        return invocation.behind_environment()
    return invocation


def _built_in(invocation: Invocation, host: Host | None) -> int:
    if invocation.tokens[0] == "version":
        return _project_help(None)
    # Children of a built-in, and the built-in itself, learn of the flags as other programs do.
    os.environ.update(invocation.exported())
    from fdl.cli.commands.application import run

    return run(invocation, host)


def _from_manifest(project: Project | None, invocation: Invocation, host: Host | None) -> int:
    from fdl.manifest.select.environment import active_environment

    if invocation.json and not invocation.dry_run:
        raise UsageError(
            "`--json` before a command needs `--dry-run`", hint="fdl --dry-run --json COMMAND"
        )
    found, words = project.found if project else None, invocation.tokens
    asks_for_all = words == ["all"] and invocation.help_word == "all"
    if not words or (found is None and asks_for_all):
        return _help_page(found, invocation)
    env = active_environment(invocation, found)
    if project is None:
        from fdl.base import output

        output.error(
            f"unknown command: {words[0]}",
            "there is no fdl.yml here or above; `fdl init NAME` starts a project",
        )
        output.see(_USAGE, "fdl")
        return 1
    from fdl.plan.planner import here

    if env is not None:
        project = project.under(env)
    place = here(invocation.exported(), append=invocation.append, host=host)
    if invocation.help:
        return _one(project, invocation, place, host)
    project, invocation, request = _without_flags(project, invocation)
    work, dry_run = invocation.work, invocation.dry_run
    if work.sync and not work.hosts:
        raise UsageError(
            "`--sync` copies files to hosts, and `--on` names none",
            hint="fdl --sync --on HOST,HOST COMMAND",
        )
    if request is not None:
        from fdl.run.sweeps.execute import begin

        return begin(project, request, place, dry_run=dry_run, as_json=invocation.json)
    if work.on or work.jobs or work.gpus_each:
        project = project if dry_run else project.copying()
        return _carry_out(*_several(project, invocation, place), project, invocation)
    return _one(project, invocation, place, host)


def _without_flags(
    project: Project, invocation: Invocation
) -> tuple[Project, Invocation, Request | None]:
    """The command without the flags of a run behind it, and the sweep that they ask for."""
    words, work = invocation.tokens, invocation.work
    behind = {word.partition("=")[0] for word in words}
    if not work.wants_sweep() and behind.isdisjoint(("--each", "--on", "--sync")):
        return project, invocation, None
    from fdl.run.sweeps.execute import without_flags

    project = project if invocation.dry_run else project.copying()
    words, work, request = without_flags(project, words, work)
    _warn(project)
    return project, invocation.replaced(tokens=words, work=work), request


def _one(project: Project, invocation: Invocation, place: Host, host: Host | None) -> int:
    """Run one command line, or show the page that it asks for."""
    selected = project.select(
        invocation.tokens, help_wanted=invocation.help, help_word=invocation.help_word
    )
    if not selected.runs:
        _warn(project)
        return _explain(selected, project, invocation, host)
    from fdl.plan.command import plan_of
    from fdl.run.step import HERE, Step

    plan = plan_of(selected, project, place)
    steps: Sequence[Step] = [Step(plan, asked=True)]
    if plan.depends:
        from fdl.run.chain import Chain

        chain = Chain(project, place)
        chain.add(plan)
        steps = chain.steps
    if project.reads_example and not (project.copies or invocation.dry_run):
        # Nothing is wrong with them, so they are copied, and the copies are read.
        return _one(project.copying(), invocation, place, host)
    where = HERE.replaced(forced=invocation.work.force) if plan.depends else HERE
    return _carry_out(steps, where, project, invocation)


def _several(project: Project, invocation: Invocation, place: Host) -> tuple[Sequence[Step], Where]:
    """What ``--jobs``, ``--gpus-each`` and ``--on`` run, and where."""
    from fdl.run.chain import steps_of, typed_steps
    from fdl.run.step import Where

    work, words = invocation.work, invocation.tokens
    where = Where(work.on, work.jobs or 0, work.gpus_each, forced=work.force)
    if not work.on:
        return typed_steps(project, words, work, place), where
    from fdl.run.batch.slurm import away, prepared, refuse

    if not work.hosts:
        refuse(work)
    # What it needs runs there, too, but its questions are asked here.
    *needed, last = steps_of(project, words, away(place))
    step = last.replaced(words=words)
    if work.hosts:
        from pathlib import Path

        from fdl.run.hosts.machines import prepared as for_hosts

        step, where = for_hosts(step, project, place, work, str(Path.cwd()))
    else:
        step = prepared(step, project.env, place, forced=work.force)
    return [*needed, step], where


def _carry_out(
    steps: Sequence[Step], where: Where, project: Project, invocation: Invocation
) -> int:
    """Execute plans, or show them."""
    if project.warnings:
        _warn(project)
    if invocation.dry_run:
        return _show(steps, where, invocation)
    from fdl.run.execute import execute

    return execute(steps, where)


def _show(steps: Sequence[Step], where: Where, invocation: Invocation) -> int:
    from fdl.base import output
    from fdl.plan import dry_run

    plans = [step.plan for step in steps]
    if invocation.json and (plans[-1].depends or where.at_once or where.gpus_each):
        text = dry_run.several_as_json(plans, asked=sum(step.asked for step in steps))
    elif invocation.json:
        text = dry_run.as_json(plans[0])
    elif where.hosts:
        from fdl.run.hosts.machines import as_text as of_hosts

        text = of_hosts(steps[-1], where)
    elif where.on:
        from fdl.run.batch.slurm import as_text

        text = as_text(steps[-1])
    else:
        text = "\n".join(dry_run.as_text(plan, output.palette(sys.stdout)) for plan in plans)
    output.write(sys.stdout, text)
    return 0


def _warn(project: Project) -> None:
    if project.warnings:
        from fdl.base import output

        output.warnings(project.untold())


def _explain(
    selected: Selection,
    project: Project,
    invocation: Invocation,
    host: Host | None,
) -> int:
    """Show a requested page, or report a word that is not a command."""
    if not selected.known:
        return _report(selected, project)
    if selected.refreshes:
        from fdl.cli.commands.schema import refresh_one

        return refresh_one(selected.level, host, dry_run=invocation.dry_run)
    from fdl.cli.help import print_page
    from fdl.plan.probe import learn

    print_page(selected, project, lambda level: learn(level, host))
    return 0


def _report(unknown: Selection, project: Project) -> int:
    from fdl.base import output
    from fdl.manifest.builtins import BUILTINS
    from fdl.manifest.select.unknown import hint_about

    level, token = unknown.level, unknown.name
    is_flag = token.startswith("-")
    problem = f"unknown {'option' if is_flag else 'command'}: {' '.join([*level.names, token])}"
    hint = hint_about(unknown, project, () if level.names else BUILTINS)
    if not (is_flag or level.names or level.commands):
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
    from fdl.cli.help import print_page
    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.project import Project

    project = Project(found, env) if found else None
    page, problem = None, None
    if project is not None:
        try:
            page = Selection(project.level(), page=True)
            project.require_readers(page.level, warn=True)
        except FdlError as broken:
            problem = broken
        _warn(project)
    print_page(page, project)
    if problem:
        output.error(problem.message, problem.hint)
    return 0
