"""How a run is repeated: its command and settings, and a copy of the code that it had."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fdl.base.errors import FdlError
from fdl.base.files import read_own
from fdl.base.shell_words import join
from fdl.base.units import printable
from fdl.runs.causes import CODE, read_code
from fdl.runs.metrics import read_json
from fdl.runs.run import ENVIRONMENT, variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fdl.runs.run import Run
    from fdl.runs.trace import Trace

_HIDDEN = "<secret>"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to repeat a run.

    Attributes:
        start: The interpreter, and the script or ``-m`` and the module.
        words: The arguments of the program.
        cwd: Its working directory.
        project_root: The root of the project, or empty.
        code: The run directory whose record of the code is used; None for today's code.
        threads: Threads of torch; None for those of the program.
        engine: The engine; None for that of the program.
        ranks: Processes that a launcher starts; 1 for none.
        variables: Of the environment, by name; the others are as today. None unsets one.
    """

    start: tuple[str, ...]
    words: tuple[str, ...]
    cwd: Path
    project_root: str
    code: Path | None
    threads: int | None
    engine: str | None
    ranks: int
    variables: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        """The words of each option, by its name without dashes; empty: words before the first."""
        return dict(_grouped(self.words))

    def shown(self) -> str:
        """The command line with the variables that the record sets, for a terminal."""
        given = [f"{name}={value}" for name, value in self.variables.items() if value is not None]
        return printable(join([*given, *self.start, *self.words]))


def recipe_of(run: Run, trace: Trace) -> Recipe:
    """Return how to repeat a run.

    Raises:
        FdlError: Its record does not say enough.
    """
    record = run.record
    start, argv, cwd = (record.get(name) for name in ("start", "argv", "cwd"))
    if not (isinstance(start, list) and isinstance(argv, list) and isinstance(cwd, str)):
        raise FdlError(
            f"{run.path} cannot be repeated: its run.json does not say how its program was started",
            hint="train again with this version of flodl",
        )
    words = tuple(str(word) for word in argv[1:])
    if any(_HIDDEN in word for word in words):
        raise FdlError(
            f"{run.path} cannot be repeated: its command line has a secret, which is not recorded",
            hint="pass the secret in an environment variable, and train again",
        )
    if not Path(cwd).is_dir():
        raise FdlError(
            f"{run.path} cannot be repeated: its working directory {cwd} does not exist here",
            hint="repeat it on the machine where it was trained",
        )
    return Recipe(
        start=tuple(str(word) for word in start),
        words=words,
        cwd=Path(cwd),
        project_root=str(record.get("project_root") or ""),
        code=run.path if read_code(run.path) is not None else None,
        threads=_threads(run),
        engine=_text(trace.facts.get("engine")),
        ranks=int(record.get("launched_ranks") or 1),
        variables={
            name: str(one.value)
            for name, one in (variables(run) or {}).items()
            if _HIDDEN not in str(one.value)
        },
    )


def swapped(words: Sequence[str], other: Sequence[str], name: str) -> tuple[str, ...]:
    """Return words in which one option is as in other words: changed, added or left out."""
    groups, wanted = list(_grouped(words)), dict(_grouped(other)).get(name)
    found: list[str] = []
    for known, group in groups:
        found += group if known != name else wanted or ()
    if wanted is not None and name not in dict(groups):
        found = [*found, *wanted] if name else [*wanted, *found]
    return tuple(found)


def shown(group: Sequence[str]) -> str:
    """An option with its values; of one that is repeated, the last, which counts."""
    last = max((at for at, word in enumerate(group) if _names_option(word)), default=0)
    return " ".join(group[last:])


def _grouped(words: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Cut words into options with their values; an option that is repeated is one group."""
    groups: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if _names_option(word):
            name = word.partition("=")[0].lstrip("-").removeprefix("no-").replace("_", "-")
        groups.setdefault(name, []).append(word)
    for known, group in groups.items():
        yield known, tuple(group)


def _names_option(word: str) -> bool:
    if not word.startswith("-"):
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False


def _threads(run: Run) -> int | None:
    found: Any = read_json(run.path / ENVIRONMENT)
    threads = found.get("threads") if isinstance(found, dict) else None
    return threads if isinstance(threads, int) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


_LEFT_OUT = ("<secret>", "# its content is not recorded")
_SECONDS = 120
_SECTION = re.compile(r"^(?=diff --git )", re.MULTILINE)
_SUBMODULE = re.compile(r"^\+Subproject commit ([0-9a-f]+(?:-dirty)?)$", re.MULTILINE)
_PATH = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)
_DIRTY = "-dirty"
_BYTECODE = "__pycache__"
_GITLINK = "160000 "
"""Mode of a submodule in the tree of a commit."""


def repository(folder: Path) -> Path | None:
    """The top folder of the git work tree around a folder; None if there is none."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


def copy_code(run: Path, cwd: Path, target: Path) -> Path:
    """Write the code of a run into a new folder, and return its working directory there.

    The commit comes from the repository around ``cwd``, the changes from ``code.diff``. Folders and
    files that git does not track, such as data, become links to the originals. The repository and
    the working tree are only read.

    Raises:
        FdlError: The record does not say the whole code, or git does not know the commit.
    """
    top, code = repository(cwd), read_code(run)
    if top is None or code is None or not code.commit:
        raise _refused(run, "its record names no commit, or its program is not in a git repository")
    text = read_own(run / CODE, "surrogateescape")
    if code.truncated or any(mark in text for mark in _LEFT_OUT):
        raise _refused(run, f"{CODE} leaves something out")
    changes = "".join(line for line in text.splitlines(True) if not line.startswith("# "))
    sections = _SECTION.split(changes)
    moved = dict(found for one in sections if (found := _submodule(one)))
    if unknown := [path for path, commit in moved.items() if commit.endswith(_DIRTY)]:
        raise _refused(run, f"the changes in its submodule {unknown[0]} are not recorded")
    _unpack(top, code.commit, target, run, moved)
    plain = "".join(one for one in sections if _submodule(one) is None)
    if plain.strip():
        _apply(plain, target, run)
    _link_untracked(top, target, run)
    return target / cwd.relative_to(top)


def _submodule(section: str) -> tuple[str, str] | None:
    """Path and new commit of a submodule, if a part of a diff says nothing else."""
    commit, path = _SUBMODULE.search(section), _PATH.search(section)
    return (path[1], commit[1]) if commit and path else None


def _unpack(top: Path, commit: str, target: Path, run: Path, moved: Mapping[str, str]) -> None:
    """Write a commit with its submodules, of which some had another commit checked out."""
    target.mkdir(parents=True, exist_ok=True)
    archive = _git(top, run, "archive", "--format=tar", f"--output={target / '.code.tar'}", commit)
    if archive.returncode:
        raise _refused(run, f"git does not know its commit {commit[:12]} in {top}")
    with tarfile.open(target / ".code.tar") as stream:
        # Python 3.11.0 to 3.11.3 have no filters; git writes no paths outside of the folder.
        stream.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        stream.extractall(target)  # noqa: S202 - filtered above
    (target / ".code.tar").unlink()
    tree = _git(top, run, "ls-tree", "-r", "-z", commit).stdout
    for entry in filter(None, os.fsdecode(tree).split("\0")):
        facts, _, path = entry.partition("\t")
        if facts.startswith(_GITLINK) and (top / path / ".git").exists():
            _unpack(top / path, moved.get(path, facts.split()[2]), target / path, run, {})
            _link_untracked(top / path, target / path, run)


def _apply(changes: str, target: Path, run: Path) -> None:
    file = target / ".code.diff"
    file.write_text(changes, encoding="utf-8", errors="surrogateescape")
    done = _git(target, run, "apply", "--whitespace=nowarn", str(file))
    file.unlink()
    if done.returncode:
        told = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _refused(run, f"{CODE} does not fit its commit ({told[0] if told else 'git apply'})")


def _link_untracked(top: Path, target: Path, run: Path) -> None:
    """Link what git does not track, unless the copy has it: data, caches, environments.

    Bytecode is left out. Python compares the size of a source file and the second in which it was
    written, and these can be equal in two copies with different code.
    """
    listed = _git(top, run, "ls-files", "--others", "--directory", "-z")
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        place, origin = target / name.rstrip("/"), top / name.rstrip("/")
        if place.name == _BYTECODE or os.path.lexists(place):
            continue
        if run.resolve().is_relative_to(origin.resolve()):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(origin, target_is_directory=origin.is_dir())


def _git(folder: Path, run: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    # The ceiling keeps `apply` from taking the folder for a part of a repository around it.
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    environ = os.environ | quiet | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *words],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False,
            env=environ,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _refused(run, f"git fails: {error}") from error


def _refused(run: Path, why: str) -> FdlError:
    return FdlError(
        f"the code of {run} cannot be put together again: {why}",
        hint="fdl runs diff without --bisect compares the records alone",
    )
