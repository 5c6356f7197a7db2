"""The source code of a run, put together again in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from fdl.base.errors import FdlError
from fdl.base.own_files import read_own
from fdl.runs.code_changes import CODE, read_code

if TYPE_CHECKING:
    from collections.abc import Mapping

_HIDDEN = ("<secret>", "# its content is not recorded")
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
    if code.truncated or any(mark in text for mark in _HIDDEN):
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
