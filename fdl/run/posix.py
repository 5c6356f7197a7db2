"""Running a child in the foreground on Linux and macOS.

Imported on the warm path. ``subprocess`` and ``signal`` cost more to import than all of fdl, so
the child is spawned and awaited with the system's own calls.
"""

from __future__ import annotations

import os

from fdl.errors import FdlError
from fdl.run.program import cannot_start, locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from types import FrameType

    from fdl.plan import Plan
else:
    # The compiled half of `signal`, which every interpreter has loaded at its start.
    import _signal

# What a terminal sends to every process in its foreground.
_FROM_TERMINAL = (_signal.SIGINT, _signal.SIGQUIT, _signal.SIGHUP)
_RELAYED = (*_FROM_TERMINAL, _signal.SIGTERM)
# Python ignores these two for itself, and an ignored signal stays ignored in a child.
_RESTORED = (_signal.SIGPIPE, _signal.SIGXFSZ)


def run(plan: Plan) -> int:
    """Start ``plan.launch`` and wait for its end.

    Returns:
        The exit code; 128 + n when signal n ended the child.

    Raises:
        FdlError: The program cannot be started.
    """
    variables = {**os.environ, **plan.env}
    try:
        os.chdir(plan.cwd)
    except OSError as problem:
        raise FdlError(f"{plan.origin}: {plan.cwd}: {problem.strerror}") from None
    program = locate(plan.launch[0], variables.get("PATH", os.defpath), plan.cwd)
    if program is None:
        raise cannot_start(plan, "no such program")
    with _Relay() as relay:
        try:
            child = os.posix_spawn(
                program,
                plan.launch,
                variables,
                setsigdef=_RESTORED,
                setsigmask=relay.blocked_before,
            )
        except OSError as problem:
            raise cannot_start(plan, problem.strerror or str(problem)) from None
        except ValueError as problem:
            raise cannot_start(plan, str(problem)) from None
        relay.attend(child)
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class _Relay:
    """Outlives the child and lets it have every signal once.

    A key pressed on the terminal reaches the child by itself, because it shares our process
    group; a signal somebody sends to fdl alone has to be handed on.
    """

    __slots__ = ("_child", "_previous", "_terminal", "blocked_before")

    def __init__(self) -> None:
        self._child = 0
        self._previous: dict[int, object] = {}
        self._terminal = _in_terminal_foreground()
        self.blocked_before: set[int] = set()

    def __enter__(self) -> _Relay:
        # Held back until the child exists: before that there is nobody to hand a signal to.
        self.blocked_before = set(_signal.pthread_sigmask(_signal.SIG_BLOCK, _RELAYED))
        for number in _RELAYED:
            # An ignored signal (nohup, a background job) stays ignored for us and for the child.
            if _signal.getsignal(number) != _signal.SIG_IGN:
                self._previous[number] = _signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            _signal.signal(number, handler)  # type: ignore[arg-type]
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self.blocked_before)

    def attend(self, child: int) -> None:
        """Name the child; from here on signals are handed on."""
        self._child = child
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self.blocked_before)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number in _FROM_TERMINAL and self._terminal:
            return
        try:
            os.kill(self._child, number)
        except OSError:
            # It has ended, or has become another user: either way it is out of our hands.
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
