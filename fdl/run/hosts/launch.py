"""Start the ranks on hosts, show what they print, and end all of them together."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from fdl.base import output
from fdl.base.shell_words import join
from fdl.base.signals import ENDING, handled
from fdl.plan.planner import JOIN_VARIABLE
from fdl.run.batch.task import joining
from fdl.run.hosts.checks import Checks, tracked_files
from fdl.run.hosts.connection import Connection
from fdl.run.lines import write_all
from fdl.run.pool import Printer
from fdl.run.step import DONE, FAILED, STOPPED, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fdl.run.step import Step, Where

_SILENT_S = 12.0
"""A host that has said nothing for so long is lost: it says something every 2 s."""
_LATE_S = 20.0
"""After so long, the others have waited for a host long enough to say so."""
_LAST_S = 20.0
"""How long the hosts have to end after one has failed; then they are killed."""
_WAITING_S = 3.0
_WAIT_S = 0.2


def run_all(steps: Sequence[Step], where: Where) -> list[Outcome]:
    """Run a command on hosts; its only outcome.

    Args:
        steps: The plans; each host runs what the last one needs itself.
        where: The hosts.

    Raises:
        FdlError: A check says that a host cannot take part.
    """
    step = steps[-1]
    began = time.monotonic()
    with ExitStack() as stack:
        hosts = stack.enter_context(_Hosts(step, where))
        hosts.check(always=False).require()
        stack.enter_context(handled((*ENDING, "SIGTSTP"), hosts.events.put))
        code = hosts.run()
    took = time.monotonic() - began
    state = STOPPED if hosts.signal else FAILED if code else DONE
    return [Outcome(step, state, code, took, "", hosts.signal)]


def plan_on(step: Step, where: Where) -> int:
    """Check the hosts and show what would run where; the exit code."""
    with _Hosts(step, where.replaced(syncs=False)) as hosts:
        checked = hosts.check(always=True)
    for line in _rank_lines(hosts.connections, checked):
        output.note(line)
    return 1 if any(one.stops for one in checked.findings) else 0


def _rank_lines(connections: Sequence[Connection], checked: Checks) -> Iterator[str]:
    rank = 0
    for one, count in zip(connections, checked.ranks, strict=True):
        gpus = (one.facts.get("plan", {}).get("ranks") or {"gpus": []})["gpus"]
        for place in range(count):
            device = gpus[place] if place < len(gpus) else "cpu"
            yield f"rank {rank}  {one.machine.name}  {device}"
            rank += 1


class _Hosts:
    """All hosts of one call.

    Attributes:
        connections: One for each host.
        events: Numbers of signals, and what the hosts say.
        signal: The signal to fdl that ended them; 0 for none.
    """

    def __init__(self, step: Step, where: Where) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="fdl-"))
        self.events: SimpleQueue[Any] = SimpleQueue()
        self.connections = [
            Connection(machine, self._folder / str(number), self._heard)
            for number, machine in enumerate(where.hosts)
        ]
        self.signal = 0
        self._step, self._where = step, where
        self._elastic = step.plan.elastic
        self._writers: dict[tuple[Connection, str], int] = {}
        self._copiers: list[threading.Thread] = []
        self._failed: int | None = None
        self._stop_at = float("inf")
        self._joined: dict[Connection, float] = {}
        self._started: set[Connection] = set()
        self._told: set[tuple[str, Connection]] = set()

    def __enter__(self) -> _Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        closers = [threading.Thread(target=one.close) for one in self.connections]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join()
        for writer in self._writers.values():
            os.close(writer)
        for copier in self._copiers:
            copier.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def check(self, *, always: bool) -> Checks:
        """Check all hosts, and show what was found; with ``always`` also where nothing is wrong."""
        files = tracked_files(self._step.plan.root)
        if not files:
            output.note("the project is not in git, so its files are not compared")
        self._checked = Checks(self.connections, self._step, self._where, files)
        self._checked.run()
        self._checked.show(always=always)
        return self._checked

    def run(self) -> int:
        """Start the ranks and wait until all hosts have ended; the exit code."""
        self._print_lines()
        meeting, token = self._checked.meeting, secrets.token_urlsafe(16)
        joins = meeting and self._elastic
        words = joining(self._step.words, meeting, 1 if joins else len(self.connections))
        for number, one in enumerate(self.connections):
            env = one.machine.variables
            if meeting:
                env["FLODL_HOST"] = one.machine.name
            if joins and number == 0:
                env["FLODL_LIGHTHOUSE"] = f"{meeting}#{token}"
            elif joins:
                env[JOIN_VARIABLE] = f"http://{meeting}/#{token}"
            elif meeting:
                env["FDL_NODE"] = str(number)
            one.send(
                {"do": "run", "words": words, "below": self._where.below, "env": env,
                 "own": self._checked.own[number], "after": meeting if joins and number else ""}
            )  # fmt: skip
        while any(map(_is_running, self.connections)):
            self._next()
            self._look()
        while not self.events.empty():
            self._next()
        if self.signal:
            return 128 + self.signal
        return self._failed or 0

    # --- What happens ----------------------------------------------------------------------------

    def _heard(self, one: Connection, kind: str, content: Any) -> None:
        """Take a message, on the thread of its connection."""
        if writer := self._writers.get((one, kind)):
            write_all(writer, content)
        else:
            self.events.put((one, kind, content))

    def _next(self) -> None:
        try:
            event = self.events.get(timeout=_WAIT_S)
        except Empty:
            return
        if isinstance(event, int):
            self._pass_on(event)
            return
        one, kind, content = event
        if kind == "ended":
            if content and not self.signal:
                self._fail(one, content)
        elif kind == "lost":
            self._lost(one, content)
        elif kind == "fact":
            self._fact(one, content)

    def _pass_on(self, number: int) -> None:
        """Pass a signal to every host; a second one kills."""
        if number == getattr(signal, "SIGTSTP", 0):
            output.note("Ctrl-Z is ignored: the hosts would take it for a lost connection")
            return
        if self.signal:
            self._stop_at = 0.0
            return
        self.signal = number
        waits = self._checked.meeting and not self._elastic
        if waits and len(self._started) < len(self.connections):
            # A launcher that waits for another host hears no signal, and no rank has begun.
            self._stop_at = time.monotonic() + _WAITING_S
        for one in self.connections:
            one.send({"do": "signal", "number": number})

    def _fact(self, one: Connection, fact: dict[str, Any]) -> None:
        kind = fact["kind"]
        if kind == "waits":
            self._joined.setdefault(one, time.monotonic())
            if ("late", one) in self._told:
                output.note(f"{self._name(one)} is there now")
        elif kind == "started":
            self._started.add(one)
        elif kind == "stopped":
            self._say(
                one,
                f"rank {fact['rank']} is stalled: a signal has stopped process {fact['pid']}, and "
                "the other ranks wait for it",
                one.machine.typed(f"kill -CONT {fact['pid']}"),
            )
        elif kind == "failed" and fact["code"] < 0:
            how = signal.Signals(-fact["code"]).name
            why = ": the memory may be full, or somebody has killed it" if how == "SIGKILL" else ""
            look = one.machine.typed("dmesg | tail -n 3")
            self._say(one, f"rank {fact['rank']} was ended by {how}{why}", look)

    def _look(self) -> None:
        """Notice what nobody says: a silent host, one that is late, and the end of patience."""
        now = time.monotonic()
        if now >= self._stop_at:
            for one in filter(_is_running, self.connections):
                one.send({"do": "kill"})
                one.ended = 137
            return
        for one in filter(_is_running, self.connections):
            if now - one.last_heard > _SILENT_S:
                one.ended = 255
                self._say(
                    one,
                    f"it has said nothing for {_SILENT_S:.0f} s: the host hangs, or its network is "
                    "cut. Without it the training cannot go on",
                    one.machine.sought(f"ping -c 1 {one.machine.address.rpartition('@')[2]}"),
                )
                self._fail(one, 1)
        since = min(self._joined.values(), default=now)
        if now - since < _LATE_S or len(self.connections) == 1:
            return
        there = [self._name(one) for one in self._joined]
        for one in filter(_is_running, self.connections):
            if one not in self._joined:
                self._say(
                    one,
                    f"it has not joined after {_LATE_S:.0f} s, and {', '.join(there)} "
                    f"wait{'s' if len(there) == 1 else ''} for it: its program has not started yet",
                    one.machine.typed("ps -fu $(id -un)"),
                    kind="late",
                )

    def _lost(self, one: Connection, code: int) -> None:
        if one.ended is not None:
            return
        one.ended = 255
        said = one.complaint().strip().splitlines()
        ssh = f" ({said[-1]})" if said else ""
        self._say(
            one,
            f"the connection has ended with code {code}{ssh}: the host was switched off, or its "
            "processes were killed. What is left of them ends by itself",
            one.machine.sought(f"ssh {one.machine.address} uptime"),
        )
        self._fail(one, 1)

    def _fail(self, one: Connection, code: int) -> None:
        """One host has failed for good: end all others."""
        if self._failed is not None or self.signal:
            return
        first = self.connections[0]
        if self._elastic and one is not first and _is_running(first):
            # The whole command would begin another training.
            joins = f"{JOIN_VARIABLE}=ADDRESS fdl {join(self._step.words)}"
            again = f"{one.machine.typed(joins)}; the first host printed ADDRESS"
            self._say(one, f"it is lost with exit code {code}; the others train on", again)
            return
        self._failed = code
        self._stop_at = time.monotonic() + _LAST_S
        others = list(filter(_is_running, self.connections))
        if others:
            names = ", ".join(other.machine.name for other in others)
            again = f"fdl --on {self._where.on} {join(self._step.words)}"
            self._say(one, f"it has failed with exit code {code}; fdl ends {names}", again)
        for other in others:
            other.send({"do": "signal", "number": int(signal.SIGTERM)})

    def _say(self, one: Connection, cause: str, following: str, *, kind: str = "") -> None:
        """Print the paragraph of a trouble: host, ranks, cause and the next command; once."""
        key = kind or cause, one
        if key in self._told:
            return
        self._told.add(key)
        output.error(f"{self._name(one)}: {cause}", following)

    def _name(self, one: Connection) -> str:
        return f"{one.machine.name} ({self._checked.ranks_of(one)})"

    def _print_lines(self) -> None:
        """Let the lines of every host appear behind its name."""
        printer = Printer([one.machine.name for one in self.connections])
        for number, one in enumerate(self.connections):
            for kind, target in (("out", sys.stdout), ("err", sys.stderr)):
                reader, self._writers[one, kind] = os.pipe()
                source = os.fdopen(reader, "rb")
                thread = threading.Thread(
                    target=printer.copy, args=(source, number, target), daemon=True
                )
                thread.start()
                self._copiers.append(thread)


def _is_running(one: Connection) -> bool:
    return one.ended is None
