"""A page of documentation as one session: its programs run and its commands are typed, in order.

``python -m tests.page_session PAGE`` in an empty folder; ends with an error where the page shows
something else than what appears.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

from tests.test_guides import BLOCK, fits, sessions, typed


def blocks(page: str) -> list[tuple[int, str, str | None, str]]:
    """Line, language, second word of the fence, text of every fenced block."""
    return [
        (page.count("\n", 0, found.start(3)), found[1], found[2], found[3])
        for found in BLOCK.finditer(page)
    ]


def run(page: Path) -> int:
    """Run a page; returns how many blocks ran."""
    found = blocks(page.read_text(encoding="utf-8"))
    program: dict[str, object] = {"__name__": "tutorial"}
    ran = 0
    for (line, language, word, text), following in zip(found, [*found[1:], None], strict=True):
        if word == "no-run":
            continue
        if language == "python":
            shown = following is not None and following[1] == "text"
            promised = following[3].splitlines() if following is not None and shown else []
            seen = io.StringIO()
            # The empty lines give tracebacks the line numbers of the page.
            code = compile("\n" * line + text, str(page), "exec", dont_inherit=True)
            with contextlib.redirect_stdout(seen):
                exec(code, program)
            _compare(promised, seen.getvalue(), f"{page.name}:{line + 1}")
        elif language == "console":
            for command, promised in sessions(text):
                while promised and not promised[-1].strip():
                    promised.pop()
                _compare(promised, typed(command, Path.cwd()), command)
        ran += language in ("python", "console")
    return ran


def _compare(promised: list[str], seen: str, where: str) -> None:
    if not fits(promised, seen.splitlines()):
        sys.exit(f"{where} gives\n{seen}")


if __name__ == "__main__":
    print(run(Path(sys.argv[1])))
