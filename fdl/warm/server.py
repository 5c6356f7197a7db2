"""Import what the programs of a project import, then wait and fork.

Runs in the project's interpreter. Standard library only.
"""

# The paths of requests and answers are strings.
# ruff: noqa: PTH101, PTH105, PTH106, PTH107, PTH109, PTH110, PTH113, PTH118, PTH119, PTH120, PTH123, PTH208
from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import socket
import sys
import time

from . import ending, facts, wire
from .imports import is_below, package_folders
from .keeper import keep
from .program import Program, show_title, start_folder
from .quiet import reason_not_to_fork
from .trial import load, modules_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

_LOOKS_EVERY_S = 2.0
_PATIENCE_S = 5.0
"""For a client that has connected and sends nothing."""

_MOST_WAITING = 64


def serve() -> Program:
    """Serve until it is time to end; return in each fork that is to become a program."""
    ending.prepare()
    task = json.load(sys.stdin)
    answer = os.dup(1)
    _leave_terminal()
    if sys.path[:1] == [""]:
        del sys.path[0]
    os.environ.pop(facts.ROOM_VARIABLE, None)
    show_title(f"fdl warm: {task['root']}")
    server = _Server(task)
    problem = server.load()
    if not problem:
        try:
            server.listen()
        except OSError as failure:
            problem = f"{task['socket']}: {failure.strerror or failure}"
    os.write(answer, json.dumps({"problem": problem}).encode())
    os.close(answer)
    if problem:
        os._exit(1)
    return server.wait()


class _Server:
    """One process that has everything imported.

    Args:
        task: What :mod:`fdl.warm.start` asks for.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._variables = dict(os.environ)
        self._facts = facts.facts()
        self._stamps: dict[str, facts.Stamp | None] = {}
        self._shadows: set[str] = set()
        self._began = self._used = time.monotonic()
        self._keepers: set[int] = set()
        self._starts = 0
        self._last_cold = ""

    def load(self) -> str:
        """Import everything; return why this process cannot be forked, or nothing."""
        # A file that changes from here on counts as changed.
        self._stamps = {one: facts.stamp(one) for one in self._task["files"]}
        for module, names in self._task["imports"]:
            load((module, tuple(names)))
            if module == "torch":
                ending.skip_destructors()
        for one in (*modules_files(), *_package_paths()):
            if one.startswith("/") and os.path.exists(one):
                self._stamps.setdefault(one, facts.stamp(one))
        self._shadows = _shadows(_other_paths())
        gc.collect()
        ending.note_imports()
        # The program's collector need not visit, and so copy, what never goes.
        gc.freeze()
        return reason_not_to_fork()

    def listen(self) -> None:
        """Open the socket, and tell the clients of the project.

        Raises:
            OSError: Either is impossible.
        """
        path, marker = self._task["socket"], self._task["marker"]
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(_MOST_WAITING)
        known = {"interpreter": self._task["interpreter"]["path"], "socket": path}
        temporary = f"{marker}.{os.getpid()}.tmp"
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump({**known, "pid": os.getpid()}, stream)
        os.replace(temporary, marker)

    def wait(self) -> Program:
        """Answer until the end of the server; return in a program."""
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        while not self._is_over():
            if not waiting.poll(_LOOKS_EVERY_S * 1000):
                continue
            with contextlib.suppress(OSError, EOFError):
                connection, _ = self._listener.accept()
                program = self._answer(connection)
                connection.close()
                if program is not None:
                    return program
        return self._end()

    def _end(self) -> NoReturn:
        for one in (self._task["socket"], self._task["marker"]):
            with contextlib.suppress(OSError):
                os.remove(one)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self._task["socket"]))
        os._exit(0)

    def _reap(self) -> None:
        for one in list(self._keepers):
            with contextlib.suppress(ChildProcessError):
                if not os.waitpid(one, os.WNOHANG)[0]:
                    continue
            self._keepers.discard(one)
            self._used = time.monotonic()

    def _is_over(self) -> bool:
        self._reap()
        if not (os.path.isfile(self._task["marker"]) and os.path.isfile(self._task["manifest"])):
            return True
        idle = time.monotonic() - self._used
        return not self._keepers and idle > self._task["idle"]

    def _answer(self, connection: socket.socket) -> Program | None:
        """Answer one client; the result is None except in a program."""
        connection.settimeout(_PATIENCE_S)
        if wire.peer(connection)[1] != os.geteuid():
            return None
        request, descriptors = wire.receive(connection)
        for one in descriptors:
            os.close(one)
        asked = request.get("do")
        if asked == "run":
            return self._run(connection, request)
        if asked == "stop":
            wire.send(connection, {"stopped": True})
            self._end()
        wire.send(connection, self._status())
        return None

    def _status(self) -> dict[str, Any]:
        self._reap()
        now = time.monotonic()
        return {
            "pid": os.getpid(),
            "age_s": now - self._began,
            "idle_s": now - self._used,
            "ends_after_s": self._task["idle"],
            "running": len(self._keepers),
            "starts": self._starts,
            "last_cold": self._last_cold,
            "imports": [module for module, _ in self._task["imports"]],
            "memory": _memory(),
        }

    def _run(self, connection: socket.socket, request: dict[str, Any]) -> Program | None:
        reason = self._reason_for_a_cold_start(request)
        if reason:
            self._last_cold = reason
            wire.send(connection, {"cold": reason})
            return None
        keeper = os.fork()
        if keeper:
            self._keepers.add(keeper)
            self._starts += 1
            self._used = time.monotonic()
            return None
        # Whatever fails here must not go on as a second server.
        try:
            self._listener.close()
            program = Program(request, self._task["written"])
            keep(connection, program.prepare)
        except BaseException:
            os._exit(1)
        return program

    def _reason_for_a_cold_start(self, request: dict[str, Any]) -> str:
        """Why a fork would differ from a new process, as a clause; empty if it would not."""
        if request.get("version") != self._task["version"]:
            return "fdl has another version"
        if request["interpreter"] != self._task["interpreter"]:
            return "the interpreter is another one"
        theirs = request["facts"]
        for name in sorted({*self._facts, *theirs}):
            if self._facts.get(name) != theirs.get(name):
                return f"{name} differs"
        if name := facts.differing_variable(self._variables, request["env"], self._task["read"]):
            return f"the variable {name} differs"
        for path, stamp in self._stamps.items():
            if facts.stamp(path) != stamp:
                return f"{path} has changed"
        if _shadows(_other_paths()) != self._shadows:
            return "a folder of the search path has a module that would come first"
        return self._reason_of_place(request) or reason_not_to_fork()

    def _reason_of_place(self, request: dict[str, Any]) -> str:
        here = os.getcwd()
        try:
            os.chdir(request["cwd"])
            target = request["target"]
            if not request["module"] and not os.path.isfile(target):
                return f"{target} is not a file"
            folder = start_folder(request["module"], target)
        except OSError:
            return "the working directory cannot be entered"
        finally:
            os.chdir(here)
        found = _shadows([folder])
        return f"{min(found)} would come first" if found else ""


def _leave_terminal() -> None:
    """Let nothing be read or printed, and keep no folder in use."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    os.chdir("/")
    os.umask(0o077)


def _package_paths() -> Iterable[str]:
    """Folders whose entries change when a package is installed, and the files that extend paths."""
    for folder in package_folders():
        yield folder
        with contextlib.suppress(OSError):
            names = os.listdir(folder)
            yield from (os.path.join(folder, one) for one in names if one.endswith(".pth"))


def _other_paths() -> list[str]:
    """The folders of the search path that hold neither packages nor the standard library."""
    packages = package_folders()
    real = [os.path.realpath(one) for one in sys.path]
    return [one for one in real if one not in packages and not is_below(one, packages)]


def _shadows(folders: Iterable[str]) -> set[str]:
    """Files in folders that have the name of an imported module and are not that module."""
    found = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            found |= {
                path
                for name in os.listdir(folder)
                if (path := os.path.join(folder, name)) and _hides(path)
            }
    return found


def _hides(path: str) -> bool:
    """Whether a file or folder would be imported in place of a module that is loaded."""
    name, _, ending = os.path.basename(path).partition(".")
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return False
    file = path if ending else os.path.join(path, "__init__.py")
    if ending and not path.endswith((".py", ".so", ".pyc")):
        return False
    known = getattr(module, "__file__", None) or ""
    return os.path.isfile(file) and os.path.realpath(known) != os.path.realpath(file)


def _memory() -> int:
    """Bytes of memory that this process holds, its share of what programs use too."""
    lines = []
    with contextlib.suppress(OSError), open("/proc/self/smaps_rollup", "rb") as stream:
        lines = stream.read().splitlines()
    sizes = [int(line.split()[1]) for line in lines if line.startswith(b"Pss:")]
    return sum(sizes) * 1024
