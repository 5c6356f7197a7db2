"""Shows with a failing test what was typed, what appeared, and the files of the folder.

What starts programs for tests notes them here, and so does a browser with its page. Programs that
a test starts by :mod:`subprocess` are found among its variables. A test that passes pays for a
short list.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

_COMMANDS, _LINES, _FILES, _PAGE_LINES = 6, 30, 40, 80
_SHORT = 1000
"""Bytes of a file whose text is shown."""

_NOT_SHOWN = {".fdl", ".git", ".venv", "__pycache__", ".mypy_cache"}
_OF_EVERYBODY = {"PATH", "CI", "FDL_NO_UPDATE_CHECK", "FLODL_CACHE_DIR", "TERM"}

_ENDED = (
    subprocess.CompletedProcess,
    subprocess.CalledProcessError,
    subprocess.TimeoutExpired,
)

Result = Callable[[], tuple[int | None, str]]


@dataclass(frozen=True)
class _Typed:
    """A command, where it was typed, and what tells how it ended and what it showed."""

    words: Sequence[str] | str
    folder: Path | None
    env: Mapping[str, str]
    result: Result


_TYPED: list[_Typed] = []
_PAGES: list[Callable[[], str]] = []


def note(
    words: Sequence[str] | str, folder: Path | str | None, env: Mapping[str, str], result: Result
) -> None:
    """Keep a command until the next test begins.

    Args:
        words: The arguments of Python, or the line of a shell.
        folder: Where it was typed; None if its files say nothing.
        env: Its variables; those that the test has set are shown.
        result: Asked only if the test fails; the exit code is None while it runs.
    """
    _TYPED.append(_Typed(words, None if folder is None else Path(folder), env, result))


def opened(page: Callable[[], str]) -> None:
    """Keep the page of a browser until the next test begins: what tells what it shows."""
    _PAGES[:] = [page]


def forget() -> None:
    """Begin a test, or a row of a table."""
    _TYPED.clear()
    _PAGES.clear()


def pytest_runtest_logstart() -> None:
    """Forget the test before."""
    forget()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what was typed and the page to the report of a test that failed."""
    report = yield
    if report.failed and call.excinfo is not None:
        found = [*_TYPED, *_started(call.excinfo)]
        folders = [one.folder for one in found if one.folder is not None]
        folder = folders[-1] if folders else getattr(item, "funcargs", {}).get("tmp_path")
        if found:
            files = _files(folder) if folder else ()
            report.sections.append(("what was typed", "\n".join([*_shown(found), *files])))
        for page in _PAGES:
            lines = page().splitlines()[:_PAGE_LINES]
            report.sections.append(("what the page shows", "\n".join(lines)))
    return report


def _started(failure: pytest.ExceptionInfo[BaseException]) -> Iterator[_Typed]:
    """The programs that a test has started without a helper, and that have ended."""
    values = [failure.value]
    for entry in failure.traceback:
        values += entry.frame.f_locals.values()
    noted = {tuple(one.words) for one in _TYPED}
    for one in {id(one): one for one in values if isinstance(one, _ENDED)}.values():
        words = _words(one.args if isinstance(one, subprocess.CompletedProcess) else one.cmd)
        if tuple(words) not in noted:
            yield _Typed(words, None, os.environ, partial(_result, one))


def _words(command: Any) -> Sequence[str] | str:
    """The line of a shell, or the arguments of Python."""
    if isinstance(command, str):
        return command
    words = [os.fsdecode(one) for one in command]
    return words[1:] if words[0] == sys.executable else shlex.join(words)


def _result(ended: Any) -> tuple[int | None, str]:
    texts = (one or "" for one in (ended.stdout, ended.stderr))
    text = "".join(one if isinstance(one, str) else one.decode(errors="replace") for one in texts)
    return getattr(ended, "returncode", None), text


def _shown(found: Sequence[_Typed]) -> Iterator[str]:
    last = found[-_COMMANDS:]
    if more := len(found) - len(last):
        yield f"({more} commands before)"
    for before, one in zip([None, *last], last, strict=False):
        if one.folder is not None and (before is None or one.folder != before.folder):
            yield f"$ cd {shlex.quote(str(one.folder))}"
        code, text = one.result()
        yield f"$ {_command_line(one)}"
        lines = text.rstrip().splitlines()
        yield from ["…"] * (len(lines) > _LINES) + lines[-_LINES:]
        yield "(it still runs)" if code is None else f"(exit code {code})"


def _command_line(one: _Typed) -> str:
    """As it would be typed in a shell, with the variables that the test has set."""
    own = sorted(one.env.items() - os.environ.items())
    told = [f"{name}={shlex.quote(text)}" for name, text in own if name not in _OF_EVERYBODY]
    if isinstance(one.words, str):
        return " ".join([*told, one.words])
    is_fdl = tuple(one.words[:2]) == ("-m", "fdl")
    words = ["fdl", *one.words[2:]] if is_fdl else ["python", *one.words]
    return " ".join([*told, *(shlex.quote(_in_one_line(word)) for word in words)])


def _in_one_line(word: str) -> str:
    lines = word.strip().splitlines()
    return word if len(lines) < 2 else f"{lines[0]} …"


def _files(folder: Path) -> Iterator[str]:
    """The files below a folder, the short ones with their text."""
    found = []
    for there, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _NOT_SHOWN)
        found += [Path(there, name) for name in sorted(names)]
        if len(found) > _FILES:
            break
    yield f"files of {folder}:"
    for file in found[:_FILES]:
        yield f"  {file.relative_to(folder)}"
        if file.is_file() and file.stat().st_size <= _SHORT:
            text = file.read_bytes()
            if b"\0" not in text:
                yield from (
                    f"    {line[:200]}" for line in text.decode(errors="replace").splitlines()
                )
    yield from ["  …"] * (len(found) > _FILES)
