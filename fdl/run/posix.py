"""Running a child in the foreground on Linux and macOS.

Imported on the warm path. ``subprocess`` and ``signal`` take longer to import than all of fdl, so
this module starts the child and waits for it with system calls.
"""

from __future__ import annotations

import os
import time

from fdl import output
from fdl.errors import FdlError
from fdl.run.program import cannot_start, locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal

    from fdl.plan import Plan
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
_FROM_TERMINAL = (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGHUP)
# Python ignores these two, and a child would inherit that.
_RESTORED = (_signal.SIGPIPE, _signal.SIGXFSZ)
# Linux: sent by the kernel, as for a key press, not by another process.
_SI_KERNEL = 0x80

_TWICE_WITHIN_S = 10.0
"""Presses of Ctrl-C further apart than this count as first presses, because an interactive program
may get many of them."""


def run(plan: Plan) -> int:
    """Run ``plan.launch`` and return its exit code.

    It is 128 + n if signal n ended the child, and 130 after a second Ctrl-C.

    Raises:
        FdlError: The program cannot be started.
    """
    variables = {**os.environ, **plan.env}
    if plan.ranks is not None:
        # Ranks end when this process ends: flodl.distributed.launching.lifeline reads it.
        variables["FDL_PID"] = str(os.getpid())
    try:
        os.chdir(plan.cwd)
    except OSError as problem:
        raise FdlError(f"{plan.origin}: {plan.cwd}: {problem.strerror}") from None
    program = locate(plan.launch[0], variables.get("PATH", os.defpath), plan.cwd)
    if program is None:
        raise cannot_start(plan, "no such program")
    with _Attendant() as attendant:
        try:
            child = os.posix_spawn(
                program,
                plan.launch,
                variables,
                setsigdef=_RESTORED,
                setsigmask=attendant.blocked_before,
            )
        except (OSError, ValueError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem)
            raise cannot_start(plan, reason) from None
        code = attendant.wait(child)
    if attendant.killed and plan.service:
        output.hint("the container is Docker's and may still be running: `docker compose ps`")
    return code


class _Attendant:
    """Waits until the child ends, and passes every signal to it exactly once.

    Keys pressed on the terminal reach the child directly, because it is in fdl's process group. A
    signal that is sent to fdl alone must be forwarded. To tell the two apart, signals are blocked
    and fetched one by one; there are no handlers.

    Attributes:
        blocked_before: The signals that were blocked before; they are also blocked in the child.
        killed: Whether the child was killed because of a second Ctrl-C.
    """

    __slots__ = ("_awaited", "_child_handler", "_pressed_at", "blocked_before", "killed")

    def __init__(self) -> None:
        # An ignored signal (nohup, a background job) stays ignored in fdl and in the child.
        heeded = [one for one in _RELAYED if _signal.getsignal(one) != _signal.SIG_IGN]
        self._awaited = {*heeded, _signal.SIGCHLD}
        self._child_handler: object = _signal.SIG_DFL
        self._pressed_at: float | None = None
        self.blocked_before: set[int] = set()
        self.killed = False

    def __enter__(self) -> _Attendant:
        # Some systems drop a SIGCHLD without a handler, even a blocked one.
        self._child_handler = _signal.signal(_signal.SIGCHLD, lambda *_: None)
        self.blocked_before = set(_signal.pthread_sigmask(_signal.SIG_BLOCK, self._awaited))
        return self

    def __exit__(self, *_: object) -> None:
        handlers = {number: _signal.getsignal(number) for number in self._awaited}
        handlers[_signal.SIGCHLD] = self._child_handler  # type: ignore[assignment]
        # The Ctrl-C that ended the child may still be pending for fdl; ignoring it drops it.
        for number in handlers:
            _signal.signal(number, _signal.SIG_IGN)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self.blocked_before)
        if self.killed:
            # fdl already returns 130 for this Ctrl-C, so further presses must not change it.
            del handlers[_signal.SIGINT]
        for number, handler in handlers.items():
            _signal.signal(number, handler)

    def wait(self, child: int) -> int:
        """Forward signals until the child has ended; return its exit code."""
        while True:
            number, known = self._next()
            if number == _signal.SIGCHLD:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code
            elif not known:
                _hand_on(number, child)
            elif number == _signal.SIGINT and self._pressed_twice():
                from fdl.run.group import kill_foreground

                self.killed = True
                kill_foreground(child)
                os.waitpid(child, 0)
                return 130

    def _next(self) -> tuple[int, bool]:
        """The next signal, and whether the child has received it too."""
        if not hasattr(_signal, "sigwaitinfo"):
            number = int(_signal.sigwait(self._awaited))
            return number, number in _FROM_TERMINAL and _in_terminal_foreground()
        taken = _signal.sigwaitinfo(self._awaited)
        # A closing terminal sends SIGHUP only to the leader of its session, which may be fdl.
        alone = taken.si_signo == _signal.SIGHUP and os.getsid(0) == os.getpid()
        return taken.si_signo, taken.si_code == _SI_KERNEL and not alone

    def _pressed_twice(self) -> bool:
        """Record a Ctrl-C; return whether it is the second one for a child that does not end."""
        now, before = time.monotonic(), self._pressed_at
        self._pressed_at = now
        if before is None or now - before > _TWICE_WITHIN_S:
            return False
        from fdl.run.group import reads_keys

        # Prompts and full-screen programs use the key themselves.
        return not reads_keys()


def _hand_on(number: int, child: int) -> None:
    try:
        os.kill(child, number)
    except OSError:
        # The child has ended or runs as another user now. Either way, no signal can reach it.
        return


def _in_terminal_foreground() -> bool:
    """Whether keys pressed on the controlling terminal reach this process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
