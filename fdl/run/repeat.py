"""Run the first steps of a run again, in a temporary folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from fdl.base.errors import FdlError
from fdl.plan.torchrun import LAUNCHER
from fdl.run.program import marked
from fdl.run.watcher import Watcher
from fdl.runs.recipe import copy_code
from fdl.runs.trace_file import read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.runs.recipe import Recipe
    from fdl.runs.trace_file import Trace

VARIABLE = "FLODL_REPEAT"
"""Tells flodl to train only the first steps; names the file that says how many."""

_TOLD_LINES = 5
_GRACE = 5.0


@final
class Repeats:
    """Repeats the beginning of runs.

    Args:
        folder: An empty folder for code, runs and output.
        steps: Steps after which each training ends, counted over the whole training.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps = folder, steps
        self._copies: dict[Path, Path] = {}
        self._count = 0

    def train(self, recipe: Recipe) -> Trace:
        """Train the first steps, and return their trace.

        Raises:
            FdlError: The program fails, writes no trace, or its code cannot be put together.
        """
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        asked = {"steps": self._steps, "engine": recipe.engine, "threads": recipe.threads}
        file = folder / "repeat.json"
        file.write_text(json.dumps(asked), encoding="utf-8")
        environ = {name: value for name, value in os.environ.items() if name != "FDL_PLAN"}
        for name, value in recipe.variables.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value
        environ |= {VARIABLE: str(file)}
        if recipe.project_root:
            environ["FDL_PROJECT_ROOT"] = recipe.project_root
        cwd = recipe.cwd
        if recipe.code is not None:
            cwd = self._code(recipe.code, recipe.cwd)
            copy = self._copies[recipe.code]
            known = filter(None, [environ.get("PYTHONPATH")])
            # An editable installation would import the working tree.
            environ["PYTHONPATH"] = os.pathsep.join([str(copy), str(copy / "src"), *known])
        output = folder / "output.txt"
        code = _run(_command(recipe), cwd, environ, output)
        runs = [one for one in (folder / "runs").glob("*") if (one / "run.json").is_file()]
        if code or len(runs) != 1:
            raise _failed(code, output)
        return read_trace(runs[0])

    def _code(self, run: Path, cwd: Path) -> Path:
        """The working directory in a copy of the code, made at its first use."""
        if run not in self._copies:
            target = self._folder / f"code-{len(self._copies)}"
            inside = copy_code(run, cwd, target)
            self._copies[run] = target
            return inside
        top = next(one for one in (cwd, *cwd.parents) if (one / ".git").exists())
        return self._copies[run] / cwd.relative_to(top)


def with_code_of(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe with the code of another one."""
    return replace(recipe, code=other.code, start=other.start, cwd=other.cwd)


def _command(recipe: Recipe) -> list[str]:
    if recipe.ranks == 1:
        return [*recipe.start, *recipe.words]
    interpreter, *rest = recipe.start
    options, program = _python_options(rest)
    count = str(recipe.ranks)
    launcher = [LAUNCHER, "--standalone", "--nproc-per-node", count]
    # Behind `--`, torchrun does not compare the program's flags with its own.
    module, named = (["-m"], program[1:]) if program[0] == "-m" else ([], program)
    return [interpreter, *options, *launcher, *module, "--", *named, *recipe.words]


def _python_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate Python's own options, such as ``-u``, from the script or ``-m`` and the module."""
    end = 0
    while end < len(words) and words[end].startswith("-") and words[end] != "-m":
        end += 2 if words[end] in ("-X", "-W") else 1
    return list(words[:end]), list(words[end:])


def _run(command: list[str], cwd: Path, environ: dict[str, str], output: Path) -> int:
    watcher = Watcher(marked(environ))
    try:
        with output.open("wb") as stream:
            # In a session of its own: Ctrl-C reaches fdl alone, which then ends the training.
            child = subprocess.Popen(
                command, cwd=cwd, env=environ, stdin=subprocess.DEVNULL, stdout=stream,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        watcher.dismiss()
        raise FdlError(
            f"`{command[0]}` cannot be started: {error.strerror or error}",
            hint="repeat the run on the machine where it was trained",
        ) from error
    watcher.tell(child.pid)
    try:
        return child.wait()
    finally:
        watcher.dismiss()
        if child.returncode is None:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(child.pid, number)
            else:
                child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)


def _failed(code: int, output: Path) -> FdlError:
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()[-_TOLD_LINES:]
    why = f"ended with exit code {code}" if code else "made no run directory of its own"
    return FdlError(
        "\n  ".join([f"a repeated training {why}; its last lines:", *lines]),
        hint="the program needs its data and its environment variables, as in the first training",
    )
