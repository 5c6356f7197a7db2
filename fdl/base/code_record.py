"""``code.diff`` of a run: how the source code differs from its commit, without secrets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path, PurePosixPath
from typing import final

from fdl.base.secrets import REDACTED, is_secret, is_secret_name, masked, typed

MOST_BYTES = 1 << 20
_MOST_FILE_BYTES = 1 << 18
_MOST_FILES = 1000
MOST_SECONDS = 10.0
_SOURCES = frozenset(
    (".py", ".pyi", ".pyx", ".yml", ".yaml", ".toml", ".cfg", ".ini", ".sh", ".c", ".cc", ".cpp",
     ".cu", ".cuh", ".h", ".hpp", ".rs")
)  # fmt: skip
DIFF_OPTIONS = (
    "--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short", "--src-prefix=a/",
    "--dst-prefix=b/",
)  # fmt: skip
"""The format of differences, whatever the user's configuration of git says."""
GIT_SETTINGS = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false")
"""Git runs no program of the repository, and prints names of files with their own letters. The
rules for secrets read these names."""
_PLAIN_VALUES = frozenset(
    (".yml", ".yaml", ".toml", ".cfg", ".ini", ".sh", ".env", ".properties", ".conf")
)
"""Files in which a value needs no quotes."""
_KEPT_BACK = re.compile(
    r"(^|/)(\.env(\..*)?|\.netrc|\.npmrc|\.pypirc|id_[a-z0-9]+|.*\.(pem|key|p12|pfx)|"
    r"(secrets?|credentials?)(\.[a-z]+)?)$"
)
_ASSIGNED = re.compile(
    r"""(?P<name>[\w.-]+)(?P<between>["']?\]?\s*(?::|=)\s*)"""
    r"""(?P<value>[rbfuRBFU]{0,2}(?:"[^"\n]*"|'[^'\n]*')|[^\s"'#,;(){}\[\]]+)"""
)
_OPTION = re.compile(r"(?P<name>--?[\w-]+)(?P<between>=|[ \t]+)(?P<value>[^\s\"']+)")
_MARKED = re.compile(r"(!secret[ \t]+)\S[^\n]*")


def code_changes(program: Path, runs: Path | None = None) -> str:
    """Return the content of the file; empty if the program is not in a git repository.

    Args:
        program: The file of the program that runs.
        runs: Folder of all runs; nothing in it is source code.
    """
    top = next((one for one in program.parents if (one / ".git").exists()), None)
    if top is None:
        return ""
    git = Git(top, time.monotonic() + MOST_SECONDS)
    here = program.parent.relative_to(top).as_posix()
    # A repository that only surrounds the program, such as that of a home folder, is not meant.
    if not git.read("ls-files", "-z", "--", here, most=1):
        return ""
    commit = git.read("rev-parse", "--verify", "-q", "HEAD").decode("ascii", "replace").strip()
    pieces = []
    if commit:
        data = git.read("diff", "HEAD", *DIFF_OPTIONS, most=MOST_BYTES)
        text = data.decode("utf-8", "replace")
        if len(data) == MOST_BYTES:
            text = text[: text.rfind("\n") + 1]  # half a line may hide a secret from the rules
        files = re.split(r"^(?=diff --git )", text, flags=re.MULTILINE)
        pieces += [_redacted_section(section) for section in files if section]
    pieces += _untracked(git, top, runs, MOST_BYTES - sum(map(len, pieces)))
    head = [
        "# flodl code 1",
        f"# commit: {commit}",
        f"# program: {program.relative_to(top).as_posix()}",
        f"# truncated: {git.cut or 'no'}",
    ]
    return "\n".join(head) + "\n" + "".join(pieces)


def running_program() -> Path | None:
    """Return the file of the program that runs; None in an interactive session."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if not file:
        return None
    path = Path(file).resolve()
    return path if path.is_file() else None


def redacted_source(text: str, suffix: str) -> str:
    """Return lines of source code without values that look like secrets.

    Args:
        text: Source code, or its difference.
        suffix: Of the file, such as ``.py``: it decides which values need no quotes.
    """
    plain = suffix in _PLAIN_VALUES

    def assigned(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        quoted = value[-1] in "\"'"
        inside = value.strip("rbfuRBFU").strip("\"'") if quoted else value
        if not (quoted or plain) or not is_secret(name, typed(inside)):
            return match[0]
        hidden = f'"{REDACTED}"' if quoted else REDACTED
        return f"{name}{match['between']}{hidden}"

    def option(match: re.Match[str]) -> str:
        if not is_secret_name(match["name"]):
            return match[0]
        return f"{match['name']}{match['between']}{REDACTED}"

    text = _MARKED.sub(rf"\1{REDACTED}", masked(text))
    text = _ASSIGNED.sub(assigned, text)
    return _OPTION.sub(option, text) if plain else text


@final
class Git:
    """Runs git in a work tree, until a deadline.

    Attributes:
        cut: Which limit was reached, or empty.
    """

    def __init__(self, top: Path, deadline: float) -> None:
        self._top, self._deadline = top, deadline
        self.cut = ""

    def read(self, *arguments: str, most: int = 1 << 16) -> bytes:
        """Return what a command prints, at most ``most`` bytes; empty if it fails."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            self.cut = f"{MOST_SECONDS:g} seconds"
            return b""
        command = ["git", "-C", str(self._top), *GIT_SETTINGS, *arguments]
        environ = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
        try:
            # In a session of its own: Ctrl-C in the terminal is for the training.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env=environ, start_new_session=True,
            )  # fmt: skip
        except OSError:
            return b""
        timer = threading.Timer(left, process.kill)
        timer.daemon = True
        timer.start()
        with process:
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            data = process.stdout.read(most + 1)
            process.kill()
        timer.cancel()
        if time.monotonic() >= self._deadline:
            self.cut = f"{MOST_SECONDS:g} seconds"
        elif len(data) > most > 1:
            self.cut = f"{most >> 10} KiB"
        return data[:most]


def _redacted_section(section: str) -> str:
    first = section.partition("\n")[0]
    # A name with a quote or a control character is quoted all the same.
    path = first.rpartition(" ")[2].rstrip('"')
    if _KEPT_BACK.search(path):
        return f"{first}\n# its content is not recorded: it may hold secrets\n"
    return redacted_source(section, PurePosixPath(path).suffix)


def _untracked(git: Git, top: Path, runs: Path | None, left: int) -> list[str]:
    """Return untracked source files as ``git diff`` shows new files."""
    listed = git.read("ls-files", "--others", "--exclude-standard", "-z", most=MOST_BYTES)
    names = listed.decode("utf-8", "surrogateescape").split("\0")
    pieces: list[str] = []
    for name in filter(None, names):
        path = top / name
        if path.suffix not in _SOURCES or (runs is not None and path.is_relative_to(runs)):
            continue
        if len(pieces) == _MOST_FILES:
            git.cut = f"{_MOST_FILES} untracked files"
            break
        piece = _new_file(git, name, path)
        left -= len(piece)
        if left < 0:
            git.cut = f"{MOST_BYTES >> 10} KiB"
            break
        pieces.append(piece)
    return pieces


def _new_file(git: Git, name: str, path: Path) -> str:
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n"
    if _KEPT_BACK.search(name):
        return f"{head}# its content is not recorded: it may hold secrets\n"
    try:
        if path.is_symlink() or path.stat().st_size > _MOST_FILE_BYTES:
            git.cut = f"{_MOST_FILE_BYTES >> 10} KiB of {name}"
            return f"{head}# its content is not recorded: it is a link, or too large\n"
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # removed meanwhile, or not readable
    lines = redacted_source(text, path.suffix).splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    return f"{head}--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,{len(lines)} @@\n{body}"
