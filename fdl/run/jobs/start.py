"""``fdl --jobs 4 lint test``: several commands of the project in one call."""

from __future__ import annotations

import os
import sys

from fdl.base.errors import FdlError, UsageError
from fdl.manifest.select.project import Project
from fdl.plan.command import plan_of
from fdl.plan.planner import Host, here
from fdl.plan.value import Plan
from fdl.run.jobs.chain import Chain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.cli.prepass import Invocation
    from fdl.manifest.discover import Found
    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.level import Level


def run(found: Found, env: str | None, invocation: Invocation, host: Host | None) -> int:
    """Run the commands that are typed, with what they need; the exit code of the call.

    Raises:
        FdlError: A word is not a command, a manifest is broken, or there are too few GPUs.
    """
    acts = not invocation.dry_run
    project = Project(found, env, write_cache=acts)
    chain = _typed(project, invocation, host or here())
    if project.examples and acts:
        project = Project(found, env, executes=True, write_cache=True)
        chain = _typed(project, invocation, host or here())
    return finish(chain, project, invocation)


def one(plan: Plan, project: Project, invocation: Invocation, host: Host) -> int:
    """Run a command behind what it needs, if it has to run; the exit code of the call.

    Raises:
        FdlError: A needed command is not one, or a program cannot be started.
    """
    chain = Chain(project, lambda one: plan_of(one, project, invocation, host))
    chain.add(plan)
    return finish(chain, project, invocation)


def finish(chain: Chain, project: Project, invocation: Invocation) -> int:
    """Carry a chain out, or show its plans."""
    from fdl.base import output

    output.warnings(project.untold())
    if not invocation.dry_run:
        from fdl.run.confirm import confirm_all
        from fdl.run.jobs.execute import run_chain

        confirm_all(step.plan for step in chain.steps)
        return run_chain(chain, invocation.work)
    from fdl.plan import dry_run

    plans = [step.plan for step in chain.steps]
    if invocation.json:
        text = dry_run.several_as_json(plans, asked=sum(step.asked for step in chain.steps))
    else:
        text = "\n".join(dry_run.as_text(plan, output.palette(sys.stdout)) for plan in plans)
    output.write(sys.stdout, text)
    return 0


def split(level: Level, word: str) -> list[str]:
    """The words of a command that one word names: ``train/quick`` and ``train quick`` are two."""
    if word in level.commands:
        return [word]
    return word.replace("/", " ").split()


def chain_of(
    project: Project,
    lines: Sequence[Sequence[str]],
    invocation: Invocation,
    host: Host,
) -> Chain:
    """Several command lines with what they need.

    Raises:
        FdlError: One of them is not a command that runs, or needs something that is not.
    """
    chain = Chain(project, lambda one: plan_of(one, project, invocation, host))
    for words in lines:
        selected = project.select(words)
        if not selected.runs:
            raise _refused(selected, words)
        chain.add(plan_of(selected, project, invocation, host))
    return chain


def _typed(project: Project, invocation: Invocation, place: Host) -> Chain:
    """The chain of the commands that are typed, planned for where they run."""
    work, variables, terminal = invocation.work, place.variables, place.terminal
    lines = _lines(project, invocation.tokens, work.jobs) if work.jobs else [invocation.tokens]
    if work.gpus_each:
        from fdl.run.jobs.devices import DEVICES_VARIABLE, groups

        # Every job sees as many devices as the first one; the pool says which.
        variables = {**variables, DEVICES_VARIABLE: groups(work.gpus_each, os.environ)[0]}
    terminal = terminal and len(lines) == 1 and not work.gpus_each
    place = Host(variables, place.in_container, terminal)
    return chain_of(project, lines, invocation, place)


def _lines(project: Project, tokens: Sequence[str], jobs: int) -> list[list[str]]:
    """The command lines that the words after ``--jobs N`` name, one for each word.

    A command with its arguments is one line: several commands take none.

    Raises:
        UsageError: Arguments or flags stand behind several commands, one is named twice, or a
            preset stands behind its command as a word of its own.
    """
    level = project.level()
    flag = next((place for place, word in enumerate(tokens) if word.startswith("-")), len(tokens))
    words, arguments = list(tokens[:flag]), list(tokens[flag:])
    if len(words) == 1:
        return [[*split(level, words[0]), *arguments]]
    if arguments:
        what = "arguments after `--`" if arguments[0] == "--" else f"`{arguments[0]}`"
        raise UsageError(
            f"{what}: several commands take no arguments, and `--jobs` makes every word a command",
            hint=f'write words that belong together as one: "{" ".join(words[:2])}"',
        )
    for place, word in enumerate(words):
        if word in words[:place]:
            raise UsageError(f"`{word}` is named twice", hint="name each command once")
        if place and word not in level.commands and _belongs(project, word, words[place - 1]):
            from fdl.plan.inspect.command import unknown

            env = ["--env", project.env] if project.env else []
            joined = [*words[: place - 1], f'"{words[place - 1]} {word}"', *words[place + 1 :]]
            typed = " ".join(["fdl", *env, "--jobs", str(jobs), *joined])
            refused = unknown(project.select([word]))
            refused.hint = f"write words that belong together as one: {typed}"
            raise refused
    return [split(level, word) for word in words]


def _belongs(project: Project, word: str, before: str) -> bool:
    """Whether a word is a preset or command of the command that the word before it names."""
    reached, rest = project.descend(split(project.level(), before))
    return bool(reached.names) and not rest and word in reached.commands


def _refused(selected: Selection, words: Sequence[str]) -> FdlError:
    """The error for words that are not a command that runs."""
    from fdl.manifest.builtins import BUILTINS, HIDDEN

    if not selected.known and words[0] in (*BUILTINS, *HIDDEN):
        return UsageError(
            f"`{words[0]}` is a built-in command, and `--jobs` runs commands of the project",
            hint=f"fdl {' '.join(words)}",
        )
    if not selected.known:
        from fdl.plan.inspect.command import unknown

        return unknown(selected)
    return UsageError(
        f"`fdl {' '.join(words)}` runs nothing by itself",
        hint=f"`fdl {' '.join(words)} --help` lists its commands",
    )
