"""Let the warm process of a project start a program, and follow it as if it were a child.

Imported on the warm path, by commands of projects that have a warm process.
"""

# pathlib would double the start-up time of a warm command.
# ruff: noqa: PTH109, PTH208
from __future__ import annotations

import os
from contextlib import suppress

from fdl.errors import FdlError
from fdl.light_record import Record
from fdl.version import __version__
from fdl.warm import facts, wire
from fdl.warm.eligible import SWITCH, program_of
from fdl.warm.places import forget, markers

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    import signal as _signal
    from collections.abc import Iterable, Mapping

    from fdl.plan import Plan
else:
    import _signal

_OFF = ("0", "false", "off", "no")
_PATIENCE_S = 2.0
_LONGEST_ANSWER_S = 30.0
"""Until a program that may start has a process id. A busy machine may need time to fork."""

_BATCH = (
    "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "SGE_TASK_ID", "COBALT_JOBID", "OAR_JOB_ID",
    "FLUX_JOB_ID", "_CONDOR_SLOT", "RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
    "JOB_COMPLETION_INDEX", "KUBERNETES_JOB_NAME",
)  # fmt: skip
"""Set by batch schedulers and launchers, which count and limit the processes that they start."""

_PYTHON_IGNORES = (_signal.SIGPIPE, _signal.SIGXFSZ)


def start(
    plan: Plan,
    path: str,
    variables: Mapping[str, str],
    *,
    mark: str,
    blocked: Iterable[int],
) -> Remote | None:
    """Let the project's warm process start a plan; None if the caller must start it.

    Args:
        plan: What is started. Its folder is the working directory of this process.
        path: The interpreter that was found for it.
        variables: The environment of the program.
        mark: The mark of the job.
        blocked: The signals that are blocked in the program.

    Raises:
        FdlError: The program may have started, and nothing is known about it.
    """
    program = program_of(plan)
    if program is None or not _is_wanted(variables) or not _has_foreground():
        return None
    found = next((one for one in markers(plan.root) if one[1].get("interpreter") == path), None)
    descriptors = _inherited()
    if found is None or not {0, 1, 2} <= {*descriptors}:
        return None
    connection = _connect(*found)
    if connection is None:
        return None
    umask = os.umask(0o077)
    os.umask(umask)
    request = {
        "do": "run",
        "version": version(),
        "interpreter": facts.interpreter(path),
        "facts": facts.facts(),
        "module": program.module,
        "target": program.target,
        "arguments": program.arguments,
        "words": plan.launch,
        "cwd": os.getcwd(),
        "env": dict(variables),
        "umask": umask,
        "ignored": _ignored(),
        "blocked": [int(one) for one in blocked],
        "descriptors": descriptors,
        "mark": mark,
    }
    return _started(connection, request, descriptors)


def version() -> str:
    """What client and server must agree on."""
    return f"{__version__} {facts.VERSION}"


class Remote(Record):
    """A program that the warm process has started.

    Attributes:
        pid: Its process.
        group: Its process group, which is not that of this process.
        connection: Tells how it ends.
    """

    pid: int
    group: int
    connection: _socket.socket

    def announce_end(self) -> None:
        """Let the kernel send SIGCHLD when the program ends, as for a child."""
        import fcntl

        number = self.connection.fileno()
        fcntl.fcntl(number, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(number, fcntl.F_SETSIG, _signal.SIGCHLD)
        fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_ASYNC)

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs.

        Raises:
            FdlError: The process beside it is gone, so the exit code is unknown.
        """
        self.connection.settimeout(0)
        try:
            self.connection.recv(1, _MSG_PEEK)
        except BlockingIOError:
            return None
        except OSError:
            pass
        return self._status()

    def reap(self) -> None:
        """Wait until it has ended."""
        with suppress(FdlError):
            self._status()

    def press(self, number: int) -> None:
        """Send a signal to its whole process group, as a terminal does for a key press."""
        with suppress(OSError):
            os.killpg(self.group, number)

    def _status(self) -> int:
        self.connection.settimeout(_LONGEST_ANSWER_S)
        try:
            answer, _ = wire.receive(self.connection)
            return os.waitstatus_to_exitcode(answer["status"])
        except (OSError, EOFError, KeyError):
            raise FdlError(
                "the process that `fdl warm` keeps beside this run was killed, so the exit code is "
                "unknown",
                hint="`fdl warm stop` ends what is left; then start the run again",
            ) from None


_MSG_PEEK = 2


def _started(
    connection: _socket.socket, request: dict[str, object], descriptors: list[int]
) -> Remote | None:
    try:
        wire.send(connection, request)
        answer, _ = wire.receive(connection)
    except (OSError, EOFError):
        answer = {}
    if not answer.get("ready"):
        connection.close()
        return None
    connection.settimeout(_LONGEST_ANSWER_S)
    try:
        wire.send(connection, {"go": True}, descriptors)
        answer, _ = wire.receive(connection)
        return Remote(answer["pid"], answer["group"], connection)
    except (OSError, EOFError, KeyError):
        connection.close()
        raise FdlError(
            "the process that `fdl warm` keeps was killed while it started the program",
            hint="start the run again; FDL_WARM=0 starts it without that process",
        ) from None


def _connect(path: str, found: Mapping[str, object]) -> _socket.socket | None:
    """A connection to the server of a marker; a marker without a server is removed."""
    try:
        connection = wire.connect(str(found["socket"]), _PATIENCE_S)
    except (ConnectionRefusedError, FileNotFoundError):
        forget(path, found)
        return None
    except OSError:
        return None
    if wire.peer(connection)[1] != os.geteuid():
        connection.close()
        return None
    return connection


def _is_wanted(variables: Mapping[str, str]) -> bool:
    return variables.get(SWITCH, "").lower() not in _OFF and not any(
        name in variables for name in _BATCH
    )


def _has_foreground() -> bool:
    """Whether the terminal on stdin, if there is one, would let the program read."""
    if not os.isatty(0):
        return True
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return True


def _inherited() -> list[int]:
    """The descriptors that a program which this process starts would inherit."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.get_inheritable(int(name)):
                found.append(int(name))
    return sorted(found)


def _ignored() -> list[int]:
    """The signals that are ignored, and that a new interpreter does not ignore by itself."""
    return [
        int(one)
        for one in _signal.valid_signals()
        if one not in _PYTHON_IGNORES and _signal.getsignal(one) == _signal.SIG_IGN
    ]
