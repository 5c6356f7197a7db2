"""``fdl --jobs 4 lint test``: several commands of the project in one call."""

from __future__ import annotations

from fdl.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.dispatch.planner import Surroundings
    from fdl.dispatch.walk import Help, Level, Refresh, Unknown
    from fdl.manifest import Found
    from fdl.plan import Plan
    from fdl.prepass import Invocation
    from fdl.project import Project


def split(level: Level, word: str) -> list[str]:
    """The words of a command that one word names: ``train/quick`` and ``train quick`` are two."""
    if word in level.commands:
        return [word]
    return word.replace("/", " ").split()


def lines(level: Level, tokens: Sequence[str]) -> list[list[str]]:
    """The command lines that the words after ``--jobs N`` name, one for each word.

    A command with its arguments is one: several commands take none.

    Raises:
        UsageError: Arguments or flags stand among several commands, or one is named twice.
    """
    flag = next((place for place, word in enumerate(tokens) if word.startswith("-")), len(tokens))
    words, arguments = list(tokens[:flag]), list(tokens[flag:])
    if len(words) == 1:
        return [[*split(level, words[0]), *arguments]]
    if arguments:
        what = "arguments after `--`" if arguments[0] == "--" else f"`{arguments[0]}`"
        raise UsageError(
            f"{what}: several commands take no arguments, and `--jobs` makes every word a command",
            hint=f"fdl {words[0]} ... runs one command with arguments, without `--jobs`",
        )
    for place, word in enumerate(words):
        if word in words[:place]:
            raise UsageError(f"`{word}` is named twice", hint="name each command once")
    return [split(level, word) for word in words]


def run(
    found: Found, env: str | None, invocation: Invocation, surroundings: Surroundings | None
) -> int:
    """Run every command that is named; the exit code of the call.

    Raises:
        FdlError: A word is not a command, a manifest is broken, or there are too few GPUs.
    """
    from fdl.dispatch.planner import here
    from fdl.jobs.job import Job
    from fdl.jobs.pool import exit_code, run_all
    from fdl.project import Project

    work = invocation.work
    project = Project(found, env, executes=True, write_cache=True)
    surroundings = surroundings or here()
    jobs = []
    for words in lines(project.level(), invocation.tokens):
        plan = planned(words, invocation, project, surroundings)
        jobs.append(Job(" ".join(plan.command), plan))
    return exit_code(run_all(jobs, at_once=work.jobs or 1, gpus_each=work.gpus_each))


def planned(
    words: Sequence[str], invocation: Invocation, project: Project, surroundings: Surroundings
) -> Plan:
    """The plan of one command among several: it has no terminal.

    Raises:
        FdlError: The words are not a command that runs.
    """
    from fdl.dispatch.planner import Surroundings
    from fdl.plan import Plan

    place = Surroundings(surroundings.variables, surroundings.in_container, False)
    outcome = project.resolve(
        words, place, exported=invocation.exported(), append=invocation.append
    )
    if isinstance(outcome, Plan):
        return outcome
    raise refused(outcome, words)


def refused(outcome: Help | Refresh | Unknown, words: Sequence[str]) -> UsageError:
    """The error for words that are not a command that runs, with the nearest one."""
    from fdl.dispatch.walk import Unknown

    if not isinstance(outcome, Unknown):
        return UsageError(f"`fdl {' '.join(words)}` runs nothing", hint="name one of its commands")
    from fdl.suggest import nearest

    level = outcome.level
    close = nearest(outcome.token, level.commands)
    return UsageError(
        f"unknown command: {' '.join([*level.names, outcome.token])}",
        hint=f"did you mean `{' '.join([*level.names, close])}`?" if close else "fdl list",
    )
