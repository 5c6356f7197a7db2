"""Executing plans: only this package of fdl starts the user's programs."""

from __future__ import annotations

import os
import sys
import time

from fdl.base import output
from fdl.base.errors import FdlError
from fdl.base.shell_words import join
from fdl.run.program import name_of, require_script
from fdl.run.step import DONE, FAILED, HERE, STOPPED, Outcome, Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.plan.value import Plan
    from fdl.run.step import Watch, Where


def execute(steps: Sequence[Step], where: Where = HERE, watch: Watch | None = None) -> int:
    """Carry out plans at a place; the exit code of the call.

    One command has the terminal, behind what it needs. Several commands, all with GPUs of their own
    and the runs of a sweep run beside each other; so does what one command needs, with ``--jobs``.

    Args:
        steps: The plans; each stands behind those that it needs.
        where: Where they run.
        watch: What is told about them. Without it, they are typed commands with what they need.

    Returns:
        0, or the exit code of the first failure. It is 128 + n if signal n ended the program, and
        130 after a second Ctrl-C.

    Raises:
        FdlError: A question is answered with no, a program cannot be started, or an input does not
            exist.
    """
    open_ = [step.plan for step in steps if step.plan.confirm]
    if open_ and not where.agreed:
        confirm(open_)
    if where.hosts:
        from fdl.run.hosts.launch import run_all as on_hosts

        return exit_code(on_hosts(steps, where))
    if where.on:
        from fdl.run.batch.slurm import run_all

        return exit_code(run_all(steps, where, watch))
    if watch is not None or where.gpus_each or sum(step.asked for step in steps) > 1:
        return _side_by_side(steps, where, watch or _Commands(steps, where))
    *needed, last = steps
    if where.at_once > 1 and len(needed) > 1:
        if code := _side_by_side(needed, where, _Commands(needed, where)):
            output.error(
                f"`fdl {last.name}` was not run",
                "fix the failed command above, then type the same command again",
            )
            return code
        needed = []
    return _in_order([*needed, last], where)


def start(plan: Plan) -> tuple[int, int]:
    """Run one plan in the foreground.

    Returns:
        The exit code, and the signal that asked fdl to end meanwhile; 0 for none. A program may
        catch the signal and end with 0; then, too, no further one may start.

    Raises:
        FdlError: The program cannot be started.
    """
    if plan.kind == "entry" and not plan.service:
        require_script(plan)
    _say_first(plan)
    if plan.service:
        from fdl.run.docker import make_mounted_folders

        make_mounted_folders(plan)
    began = time.time()
    if os.name == "nt":
        from fdl.run.windows import run
    else:
        from fdl.run.posix import run
    record = None
    if plan.record is not None:
        from fdl.run.record import begin

        record = begin(plan, plan.record)
    try:
        code, asked = run(plan, record)
    except FdlError as problem:
        if record is not None:
            record.fail(problem.exit_code, problem.message)
        raise
    if record is not None:
        record.finish(code, asked)
    if code and plan.service:
        from fdl.run.docker import advice

        if remedy := advice(plan, code, began):
            output.hint(remedy)
    return code, asked


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """128 + n after signal n to fdl; else the code of the first failure, or of a stop; else 0."""
    for one in outcomes:
        if one.signal:
            return 128 + one.signal
    for state in (FAILED, STOPPED):
        for one in outcomes:
            if one.state == state:
                return one.code or 1
    return 0


def confirm(plans: Sequence[Plan]) -> None:
    """Ask the questions of plans, each once in a call; ``-y`` answers yes, Enter means no.

    Raises:
        FdlError: An answer is no, or no terminal is there to ask.
    """
    from fdl.base.terminal import ask, has_yes, may_ask

    for question, plan in {plan.confirm: plan for plan in reversed(plans)}.items():
        typed = " ".join(plan.command)
        if has_yes():
            break
        if not may_ask():
            raise FdlError(
                f"`fdl {typed}` asks `{question}`, and there is no terminal to ask on",
                hint=f"fdl -y {typed} answers yes",
            )
        answer = ask(f"{question} [y/N] ")
        if answer is None or answer.lower() not in ("y", "yes"):
            raise FdlError(f"`fdl {typed}` was not confirmed, so nothing ran")


def _say_first(plan: Plan) -> None:
    """Announce a preset and flush fdl's output, so that it comes before the child's."""
    try:
        if plan.preset:
            _announce(plan)
        sys.stdout.flush()
        sys.stderr.flush()
    # The stream is closed or full. Run anyway: the child gets the same one and decides itself.
    except OSError:
        return


def _announce(plan: Plan) -> None:
    from fdl.plan.redaction import redacted

    shown = redacted(plan)
    if shown.service:
        output.note(f"fdl: [{shown.service}] {shown.launch[-1]}")
    else:
        output.note(f"fdl: {join(shown.argv)}")


def _in_order(steps: Sequence[Step], where: Where) -> int:
    last = steps[-1]
    for step in steps:
        if step.rule and _skip(step, where):
            continue
        code, asked = start(step.plan)
        if asked and step is last and where.follows:
            _error_of_signal(step, asked, "nothing more was run")
        elif (code or asked) and step is not last:
            stopped = f"`fdl {last.name}` was not run"
            if asked:
                _error_of_signal(step, asked, stopped)
            else:
                output.error(f"`fdl {step.name}` failed with exit code {code}, so {stopped}")
        # A program that catches the signal may have done only a part.
        if code or asked:
            return code if code or (step is last and not where.follows) else 128 + asked
        if step.rule:
            _finish(step)
    return 0


def _error_of_signal(step: Step, number: int, so: str) -> None:
    output.error(f"`fdl {step.name}` received {name_of(number)}, so {so}")


def _side_by_side(steps: Sequence[Step], where: Where, watch: Watch) -> int:
    from fdl.run.pool import run_all

    return exit_code(run_all(steps, where, watch))


class _Commands:
    """Skips typed commands whose inputs are unchanged, and says what a failure keeps from running.

    Commands that run more than once are labelled by their arguments.
    """

    def __init__(self, steps: Sequence[Step], where: Where) -> None:
        from fdl.plan.redaction import redacted

        self._steps = steps
        self._where = where
        names = [step.name for step in steps]
        for step, name in zip(steps, names, strict=True):
            if names.count(name) > 1:
                step.label = f"{name} {join(redacted(step.plan).typed)}"

    def begin(self, step: Step) -> str:
        return _skip(step, self._where)

    def ended(self, outcome: Outcome) -> None:
        step, steps = outcome.step, self._steps
        if outcome.state == DONE:
            _finish(step)
        if outcome.state == FAILED:
            command = " ".join(step.plan.command)
            for one in steps:
                if _leads_to(step, one, steps):
                    name = " ".join(one.plan.command)
                    output.error(f"`fdl {command}` failed, so `fdl {name}` was not run")


def _leads_to(failed: Step, step: Step, steps: Sequence[Step]) -> bool:
    return any(steps[one] is failed or _leads_to(failed, steps[one], steps) for one in step.needs)


def _skip(step: Step, where: Where) -> str:
    """Say whether a step runs, and why; the reason to skip it, empty to run it."""
    if step.rule is None:
        return ""
    command = " ".join(step.plan.command)
    runs, reason = step.rule.judge(forced=where.forced and step.asked)
    if not runs:
        output.note(f"fdl {command} skipped: {reason}")
        return reason
    if step.rule.watches:
        output.note(f"fdl {command} runs: {reason}")
    step.rule.begin()
    return ""


def _finish(step: Step) -> None:
    for pattern in step.rule.finish() if step.rule else ():
        output.warning(
            f"`fdl {' '.join(step.plan.command)}` did not write its output `{pattern}`",
            "so it runs again the next time; correct `outputs`",
        )
