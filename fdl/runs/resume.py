"""The command that continues a run which has stopped, made from its record."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, final

from fdl.base.errors import FdlError
from fdl.base.run_record import RESUME, without_resume
from fdl.base.secrets import REDACTED
from fdl.base.shell_words import join
from fdl.manifest.discover import find_in
from fdl.manifest.select.level import PRESET
from fdl.manifest.select.project import Project
from fdl.plan.planner import Planner, here
from fdl.plan.torchrun import read
from fdl.runs.find import levels, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fdl.manifest.select.level import Level
    from fdl.plan.torchrun import Program
    from fdl.runs.run import Run


def how_to_resume(run: Run, project: Project | None) -> str:
    """The command line that continues a run; the option alone if its record does not say enough.

    Args:
        run: A run that can be continued.
        project: The project around the working directory, or None.
    """
    started = _Started.of(run)
    root = run.record.get("project_root")
    typed = ""
    if started is not None and isinstance(root, str):
        typed = _typed_for_fdl(started, run, _project_of(run, root, project), project)
    elif started is not None and started.ranks == 1:
        typed = _typed_for_python(started, run)
    return typed or f"{RESUME} {shortened(run.path)}"


def _project_of(run: Run, root: str, around: Project | None) -> Project | None:
    """The project of a run, which may be another one than that around the working directory.

    The record may come from somebody else, so a project that is not around the run is not read.
    """
    if around is not None and os.path.realpath(root) == os.path.realpath(around.directory):
        return around
    if not run.path.resolve().is_relative_to(os.path.realpath(root)):
        return None
    found = find_in(root)
    return Project(found) if found else None


@final
class _Started:
    """How the program of a run was started.

    Attributes:
        program: The interpreter, and the script or module.
        words: What the program got, without ``--resume``.
        folder: The working directory.
        ranks: Processes that a launcher started; 1 for none.
    """

    def __init__(self, program: Program, words: Sequence[str], folder: Path, ranks: int) -> None:
        self.program = program
        self.words = without_resume(words)
        self.folder = folder
        self.ranks = ranks

    @classmethod
    def of(cls, run: Run) -> _Started | None:
        """The record of a run; None if it is not whole, or the program cannot continue a run."""
        start, argv, folder = (run.record.get(name) for name in ("start", "argv", "cwd"))
        if not (isinstance(start, list) and isinstance(argv, list) and isinstance(folder, str)):
            return None
        program = read([str(word) for word in start])
        words = [str(word) for word in argv[1:]]
        # A secret is not recorded, so a command with one cannot be repeated.
        if program is None or "resume" not in run.settings or any(REDACTED in one for one in words):
            return None
        return cls(program, words, Path(folder), int(run.record.get("launched_ranks") or 1))


def _typed_for_fdl(
    started: _Started, run: Run, project: Project | None, around: Project | None
) -> str:
    """The command line of ``fdl``; empty if no command of the project starts this program."""
    words = _words_for_fdl(started, project) if project else None
    if project is None or words is None:
        return ""
    ranks = ["--ranks", str(started.ranks)] if started.ranks > 1 else []
    resume = [RESUME, _below(run.path, Path(project.directory))]
    typed = join(["fdl", *words, *ranks, *resume])
    return typed if project is around else f"cd {join([project.directory])} && {typed}"


def _words_for_fdl(started: _Started, project: Project) -> list[str] | None:
    """The words after ``fdl``; None if no command of the project starts this program."""
    for env in dict.fromkeys([project.env, None, *project.environments()]):
        chosen = ["--env", env] if env else []
        there = Project(project.found, env)
        for command, generated in _commands(there, started):
            if started.words[: len(generated)] == generated:
                return [*chosen, *command, *started.words[len(generated) :]]
    # The manifest has changed since. What is typed wins, so the recorded words still count.
    for command, _ in _commands(project, started):
        return [*command, *started.words]
    return None


def _commands(project: Project, started: _Started) -> Iterator[tuple[list[str], list[str]]]:
    """The commands that start the program in its folder, each with the words it generates."""
    planner = Planner(project.directory, here())
    for level in levels(project):
        for preset in (None, *level.commands) if level.entry else ():
            with suppress(FdlError):
                if preset is None or level.kind(preset) == PRESET:
                    generated = _generated(planner.with_values(level, preset), preset, started)
                    if generated is not None:
                        yield [*level.names, *([preset] if preset else [])], generated


def _generated(level: Level, preset: str | None, started: _Started) -> list[str] | None:
    """The words that a command adds to the program; None for another program or folder."""
    from fdl.plan.arguments import arguments
    from fdl.programs.schema import known

    if os.path.realpath(level.start_folder(preset)) != os.path.realpath(started.folder):
        return None
    found = read(arguments(level, preset, (), known(level)).argv)
    if found is None or _identity(found) != _identity(started.program):
        return None
    return without_resume(found.arguments)


def _identity(program: Program) -> tuple[bool, str]:
    return program.module, program.target


def _typed_for_python(started: _Started, run: Run) -> str:
    """The command line of a program that was started without fdl."""
    program = started.program
    target = ["-m", program.target] if program.module else [program.target]
    python = Path(program.python).name
    resume = [RESUME, _below(run.path, started.folder)]
    typed = join([python, *program.flags, *target, *started.words, *resume])
    if started.folder.resolve() == Path.cwd().resolve():
        return typed
    return f"cd {join([str(started.folder)])} && {typed}"


def _below(path: Path, folder: Path) -> str:
    """A path as a program sees it that starts in a folder: relative only inside of it."""
    path, folder = path.resolve(), folder.resolve()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
