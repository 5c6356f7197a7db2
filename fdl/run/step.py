"""A plan among several, where they run, and how one ended.

The terminal, the pool, the sweeps and the batch systems exchange only these values. Imported on the
warm path.
"""

from __future__ import annotations

from fdl.base.light_record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    from fdl.plan.value import Plan
    from fdl.run.freshness import Rule
    from fdl.run.hosts.machines import Machine

    class Watch(Protocol):
        """What is told about the steps of a call, and may skip one."""

        def begin(self, step: Step) -> str:
            """Called before a step starts; the reason to skip it, empty to run it."""

        def ended(self, outcome: Outcome) -> None:
            """Called with every outcome as soon as it is known."""


DONE, FAILED, STOPPED, SKIPPED = STATES = ("done", "failed", "stopped", "skipped")
"""How a step ended: with exit code 0, with another one, by fdl or a signal, or not started because
its inputs are unchanged."""


class Step(Record):
    """One plan to execute, alone or beside others.

    Attributes:
        plan: What runs.
        needs: Places of the steps that must succeed before it.
        rule: When it may be skipped; None for a step that always runs.
        asked: Whether it was typed, not only needed.
        label: What its lines and its row in the summary are called: ``lr=0.1``; empty for the
            command.
        directory: The run directory that a sweep gives it, absolute; else empty.
        varied: Setting -> value, as text, for a run of a sweep.
        words: The command line for a node that plans it again, with its global flags.
    """

    plan: Plan
    needs: Sequence[int] = ()
    rule: Rule | None = None
    asked: bool = False
    label: str = ""
    directory: str = ""
    varied: Mapping[str, str] = {}
    words: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The label, else the command as it is typed after ``fdl``."""
        return self.label or " ".join(self.plan.command)


class Outcome(Record):
    """How one step ended.

    Attributes:
        step: The step.
        state: One of :data:`STATES`.
        code: The exit code, 128 + n after signal n; None for a step that was not started.
        seconds: Wall time.
        reason: Why it was skipped; else empty.
        signal: The signal to fdl that stopped it, or kept it from starting; 0 for none.
    """

    step: Step
    state: str
    code: int | None = None
    seconds: float = 0.0
    reason: str = ""
    signal: int = 0


class Where(Record):
    """Where plans run, and how.

    Attributes:
        on: ``slurm`` for a cluster, names of hosts, or empty for this machine.
        at_once: How many run at the same time, at most; 0 for one, on a cluster for all.
        gpus_each: GPUs of its own for each; 0 leaves the visible ones to all.
        keep_going: Whether the others continue after a failure, as the runs of a sweep do.
        forced: Whether what was typed runs even if its inputs are unchanged.
        hosts: The hosts, in their order; empty for this machine and for a cluster.
        syncs: Whether the tracked files are copied to the hosts first.
        below: The folder of the call in the project, for hosts.
        follows: Whether the caller runs something behind it. Then a signal makes the exit code,
            also if the last plan catches it and ends with 0.
        agreed: Whether the caller has asked the questions of the plans already.
    """

    on: str = ""
    at_once: int = 0
    gpus_each: int = 0
    keep_going: bool = False
    forced: bool = False
    hosts: Sequence[Machine] = ()
    syncs: bool = False
    below: str = "."
    follows: bool = False
    agreed: bool = False


HERE = Where()
"""On this machine, one behind the other."""
