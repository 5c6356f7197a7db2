"""Running a child in the foreground on Linux and macOS.

Imported on the warm path. ``subprocess`` and ``signal`` take longer to import than all of fdl, so
this module starts the child and waits for it with system calls.
"""

from __future__ import annotations

import os
import time

from fdl.base import output
from fdl.base.errors import FdlError, failing
from fdl.base.venv import locate
from fdl.run.program import cannot_start, deliver, marked, too_long
from fdl.run.watcher import Watcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal

    from fdl.plan.value import Plan
    from fdl.run.copies import Copies
    from fdl.run.record import RunRecord
else:
    # The compiled part of `signal`, which every interpreter loads at its start.
    import _signal

# Signals that end or control a program. Signals that concern one process only are left out. So are
# stop signals: the terminal also sends them to the child, and they must stop fdl as well.
_RELAYED = (
    _signal.SIGINT,
    _signal.SIGQUIT,
    _signal.SIGHUP,
    _signal.SIGTERM,
    _signal.SIGUSR1,
    _signal.SIGUSR2,
)
# These ask the whole job to end. The others are for the program alone.
_ENDING = (_signal.SIGINT, _signal.SIGHUP, _signal.SIGTERM)
_FROM_TERMINAL = (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGHUP)
# Python ignores these two, and a child would inherit that.
_RESTORED = (_signal.SIGPIPE, _signal.SIGXFSZ)
# Linux: sent by the kernel, as for a key press, not by another process.
_SI_KERNEL = 0x80

_LOOKS_EVERY_S = 5.0 if hasattr(_signal, "sigtimedwait") else None
"""In a process with threads, another thread may take the signal that the child has ended."""

_TWICE_WITHIN_S = 10.0
"""Presses of Ctrl-C further apart than this count as first presses, because an interactive program
may get many of them."""

_SAME_WITHIN_S = 0.2
"""`timeout` and terminals that close send one signal to fdl twice. Within this time it counts once.
"""

_PAUSE_S = 0.02
_E2BIG = 7
_FOREVER = float("inf")


def run(plan: Plan, record: RunRecord | None = None) -> tuple[int, int]:
    """Run ``plan.launch``.

    Args:
        plan: What to run.
        record: Gets what the program prints, or None.

    Returns:
        The exit code: 128 + n if signal n ended the child, or if fdl killed it after that signal.
        And the signal that asked fdl to end meanwhile, 0 for none.

    Raises:
        FdlError: The program cannot be started.
    """
    variables = {**os.environ, **plan.env}
    mark = marked(variables)
    if plan.ranks is not None:
        # Ranks end when this process ends: flodl.ranks.launch.launcher reads it.
        variables["FDL_PID"] = str(os.getpid())
    with failing(f"{plan.origin}: {plan.cwd}"):
        os.chdir(plan.cwd)
    program = locate(plan.launch[0], variables.get("PATH", os.defpath), plan.cwd)
    if program is None:
        raise cannot_start(plan, "no such program")
    copies = None
    if record is not None:
        from fdl.run.copies import Copies

        copies = Copies(record.lines())
    with _Attendant(plan, mark, copies) as attendant:
        try:
            child = os.posix_spawn(
                program,
                plan.launch,
                variables,
                setsigdef=_RESTORED,
                setsigmask=attendant.blocked_before,
                file_actions=copies.file_actions if copies else (),
            )
        except (OSError, ValueError) as problem:
            if copies:
                copies.drop()
            raise _refused(plan, variables, problem) from None
        if copies and record:
            copies.start()
            record.follow()
        code = attendant.wait(child)
        if copies:
            copies.finish()
    if attendant.killed and plan.service:
        output.hint("the container is Docker's and may still be running: `docker compose ps`")
    return code, attendant.signal


def _refused(plan: Plan, variables: dict[str, str], problem: Exception) -> FdlError:
    """The error for a program that the system refuses to start."""
    if getattr(problem, "errno", None) != _E2BIG:
        return cannot_start(plan, getattr(problem, "strerror", None) or str(problem))
    return too_long(plan, variables)


class _Attendant:
    """Waits until the child ends, and passes every signal to the job exactly once.

    Keys pressed on the terminal reach the job directly, because it is in fdl's process group. A
    signal that is sent to fdl alone must be forwarded. To tell the two apart, signals are blocked
    and fetched one by one; there are no handlers.

    Attributes:
        blocked_before: The signals that were blocked before; they are also blocked in the child.
        killed: Whether fdl killed the child.
        signal: The last signal that asked the job to end; 0 for none.
        watcher: Ends the job if fdl is killed.
    """

    def __init__(self, plan: Plan, mark: str, copies: Copies | None) -> None:
        # An ignored signal (nohup, a background job) stays ignored in fdl and in the child.
        heeded = [one for one in _RELAYED if _signal.getsignal(one) != _signal.SIG_IGN]
        self._awaited = {*heeded, _signal.SIGCHLD}
        self._copies = copies
        if copies and copies.has_terminal:
            self._awaited.add(_signal.SIGWINCH)
        self._child_handler: object = _signal.SIG_DFL
        self._plan = plan
        self._mark = mark
        self._pressed_at: float | None = None
        self._sent_at: float | None = None
        self.signal = 0
        # The processes that were there when it was passed on.
        self._reached: set[int] = set()
        # fdl and the programs that started it, as they were at that time.
        self._above: set[int] = set()
        self._foreground: list[int] = []
        self._stop_at: float | None = None
        self.blocked_before: set[int] = set()
        self.killed = False

    def __enter__(self) -> _Attendant:
        # Some systems drop a SIGCHLD without a handler, even a blocked one.
        self._child_handler = _signal.signal(_signal.SIGCHLD, lambda *_: None)
        self.blocked_before = set(_signal.pthread_sigmask(_signal.SIG_BLOCK, self._awaited))
        # It starts with the signals blocked, and before the job, so that no moment is missed.
        self.watcher = Watcher(self._mark)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After a fault of fdl itself, the job ends with it.
        if kind is None or issubclass(kind, FdlError):
            self.watcher.dismiss()
        late = _signal.sigpending() & self._awaited
        self.signal = self.signal or next((one for one in _ENDING if one in late), 0)
        handlers = {number: _signal.getsignal(number) for number in self._awaited}
        handlers[_signal.SIGCHLD] = self._child_handler  # type: ignore[assignment]
        # The Ctrl-C that ended the child may still be pending for fdl; ignoring it drops it.
        for number in handlers:
            _signal.signal(number, _signal.SIG_IGN)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self.blocked_before)
        if self.killed:
            # fdl already returns 130 for this Ctrl-C, so further presses must not change it.
            handlers.pop(_signal.SIGINT, None)
        for number, handler in handlers.items():
            _signal.signal(number, handler)

    def wait(self, child: int) -> int:
        """Forward signals until the child has ended; return its exit code."""
        self.watcher.tell(child)
        while True:
            left = None if self._stop_at is None else self._stop_at - time.monotonic()
            if left is not None and left <= 0:
                return self._kill(child)
            number, known = self._next(_LOOKS_EVERY_S if left is None else left)
            if number in (0, _signal.SIGCHLD):
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    return self._ended(child, os.waitstatus_to_exitcode(status))
            elif number == _signal.SIGWINCH and self._copies:
                self._copies.resize()
                # The program has got the signal as well, perhaps before its terminal had the size.
                deliver(child, number)
            elif number not in _ENDING and not self._announces(number):
                if not known:
                    deliver(child, number)
            elif self._asked(number, known, child):
                return self._kill(child)

    def _announces(self, number: int) -> bool:
        """Whether a signal announces the end of a batch job to ranks.

        torchrun would end on it at once. So the ranks get SIGTERM, and write a checkpoint.
        """
        of_slurm = "SLURM_JOB_ID" in os.environ
        return self._plan.ranks is not None and number == _signal.SIGUSR1 and of_slurm

    def _asked(self, number: int, known: bool, child: int) -> bool:
        """Pass on a signal that asks the job to end; return whether to kill the job instead."""
        now = time.monotonic()
        if self._repeats(number):
            return False
        again = self._sent_at is not None
        pressed = self._pressed_at is not None and now - self._pressed_at <= _TWICE_WITHIN_S
        if known and number == _signal.SIGINT:
            from fdl.run.tree import reads_keys

            self._pressed_at = now
            # Prompts and full-screen programs read single keys, and use Ctrl-C themselves.
            again = (again or pressed) and not reads_keys()
        else:
            again = again or pressed
            self._sent_at = now
        self.signal = number
        if again:
            return True
        from fdl.run.tree import ancestors

        self._above |= ancestors()
        self._tell(number, known, child)
        if self._plan.stop_timeout is not None and self._stop_at is None:
            self._stop_at = now + self._plan.stop_timeout
        return False

    def _tell(self, number: int, known: bool, child: int) -> None:
        if self._plan.service:
            # The docker command passes signals to the container itself.
            if not known:
                deliver(child, number)
            return
        from fdl.run.tree import descendants, foreground, send

        if self._plan.kind == "run":
            self._foreground = foreground(child)
        sent = _signal.SIGTERM if number == _signal.SIGUSR1 else number
        below = descendants(child, self._mark) if known else send(child, sent, self._mark)
        self._reached.update(below)

    def _kill(self, child: int) -> int:
        from fdl.run.tree import kill

        self.killed = True
        if self._pressed_at is not None and self.signal == _signal.SIGINT:
            from fdl.run.tree import kill_foreground

            kill_foreground(child, self._above)
        kill(child, self._mark, self._reached)
        os.waitpid(child, 0)
        return 128 + self.signal

    def _ended(self, child: int, code: int) -> int:
        """End what the child left behind after a signal; return the exit code."""
        # A program may use Ctrl-C itself and end in another way later.
        if self.signal and (code or self._sent_at is not None) and not self._plan.service:
            self._end_leftovers(child)
        return code if code >= 0 else 128 - code

    def _end_leftovers(self, child: int) -> None:
        from fdl.run.tree import alive, descendants, end

        # A shell ends at once, but the program is the command that it has waited for.
        end(self._foreground, self._until_kill(), self._hurried)
        left = alive({*self._reached, *descendants(child, self._mark)})
        if self.signal != _signal.SIGTERM:
            # A shell starts its background commands with SIGINT ignored.
            for pid in left:
                deliver(pid, _signal.SIGTERM)
        end(left, min(self._plan.grace, self._until_kill()), self._hurried)

    def _until_kill(self) -> float:
        """Seconds until everything that is left is killed."""
        return _FOREVER if self._stop_at is None else self._stop_at - time.monotonic()

    def _hurried(self) -> bool:
        """Whether another signal that asks the job to end has arrived."""
        number, _ = self._next(0)
        self.killed = self.killed or (number in _ENDING and not self._repeats(number))
        return self.killed

    def _repeats(self, number: int) -> bool:
        """Whether a signal says the same as the last one, and is not a second request."""
        if self._sent_at is None or number != self.signal:
            return False
        # A terminal that closes says so more than once: its shell does, and then the kernel.
        return number == _signal.SIGHUP or time.monotonic() - self._sent_at < _SAME_WITHIN_S

    def _next(self, timeout: float | None) -> tuple[int, bool]:
        """The next signal, or 0 after ``timeout``; and whether the child has received it too."""
        if not hasattr(_signal, "sigwaitinfo"):
            if timeout is not None and not self._arrives(timeout):
                return 0, False
            number = int(_signal.sigwait(self._awaited))
            from fdl.run.tree import is_in_foreground

            return number, number in _FROM_TERMINAL and is_in_foreground()
        if timeout is None:
            taken = _signal.sigwaitinfo(self._awaited)
        else:
            found = _signal.sigtimedwait(self._awaited, timeout)
            if found is None:
                return 0, False
            taken = found
        # A closing terminal sends SIGHUP only to the leader of its session, which may be fdl.
        alone = taken.si_signo == _signal.SIGHUP and os.getsid(0) == os.getpid()
        return taken.si_signo, taken.si_code == _SI_KERNEL and not alone

    def _arrives(self, timeout: float) -> bool:
        """Whether a signal is there within ``timeout``; macOS has no system call for it."""
        limit = time.monotonic() + timeout
        while not self._awaited & _signal.sigpending():
            if time.monotonic() >= limit:
                return False
            time.sleep(_PAUSE_S)
        return True
