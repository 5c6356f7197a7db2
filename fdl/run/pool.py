"""Several plans side by side on this machine: their processes, GPUs and lines of output."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, BinaryIO, TextIO

from fdl.base import output
from fdl.base.errors import UsageError
from fdl.base.hardware import Gpu, nvidia
from fdl.base.hardware.troubles import VARIABLE as DEVICES_VARIABLE, restrict
from fdl.base.masking import KNOWN
from fdl.base.signals import ENDING, handled
from fdl.base.units import counted, duration
from fdl.plan.redaction import know_secrets
from fdl.run.lines import LONGEST, last_state, write_all
from fdl.run.step import DONE, FAILED, SKIPPED, STOPPED, Outcome, Step

if TYPE_CHECKING:
    from fdl.run.step import Watch, Where

_OTHERS = ("SIGUSR1", "SIGUSR2", "SIGTSTP")

_LAST_LINES_S = 1.0
"""How long the last output is waited for, while a daemon that the job left holds its stream."""

_WAIT_S = 0.2


def run_all(steps: Sequence[Step], where: Where, watch: Watch) -> list[Outcome]:
    """Run plans beside each other, and print a table of how they ended on stderr.

    Every line of output stands behind the name of its step. The first failure stops the rest, as
    SIGTERM does. A signal to fdl reaches every step once, and no further step starts. A step that
    then ends with 0 counts as stopped: it may have done only a part.

    Args:
        steps: What runs. They have no terminal and no input, so plan them without.
        where: How many run at the same time, with how many GPUs, and what follows a failure.
        watch: Is told about each step, and may skip it.

    Returns:
        The outcomes, in the order of the steps.

    Raises:
        UsageError: There are fewer GPUs than one step is to have.
        OSError: fdl's own output cannot be written.
        KeyboardInterrupt: A signal arrived when all had ended; its number is the argument.
    """
    for step in steps:
        know_secrets(step.plan)
    places = max(1, where.at_once)
    devices = groups(where.gpus_each, os.environ)[:places] if where.gpus_each else [""] * places
    pool = _Pool(steps, devices, keep_going=where.keep_going)
    with handled((*ENDING, *_OTHERS), pool.events.put):
        outcomes = pool.run(watch)
    if pool.printer.problem:
        raise pool.printer.problem
    _summarize(outcomes)
    if late := pool.late_signal():
        raise KeyboardInterrupt(late)
    return outcomes


class _Pool:
    """Starts jobs while places are free, and waits for what happens to them.

    Attributes:
        events: The number of a signal, or the place of a job that has ended with its exit code.
        printer: Prints their output.
    """

    def __init__(self, steps: Sequence[Step], devices: list[str], *, keep_going: bool) -> None:
        self.events: SimpleQueue[int | tuple[int, int]] = SimpleQueue()
        self.printer = Printer([step.name for step in steps])
        self._steps = steps
        self._devices = devices
        self._keep_going = keep_going
        self._waiting = list(range(len(steps)))
        self._running: dict[int, tuple[subprocess.Popen[bytes], str, float]] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._stopping = False
        # The signal to fdl that ends the pool.
        self._signal = 0
        self._streams = _streams()

    def run(self, watch: Watch) -> list[Outcome]:
        """Run all steps; the outcomes in their order."""

        def note(place: int, state: str, code: int | None, seconds: float, reason: str) -> None:
            by = self._signal if state == STOPPED else 0
            self._outcomes[place] = Outcome(self._steps[place], state, code, seconds, reason, by)
            watch.ended(self._outcomes[place])

        while True:
            for place in self._startable():
                if reason := watch.begin(self._steps[place]):
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
        return [self._outcomes[place] for place in range(len(self._steps))]

    def late_signal(self) -> int:
        """The number of a signal that asked fdl to end after the last job has ended; 0 for none."""
        while not self.events.empty():
            event = self.events.get()
            if isinstance(event, int) and signal.Signals(event).name in ENDING:
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
        before = [self._outcomes.get(one) for one in self._steps[place].needs]
        return not self._stopping and all(one and one.state in (DONE, SKIPPED) for one in before)

    def _start(self, place: int) -> None:
        step, devices = self._steps[place], self._devices.pop(0)
        variables: dict[str, str] = {}
        if sys.stdout.isatty():
            # Lines of Python programs appear as soon as they are written, as on a terminal.
            variables.setdefault("PYTHONUNBUFFERED", "1")
        if devices:
            variables[DEVICES_VARIABLE] = devices
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fdl.run.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Keys reach only fdl itself, and no job waits for an answer on the terminal.
            start_new_session=True,
        )
        self._running[place] = process, devices, time.monotonic()
        message = pickle.dumps((step.plan, variables, output.is_quiet(), os.getpid()))
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
        self._send(number)

    def _send(self, number: int) -> None:
        for process, _, _ in self._running.values():
            process.send_signal(number)

    def _relay(self, number: int) -> None:
        """Pass a signal to every job; those that end a program also end the pool."""
        name = signal.Signals(number).name
        if name in ENDING:
            self._signal = self._signal or number
            self._stop(number)
        elif name == "SIGTSTP":
            self._pause()
        else:
            self._send(number)

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

    rows = [
        (
            one.step.name,
            one.state,
            "" if one.code is None else str(one.code),
            "" if one.code is None else duration(one.seconds),
            one.reason,
        )
        for one in outcomes
    ]
    heads = ("job", "state", "exit code", "duration", "reason" if any(r[4] for r in rows) else "")
    output.console(stderr=True).print(table(rows, heads, right=(2, 3)))


def groups(each: int, environ: Mapping[str, str]) -> list[str]:
    """The values of ``CUDA_VISIBLE_DEVICES``, one for each job that can run at the same time.

    Args:
        each: GPUs of each job.
        environ: The variables of fdl; their own ``CUDA_VISIBLE_DEVICES`` is the supply.

    Raises:
        UsageError: There are fewer GPUs than one job is to have.
    """
    found = nvidia(environ)
    names = _names(found.gpus, found.restriction)
    if len(names) < each:
        usable = counted(len(names), "usable GPU") if names else "no usable GPU"
        trouble = f": {found.problem}" if found.problem else ""
        raise UsageError(
            f"`--gpus-each {each}`: this machine has {usable}{trouble}",
            hint="`fdl diagnose` lists the GPUs; without the flag, all jobs share all GPUs",
        )
    whole = len(names) // each * each
    return [",".join(names[start : start + each]) for start in range(0, whole, each)]


def _names(gpus: Sequence[Gpu], value: str | None) -> list[str]:
    """The visible GPUs, named as the user names them; else by index, or by UUID with slices."""
    visible = [gpu for gpu in gpus if gpu.visible]
    if value is not None and visible:
        words = (word.strip() for word in value.split(","))
        return list(takewhile(lambda word: any(g.visible for g in restrict(gpus, word)[0]), words))
    if any(gpu.mig or not gpu.visible for gpu in gpus):
        return [gpu.uuid for gpu in visible]
    return [str(gpu.index) for gpu in visible]


# Cyan, magenta, yellow, green and blue; red stays the colour of errors.
_COLORS = (36, 35, 33, 32, 34)

_PROGRESS_S = 5.0
"""How often the state of a progress bar is printed, which writes over one line again and again."""

_LAST_OUTPUT_S = 1.0
"""How long the end of the output is waited for."""


class Printer:
    """Prints what jobs write, one whole line at a time.

    Attributes:
        problem: Why fdl's own output cannot be written any more, or None.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.problem: OSError | None = None
        self._names = list(names)
        self._width = max(map(len, names), default=0)
        self._lock = threading.Lock()

    def copy(self, source: BinaryIO, place: int, target: TextIO) -> None:
        """Copy a stream of the job at ``place`` until it ends, then print its last line.

        Secrets are masked.

        If the target cannot be written, the source is closed, as it is for a single command.
        """
        prefix, rest, printed = self._prefix(place, target), b"", time.monotonic()
        with source:
            try:
                for data in masked(source):
                    *whole, rest = (rest + data).replace(b"\r\n", b"\n").split(b"\n")
                    bar_is_due = b"\r" in rest and time.monotonic() - printed > _PROGRESS_S
                    if len(rest) > LONGEST or bar_is_due:
                        whole.append(rest)
                        rest = b""
                    if whole:
                        self._print(whole, prefix, target)
                        printed = time.monotonic()
                if last := last_state(rest):
                    self._print([last], prefix, target)
            except OSError as problem:
                self.problem = self.problem or problem

    def _print(self, lines: Sequence[bytes], prefix: bytes, target: TextIO) -> None:
        text = b"".join(prefix + last_state(line) + b"\n" for line in lines)
        with self._lock:
            target.buffer.write(text)
            target.flush()

    def _prefix(self, place: int, target: TextIO) -> bytes:
        name = self._names[place]
        if output.color_on(target):
            name = f"\x1b[{_COLORS[place % len(_COLORS)]}m{name}\x1b[0m"
        blanks = " " * (self._width - len(self._names[place]))
        return f"{name}{blanks} | ".encode(target.encoding or "utf-8", "backslashreplace")


def masked(source: BinaryIO) -> Iterator[bytes]:
    """What a program writes, without secrets, as it arrives."""
    stream = KNOWN.stream()
    while data := os.read(source.fileno(), 1 << 16):
        if shown := stream.feed(data):
            yield shown
    if shown := stream.rest():
        yield shown


@contextmanager
def masked_output() -> Iterator[None]:
    """Mask the secrets in everything that this process and its children write."""
    sys.stdout.flush()
    sys.stderr.flush()
    copies = [_redirected(stream) for stream in (1, 2)]
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for place, kept, thread in copies:
            # The last writer of a pipe closes it, unless a daemon that the job left holds it.
            os.dup2(kept, place)
            thread.join(_LAST_OUTPUT_S)


def _redirected(stream: int) -> tuple[int, int, threading.Thread]:
    kept, (reader, writer) = os.dup(stream), os.pipe()
    os.dup2(writer, stream)
    os.close(writer)

    def copy() -> None:
        with os.fdopen(reader, "rb") as source:
            for data in masked(source):
                write_all(kept, data)

    thread = threading.Thread(target=copy, daemon=True)
    # While fdl looks at a signal, the next one would reach this thread, and end the process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    thread.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return stream, kept, thread


def _streams() -> tuple[TextIO, TextIO]:
    """Fdl's own stdout and stderr, after everything it has printed itself."""
    sys.stdout.flush()
    sys.stderr.flush()
    return sys.stdout, sys.stderr
