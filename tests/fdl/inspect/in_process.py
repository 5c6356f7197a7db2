"""Typing ``fdl`` many times over, in this process and a folder of its own."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from fdl.cli.entry import main
from tests.conftest import Session


@contextlib.contextmanager
def folder(files: Mapping[str, str]) -> Iterator[Path]:
    """A project that is the working directory for a while."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        root = Path(os.path.realpath(name))
        for file, text in files.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text, encoding="utf-8")
        yield root


def fdl(*args: str) -> Session:
    """``fdl ARGS`` here, as :func:`tests.conftest.fdl` does in a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    return Session(code, out.getvalue(), err.getvalue())
