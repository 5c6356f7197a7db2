"""Count the statements of each package, and compare two commits.

A docstring is not a statement here, so explaining the code never makes it longer. Tests are
not counted.

    python scripts/statements.py                  # the working tree
    python scripts/statements.py 2871149          # that commit beside the working tree
    python scripts/statements.py 2871149 HEAD     # two commits
"""

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("fdl", "flodl")


def statements(source: str) -> int:
    """The statements in a source text, without docstrings and other bare strings."""
    nodes = ast.walk(ast.parse(source))
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in nodes)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def count(sources: dict[str, str]) -> Counter[str]:
    """Statements per package and sub-package, from a path and its text."""
    counts: Counter[str] = Counter()
    for path, source in sources.items():
        top, *folders = path.split("/")[:-1]
        counts[top] += (number := statements(source))
        counts[f"{top}/{folders[0] if folders else '*.py'}"] += number
    return counts


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


def main(commits: list[str]) -> None:
    """Print one line per package."""
    before = count(sources_of(commits[0])) if commits else Counter[str]()
    after = count(sources_of(commits[1] if len(commits) > 1 else None))
    for name in sorted(before | after):
        old, new = before[name], after[name]
        change = f"{old:7}{new:7}  {(new - old) / old:+7.1%}" if old else f"{new:7}"
        sys.stdout.write(f"{name:28}{change}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
