"""A fork of the server becomes the user's program, as if an interpreter had just started it.

Runs in the project's interpreter. Standard library only.
"""

# The paths of requests and answers are strings.
# ruff: noqa: PTH109, PTH118, PTH120, PTH123
from __future__ import annotations

import ctypes
import importlib
import io
import os
import random
import signal
import sys
import types
from importlib.machinery import SourceFileLoader

from .facts import ROOM_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_JOB_VARIABLE = "FDL_JOB"
_STREAMS = ("stdin", "stdout", "stderr")


class Program:
    """The user's program in this process.

    Args:
        request: The client's request.
        written: Variables that imports have set, or removed (None).
    """

    def __init__(self, request: dict[str, Any], written: Mapping[str, str | None]) -> None:
        self._module: bool = request["module"]
        self._target: str = request["target"]
        self._arguments: list[str] = request["arguments"]
        self._words: list[str] = request["words"]
        self._request = request
        self._written = written

    def prepare(self, descriptors: list[int], handlers: Mapping[int, Any]) -> None:
        """Take over what a started process inherits.

        Args:
            descriptors: Those of the client, in the order of the request.
            handlers: Control signal -> its handler after all imports.

        Raises:
            OSError: The working directory cannot be entered.
        """
        request = self._request
        _set_signals(handlers, request["ignored"], request["blocked"])
        place(descriptors, request["descriptors"])
        os.chdir(request["cwd"])
        os.umask(request["umask"])
        os.environ.clear()
        os.environ.update(request["env"])
        for name, value in self._written.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _show(self._words, request["mark"])
        _renew_streams()
        _seed()
        importlib.invalidate_caches()
        sys.orig_argv[:] = self._words
        # `-m` is replaced by the file's path, as at any start.
        sys.argv[:] = ["-m" if self._module else self._target, *self._arguments]
        if not sys.flags.safe_path:
            sys.path.insert(0, start_folder(self._module, self._target))

    def run(self) -> None:
        """Run the program, and raise what it raises."""
        names = _new_main()
        if self._module:
            import runpy

            # What `python -m` calls.
            runpy._run_module_as_main(self._target)
            return
        path = _absolute(self._target)
        loader = SourceFileLoader("__main__", path)
        names.update(__file__=path, __cached__=None, __loader__=loader)
        with io.open_code(path) as stream:
            text = stream.read()
        exec(compile(text, path, "exec", dont_inherit=True), names)  # noqa: S102

    def hide_own_frames(self, problem: BaseException) -> None:
        """Let the traceback of a program begin in the program."""
        if isinstance(problem, SystemExit):
            return
        shown = problem.__traceback__
        while shown is not None and _is_own(shown.tb_frame.f_globals):
            shown = shown.tb_next
        hook = sys.excepthook

        def print_it(kind: type[BaseException], value: BaseException, _: object) -> None:
            value.__traceback__ = shown
            hook(kind, value, shown)

        sys.excepthook = print_it


def start_folder(is_module: bool, target: str) -> str:
    """The folder that Python puts in front of its search path."""
    return os.getcwd() if is_module else os.path.dirname(os.path.realpath(target))


def place(descriptors: list[int], numbers: list[int]) -> None:
    """Give descriptors the numbers that they have in the client.

    Args:
        descriptors: As they arrived.
        numbers: Those that they shall have.
    """
    # None of them may lie where another one goes.
    above = max(numbers, default=0) + 1
    import fcntl

    moved = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, above) for one in descriptors]
    for one in descriptors:
        os.close(one)
    for one, number in zip(moved, numbers, strict=True):
        os.dup2(one, number)
        os.close(one)


def show_title(title: str) -> None:
    """Let the kernel list this process under another command line."""
    start, end = _areas()[:2]
    if end - start > 2:
        data = title.encode("utf-8", "surrogateescape")[: end - start - 2]
        # Without a zero at its end, the kernel shows the text up to the first zero.
        _write(start, data + b"\0" * (end - start - 1 - len(data)) + b" ")


def _show(words: list[str], mark: str) -> None:
    """Show the program's command line, and the mark by which fdl finds the processes of a job."""
    show_title(" ".join(words))
    start, end = _areas()[2:]
    with open("/proc/self/environ", "rb") as stream:
        there = stream.read()
    at = there.find(f"{ROOM_VARIABLE}=".encode())
    room = there.find(b"\0", at) - at
    data = os.fsencode(f"{_JOB_VARIABLE}={mark}")
    if at >= 0 and room > len(data) and len(there) == end - start:
        _write(start + at, data + b"\0" * (room - len(data)))


def _areas() -> tuple[int, int, int, int]:
    """Where the kernel reads command line and variables: proc_pid_stat(5), fields 48 to 51."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as stream:
        fields = stream.read().rpartition(")")[2].split()
    first, second, third, fourth = (int(one) for one in fields[45:49])
    return first, second, third, fourth


def _write(address: int, data: bytes) -> None:
    if address:
        ctypes.memmove(address, data, len(data))


def _set_signals(handlers: Mapping[int, Any], ignored: list[int], blocked: list[int]) -> None:
    for number, handler in handlers.items():
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        # None is a handler of compiled code, and ignored is what the server itself inherited.
        kept = handler if handler not in (None, signal.SIG_IGN) else usual
        signal.signal(number, kept)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _renew_streams() -> None:
    """Open the standard streams again, in the objects that imported modules may hold."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(_STREAMS):
        stream: Any = getattr(sys, name)
        raw: Any = io.FileIO(number, "wb" if number else "rb", closefd=False)
        raw.name = f"<{name}>"
        buffer: Any = raw
        if number == 0:
            buffer = io.BufferedReader(raw, _block(number))
        elif not unbuffered:
            buffer = io.BufferedWriter(raw, _block(number))
        lines = not unbuffered and (number == 2 or os.isatty(number))
        stream.__init__(
            buffer,
            encoding=stream.encoding,
            errors=stream.errors,
            newline="\n",
            line_buffering=lines,
            write_through=unbuffered,
        )


def _block(number: int) -> int:
    size = os.fstat(number).st_blksize
    return size if size > 1 else io.DEFAULT_BUFFER_SIZE


def _seed() -> None:
    """Seed all global generators from the system, as each new process does."""
    random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if processes := sys.modules.get("multiprocessing.process"):
        processes.current_process().authkey = os.urandom(32)


def _new_main() -> dict[str, Any]:
    """An empty ``__main__``."""
    main = types.ModuleType("__main__")
    names = main.__dict__
    names.update(__builtins__=__import__("builtins"), __annotations__={})
    sys.modules["__main__"] = main
    return names


def _absolute(path: str) -> str:
    return path if path.startswith("/") else os.path.join(os.getcwd(), path.removeprefix("./"))


def _is_own(names: Mapping[str, Any]) -> bool:
    """Whether globals belong to this package, or to the few lines that load it."""
    name = str(names.get("__name__", ""))
    return name.startswith(f"{__package__}.") or "_FDL_WARM_BOOT" in names
