"""Several jobs side by side on this machine."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from fdl.base import output
from fdl.base.signals import handled
from fdl.run.jobs.job import DONE, FAILED, SKIPPED, STOPPED, Job, Outcome
from fdl.run.jobs.lines import Printer, streams

_ENDING = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM")
_OTHERS = ("SIGUSR1", "SIGUSR2", "SIGTSTP")

_LAST_LINES_S = 1.0
"""How long the last output is waited for, while a daemon that the job left holds its stream."""

_WAIT_S = 0.2


def run_all(
    jobs: Sequence[Job],
    *,
    at_once: int,
    gpus_each: int = 0,
    keep_going: bool = False,
    after: Mapping[int, Collection[int]] | None = None,
    skips: Callable[[Job], str] | None = None,
    ended: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """Run plans beside each other, and print a table of how they ended on stderr.

    Every line of output stands behind the name of its job. The first failure stops the rest, as
    SIGTERM does. A signal to fdl reaches every job once, and no further job starts. A job that then
    ends with 0 counts as stopped: it may have done only a part.

    Args:
        jobs: What runs. Jobs have no terminal and no input, so plan them without.
        at_once: How many run at the same time, at most.
        gpus_each: Devices of its own for each job; 0 leaves the visible ones to all.
        keep_going: Whether the others continue after a failure.
        after: Place of a job -> the places of jobs that must succeed before it starts.
        skips: Called when a job could start; the reason to skip it, empty to run it.
        ended: Called with every outcome as soon as it is known.

    Returns:
        The outcomes, in the order of the jobs; :func:`exit_code` gives that of the call.

    Raises:
        UsageError: There are fewer GPUs than one job is to have.
        OSError: fdl's own output cannot be written.
        KeyboardInterrupt: A signal arrived when all jobs had ended; its number is the argument.
    """
    devices = [""] * max(1, at_once)
    if gpus_each:
        from fdl.run.jobs.devices import groups

        devices = groups(gpus_each, os.environ)[: max(1, at_once)]
    pool = _Pool(jobs, devices, after or {}, keep_going=keep_going)
    with handled((*_ENDING, *_OTHERS), pool.events.put):
        outcomes = pool.run(skips or (lambda _: ""), ended or (lambda _: None))
    if pool.printer.problem:
        raise pool.printer.problem
    _summarize(outcomes)
    if late := pool.late_signal():
        raise KeyboardInterrupt(late)
    return outcomes


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


class _Pool:
    """Starts jobs while places are free, and waits for what happens to them.

    Attributes:
        events: The number of a signal, or the place of a job that has ended with its exit code.
        printer: Prints their output.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        devices: list[str],
        after: Mapping[int, Collection[int]],
        *,
        keep_going: bool,
    ) -> None:
        self.events: SimpleQueue[int | tuple[int, int]] = SimpleQueue()
        self.printer = Printer([job.name for job in jobs])
        self._jobs = jobs
        self._devices = devices
        self._after = after
        self._keep_going = keep_going
        self._waiting = list(range(len(jobs)))
        self._running: dict[int, tuple[subprocess.Popen[bytes], str, float]] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._stopping = False
        # The signal to fdl that ends the pool.
        self._signal = 0
        self._streams = streams()

    def run(self, skips: Callable[[Job], str], ended: Callable[[Outcome], None]) -> list[Outcome]:
        """Run all jobs; the outcomes in their order."""

        def note(place: int, state: str, code: int | None, seconds: float, reason: str) -> None:
            by = self._signal if state == STOPPED else 0
            self._outcomes[place] = Outcome(self._jobs[place], state, code, seconds, reason, by)
            ended(self._outcomes[place])

        while True:
            for place in self._startable():
                if reason := skips(self._jobs[place]):
                    note(place, SKIPPED, None, 0.0, reason)
                else:
                    self._start(place)
            if self._running:
                event = self._next_event()
                if isinstance(event, int):
                    self._relay(event)
                    continue
                place, code = event
                seconds = self._free(place)
                note(place, self._state(code), code, seconds, "")
            elif not any(self._is_ready(place) for place in self._waiting):
                break
        for place in self._waiting:
            note(place, STOPPED, None, 0.0, "")
        return [self._outcomes[place] for place in range(len(self._jobs))]

    def late_signal(self) -> int:
        """The number of a signal that asked fdl to end after the last job has ended; 0 for none."""
        while not self.events.empty():
            event = self.events.get()
            if isinstance(event, int) and signal.Signals(event).name in _ENDING:
                return event
        return 0

    def _next_event(self) -> int | tuple[int, int]:
        while True:
            # Python handles a signal that arrives just before it waits only after the wait.
            with suppress(Empty):
                return self.events.get(timeout=_WAIT_S)

    def _startable(self) -> Iterator[int]:
        """Jobs to start now; whoever asks for the next one has dealt with the last."""
        while self._devices:
            place = next(filter(self._is_ready, self._waiting), None)
            if place is None:
                return
            self._waiting.remove(place)
            yield place

    def _is_ready(self, place: int) -> bool:
        before = [self._outcomes.get(one) for one in self._after.get(place, ())]
        return not self._stopping and all(one and one.state in (DONE, SKIPPED) for one in before)

    def _start(self, place: int) -> None:
        job, devices = self._jobs[place], self._devices.pop(0)
        variables: dict[str, str] = {}
        if sys.stdout.isatty():
            # Lines of Python programs appear as soon as they are written, as on a terminal.
            variables.setdefault("PYTHONUNBUFFERED", "1")
        if devices:
            from fdl.run.jobs.devices import DEVICES_VARIABLE

            variables[DEVICES_VARIABLE] = devices
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fdl.run.jobs.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Keys reach only fdl itself, and no job waits for an answer on the terminal.
            start_new_session=True,
        )
        self._running[place] = process, devices, time.monotonic()
        message = pickle.dumps((job.plan, variables, output.is_quiet(), os.getpid()))
        threading.Thread(target=self._attend, args=(place, process, message), daemon=True).start()

    def _attend(self, place: int, process: subprocess.Popen[bytes], message: bytes) -> None:
        """Hand a process its plan and copy its output until it ends."""
        sources = (process.stdout, process.stderr)
        readers = [
            threading.Thread(target=self.printer.copy, args=(source, place, target), daemon=True)
            for source, target in zip(sources, self._streams, strict=True)
        ]
        for reader in readers:
            reader.start()
        if process.stdin is not None:
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(message)
        code = process.wait()
        limit = time.monotonic() + _LAST_LINES_S
        for reader in readers:
            reader.join(max(0.0, limit - time.monotonic()))
        self.events.put((place, code if code >= 0 else 128 - code))

    def _free(self, place: int) -> float:
        """Give back what a job held; the seconds that it took."""
        _, devices, began = self._running.pop(place)
        self._devices.append(devices)
        return time.monotonic() - began

    def _state(self, code: int) -> str:
        if self._stopping:
            return STOPPED
        if code == 0:
            return DONE
        if not self._keep_going:
            self._stop(signal.SIGTERM)
        return FAILED

    def _stop(self, number: int) -> None:
        self._stopping = True
        for process, _, _ in self._running.values():
            process.send_signal(number)

    def _relay(self, number: int) -> None:
        """Pass a signal to every job; those that end a program also end the pool."""
        name = signal.Signals(number).name
        if name in _ENDING:
            self._signal = self._signal or number
            self._stop(number)
        elif name == "SIGTSTP":
            self._pause()
        else:
            for process, _, _ in self._running.values():
                process.send_signal(number)

    def _pause(self) -> None:
        """Ctrl-Z: stop the jobs and fdl, and let them go on together."""
        self._signal_sessions(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._signal_sessions(signal.SIGCONT)

    def _signal_sessions(self, number: int) -> None:
        for process, _, _ in self._running.values():
            with suppress(OSError):
                os.killpg(process.pid, number)


def _summarize(outcomes: Sequence[Outcome]) -> None:
    if output.is_quiet():
        return
    from fdl.base.tables import table
    from fdl.base.units import duration

    rows = [
        (
            one.job.name,
            one.state,
            "" if one.code is None else str(one.code),
            "" if one.code is None else duration(one.seconds),
            one.reason,
        )
        for one in outcomes
    ]
    heads = ("job", "state", "exit code", "duration", "reason" if any(r[4] for r in rows) else "")
    output.console(stderr=True).print(table(rows, heads, right=(2, 3)))
