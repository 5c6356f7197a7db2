"""Count the code of each package, and compare two commits.

    python scripts/sizes.py                  # the working tree
    python scripts/sizes.py 2871149          # that commit beside the working tree
    python scripts/sizes.py 2871149 HEAD     # two commits

A line counts if it holds code: blank lines, comments and docstrings do not. A docstring is not a
statement either, so explaining the code never makes it longer.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("fdl", "flodl", "flodl_shared", "tests")
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Sizes(NamedTuple):
    """How large a package is."""

    lines: int = 0
    statements: int = 0
    functions: int = 0
    files: int = 0

    def and_also(self, other: Sizes) -> Sizes:
        """The size of both together."""
        return Sizes(*map(sum, zip(self, other, strict=True)))


def size(source: str) -> Sizes:
    """How large a source text is."""
    nodes = list(ast.walk(ast.parse(source)))
    texts = [node for node in nodes if _is_text(node)]
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for text in texts:
        lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
    statements = sum(isinstance(node, ast.stmt) for node in nodes) - len(texts)
    return Sizes(len(lines), statements, functions, 1)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def sizes(sources: dict[str, str]) -> dict[str, Sizes]:
    """Sizes per package and sub-package, from a path and its text."""
    found: dict[str, Sizes] = {}
    for path, source in sources.items():
        top, *folders = path.split("/")[:-1]
        here = size(source)
        for name in (top, f"{top}/{folders[0] if folders else '*.py'}"):
            found[name] = found.get(name, Sizes()).and_also(here)
    return found


def sources_of(commit: str | None) -> dict[str, str]:
    """The Python files of all packages at a commit, or in the working tree."""
    if commit is None:
        return {
            path.relative_to(ROOT).as_posix(): path.read_text()
            for package in PACKAGES
            for path in (ROOT / package).rglob("*.py")
        }
    # An older commit may lack one of them.
    known = _git("ls-tree", "--name-only", commit, *PACKAGES).decode().split()
    archive = _git("archive", commit, *known)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return {
            member.name: (files.extractfile(member) or io.BytesIO()).read().decode()
            for member in files
            if member.name.endswith(".py")
        }


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def table(before: dict[str, Sizes], after: dict[str, Sizes]) -> Iterator[str]:
    """A line per package: each count before and after, or only after where nothing was before."""
    yield "| Package | Lines of code | Statements | Functions | Files |"
    yield "|---|---|---|---|---|"
    for name in sorted({*before, *after}):
        old, new = before.get(name, Sizes()), after.get(name, Sizes())
        cells = [
            f"{one:,} → {two:,}" if before else f"{two:,}"
            for one, two in zip(old, new, strict=True)
        ]
        yield f"| {' | '.join([name, *cells])} |"


def main(commits: list[str]) -> None:
    """Print the table."""
    before = sizes(sources_of(commits[0])) if commits else {}
    after = sizes(sources_of(commits[1] if len(commits) > 1 else None))
    sys.stdout.write("".join(f"{line}\n" for line in table(before, after)))


if __name__ == "__main__":
    main(sys.argv[1:])
