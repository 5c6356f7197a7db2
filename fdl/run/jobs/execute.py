"""Running a chain: what is unchanged is skipped, what fails stops the rest."""

from __future__ import annotations

from fdl.base import output
from fdl.base.global_flags import Work
from fdl.base.shell_words import join
from fdl.run.jobs.chain import Chain, Step
from fdl.run.jobs.job import DONE, FAILED, Job, Outcome
from fdl.run.program import name_of


def run_chain(chain: Chain, work: Work, *, follows: bool = False) -> int:
    """Run the steps of a chain.

    Several commands, and all with GPUs of their own, run beside each other. A single command has
    the terminal; with ``--jobs``, what it needs runs beside each other before it.

    Args:
        chain: The steps.
        work: How they run.
        follows: Whether the caller runs something behind them. Then a signal makes the exit code,
            also if the last step catches it and ends with 0.

    Returns:
        0, or the exit code of the first failure.

    Raises:
        FdlError: A program cannot be started, or an input does not exist.
    """
    steps = chain.steps
    if work.gpus_each or sum(step.asked for step in steps) > 1:
        return _side_by_side(steps, work)
    *needed, last = steps
    if (work.jobs or 1) > 1 and len(needed) > 1:
        code = _side_by_side(needed, work)
        if code:
            output.error(
                f"`fdl {last.name}` was not run",
                "fix the failed command above, then type the same command again",
            )
        return code or _in_order([last], work, follows=follows)
    return _in_order(steps, work, follows=follows)


def _in_order(steps: list[Step], work: Work, *, follows: bool) -> int:
    from fdl.run.execute import attend

    for step in steps:
        if _skip(step, work):
            continue
        code, asked = attend(step.plan)
        is_last = step is steps[-1]
        if asked and is_last and follows:
            output.error(f"`fdl {step.name}` received {name_of(asked)}, so nothing more was run")
        elif (code or asked) and not is_last:
            why = f"received {name_of(asked)}" if asked else f"failed with exit code {code}"
            output.error(f"`fdl {step.name}` {why}, so `fdl {steps[-1].name}` was not run")
        # A program that catches the signal may have done only a part.
        if code or asked:
            return code if code or (is_last and not follows) else 128 + asked
        _finish(step)
    return 0


def _side_by_side(steps: list[Step], work: Work) -> int:
    from fdl.run.jobs.pool import exit_code, run_all

    jobs = [Job(name, step.plan) for name, step in zip(_names(steps), steps, strict=True)]
    of = {id(job): step for job, step in zip(jobs, steps, strict=True)}

    def ended(outcome: Outcome) -> None:
        step = of[id(outcome.job)]
        if outcome.state == DONE:
            _finish(step)
        if outcome.state == FAILED:
            waiting = [one.name for one in steps if _leads_to(step, one, steps)]
            for name in waiting:
                output.error(f"`fdl {step.name}` failed, so `fdl {name}` was not run")

    outcomes = run_all(
        jobs,
        at_once=work.jobs or 1,
        gpus_each=work.gpus_each,
        after=dict(enumerate(step.needs for step in steps)),
        skips=lambda job: _skip(of[id(job)], work),
        ended=ended,
    )
    return exit_code(outcomes)


def _names(steps: list[Step]) -> list[str]:
    """The commands; those that run more than once have their arguments behind them."""
    from fdl.plan.redaction import redacted

    names = [step.name for step in steps]
    return [
        step.name
        if names.count(step.name) == 1
        else f"{step.name} {join(redacted(step.plan).typed)}"
        for step in steps
    ]


def _leads_to(failed: Step, step: Step, steps: list[Step]) -> bool:
    return any(steps[one] is failed or _leads_to(failed, steps[one], steps) for one in step.needs)


def _skip(step: Step, work: Work) -> str:
    """Say whether a step runs, and why; the reason to skip it, empty to run it."""
    verdict = step.rule.judge(forced=work.force and step.asked)
    if not verdict.runs:
        output.note(f"fdl {step.name} skipped: {verdict.reason}")
        return verdict.reason
    if step.rule.watches:
        output.note(f"fdl {step.name} runs: {verdict.reason}")
    step.rule.begin()
    return ""


def _finish(step: Step) -> None:
    for pattern in step.rule.finish():
        output.warning(
            f"`fdl {step.name}` did not write its output `{pattern}`",
            "so it runs again the next time; correct `outputs`",
        )
