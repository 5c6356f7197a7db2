"""Start the warm process of a project, and speak with the ones that run."""

# The paths of requests and answers are strings.
# ruff: noqa: PTH118, PTH123
from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fdl import output
from fdl.errors import FdlError
from fdl.manifest.cache import make_folder
from fdl.warm import facts, wire
from fdl.warm.client import version
from fdl.warm.eligible import program_of
from fdl.warm.places import forget, marker, markers
from fdl.which import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fdl.plan import Plan

_BOOT = """\
_FDL_WARM_BOOT = True
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location(
    "_fdl_warm", sys.argv[1] + "/__init__.py", submodule_search_locations=[sys.argv[1]]
)
sys.modules["_fdl_warm"] = module_from_spec(spec)
"""
_TRIAL = f"""{_BOOT}
from _fdl_warm.trial import main
main()
"""
_SERVER = f"""{_BOOT}
from _fdl_warm.server import serve
program = serve()
try:
    program.run()
except BaseException as problem:
    program.hide_own_frames(problem)
    raise
"""
"""Only a fork of the server gets to the second half. The project's interpreter may lack fdl."""

LOCK = os.path.join(".fdl", "warm.lock")
"""Held by the `fdl warm` that starts processes."""

_OF_ONE_RUN = ("FDL_PLAN", "FDL_JOB", "FDL_PID", "_")
_ROOM_BYTES = 4096
_MOST_TRIALS = 20
_PATIENCE_S = 600.0
_ANSWER_S = 5.0


class Kept(NamedTuple):
    """A warm process that was started.

    Attributes:
        interpreter: Path of its interpreter.
        pid: Its process.
        commands: The commands whose imports it holds.
        left_out: Module -> why the server does not import it.
    """

    interpreter: str
    pid: int
    commands: list[str]
    left_out: dict[str, str]


class Running(NamedTuple):
    """A warm process that answers.

    Attributes:
        interpreter: Path of its interpreter.
        status: Its answer: ``pid``, ``memory`` in bytes, ``starts``, and more.
    """

    interpreter: str
    status: dict[str, Any]


@contextmanager
def alone(root: str) -> Iterator[None]:
    """Let only one `fdl warm` of a project look for warm processes and start them.

    Args:
        root: The folder of the project.
    """
    from filelock import FileLock, Timeout

    make_folder(str(Path(root) / ".fdl"))
    lock = FileLock(Path(root) / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        output.note("waiting for another `fdl warm` of this project")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def groups(plans: Iterable[Plan], shell: Mapping[str, str]) -> dict[str, list[Plan]]:
    """Interpreter -> the plans that a warm process of it could start."""
    found: dict[str, list[Plan]] = {}
    for plan in plans:
        program = program_of(plan)
        path = shell.get("PATH", os.defpath)
        place = program and locate(program.python, plan.env.get("PATH", path), plan.cwd)
        if place:
            found.setdefault(place, []).append(plan)
    return found


def start(
    interpreter: str, plans: list[Plan], manifest: str, shell: Mapping[str, str], idle_s: float
) -> Kept:
    """Start the warm process of one interpreter, and return once it waits.

    Args:
        interpreter: Its path.
        plans: The commands whose imports it is to hold. The variables of the first one are used.
        manifest: The project's manifest. The process ends when it is gone.
        shell: The variables of the caller.
        idle_s: Seconds without a start after which it ends.

    Raises:
        FdlError: The interpreter cannot be used, or its process cannot be forked.
    """
    _check_interpreter(interpreter)
    first = plans[0]
    variables = {**shell, **first.env}
    for name in _OF_ONE_RUN:
        variables.pop(name, None)
    task: dict[str, Any] = {"programs": _programs(plans), "root": first.root, "without": []}
    report, left_out = _try(interpreter, task, variables)
    if not report["imports"]:
        raise FdlError(
            f"the programs of {first.root} import no package that a warm process could hold",
            hint="a warm process saves the import of torch and other packages",
        )
    folder = Path(tempfile.mkdtemp(prefix="fdl-warm-"))
    file = marker(first.root, interpreter)
    task = {
        "root": first.root,
        "manifest": manifest,
        "marker": file,
        "socket": str(folder / "socket"),
        "idle": idle_s,
        "version": version(),
        "interpreter": facts.interpreter(interpreter),
        **{name: report[name] for name in ("imports", "read", "written", "files")},
    }
    names = set(report["read"])
    kept = {
        one: text for one, text in variables.items() if one in names or facts.is_read_early(one)
    }
    make_folder(str(Path(first.root) / ".fdl"))
    Path(file).parent.mkdir(exist_ok=True)
    try:
        pid = _serve(interpreter, task, kept)
    except BaseException:
        with suppress(OSError):
            (folder / "socket").unlink(missing_ok=True)
            folder.rmdir()
        raise
    return Kept(interpreter, pid, [" ".join(one.command) for one in plans], left_out)


def running(root: str) -> list[Running]:
    """The warm processes of a project; files of ended ones are removed."""
    found = []
    for path, record in markers(root):
        status = _ask(path, record, "status")
        if status is not None:
            found.append(Running(str(record.get("interpreter")), status))
    return found


def stop(root: str) -> int:
    """End the warm processes of a project; return their number. Their runs continue."""
    return sum(_ask(path, record, "stop") is not None for path, record in markers(root))


def _ask(path: str, record: Mapping[str, Any], what: str) -> dict[str, Any] | None:
    """The answer of one warm process; None if it has ended."""
    try:
        connection = wire.connect(record["socket"], _ANSWER_S)
        with closing(connection):
            if wire.peer(connection)[1] != os.geteuid():
                return None
            wire.send(connection, {"do": what})
            return wire.receive(connection)[0]
    except (ConnectionRefusedError, FileNotFoundError):
        forget(path, record)
    except (OSError, EOFError):
        pass
    return None


def _programs(plans: list[Plan]) -> list[tuple[str, bool, str]]:
    """Script or module, which of the two, and working directory of each plan."""
    found = []
    for plan in plans:
        program = program_of(plan)
        if program is not None:
            target = program.target if program.module else os.path.join(plan.cwd, program.target)
            found.append((target, program.module, plan.cwd))
    return found


def _check_interpreter(path: str) -> None:
    with open(path, "rb") as stream:
        is_script = stream.read(2) == b"#!"
    if is_script:
        raise FdlError(
            f"{path} is a script that chooses an interpreter at each start",
            hint="make an environment in the project: python -m venv .venv",
        )


def _try(
    interpreter: str, task: dict[str, Any], variables: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Import everything once in a process of its own, without what cannot be held."""
    left_out: dict[str, str] = {}
    for _ in range(_MOST_TRIALS):
        done = subprocess.run(
            [interpreter, "-c", _TRIAL, str(Path(__file__).parent)],
            input=json.dumps(task).encode(),
            capture_output=True,
            env=variables,
            cwd="/",
            timeout=_PATIENCE_S,
            check=False,
        )
        report = _answer(interpreter, done.stdout, done.stderr)
        bad = report["bad"]
        if not bad:
            return report, left_out
        left_out[bad] = report["why"]
        task["without"].append(bad)
    raise FdlError(
        f"too many imports cannot be held: {', '.join(left_out)}", hint="FDL_WARM=0 fdl train"
    )


def _serve(interpreter: str, task: dict[str, Any], variables: Mapping[str, str]) -> int:
    """Start the server, and return its process id once it listens."""
    process = subprocess.Popen(
        [interpreter, "-c", _SERVER, str(Path(__file__).parent), " " * _ROOM_BYTES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**variables, facts.ROOM_VARIABLE: " " * _ROOM_BYTES},
        cwd="/",
        start_new_session=True,
    )
    # It outlives this process, which never waits for it.
    process.returncode = 0
    assert process.stdin  # noqa: S101 - a pipe
    assert process.stdout  # noqa: S101 - a pipe
    with process.stdin as task_pipe:
        task_pipe.write(json.dumps(task).encode())
    with process.stdout as answer:
        out = answer.read()
    problem = _answer(interpreter, out, b"")["problem"]
    if problem:
        raise FdlError(
            f"the process with the imports cannot be forked: {problem}",
            hint="the project's commands start as before",
        )
    return process.pid


def _answer(interpreter: str, out: bytes, err: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(out)
    except ValueError:
        last = err.decode(errors="replace").strip().splitlines()[-1:]
        raise FdlError(
            f"{interpreter} ended while it imported: {last[0] if last else 'it printed nothing'}",
            hint="start the program once without the warm process: FDL_WARM=0 fdl train",
        ) from None
    return found
