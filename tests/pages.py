"""The pages of the documentation: their code blocks, links and anchors, read without a network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")

_FENCED = re.compile(r"^```.*?^```[^\n]*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")
_SPAN = re.compile(r"``.*?``|`[^`\n]*`")


@cache
def pages() -> tuple[Path, ...]:
    """Every page of the site, and the README files beside them."""
    inside = sorted((ROOT / "docs").rglob("*.md"))
    return (*inside, *(ROOT / name for name in OUTSIDE), ROOT / "examples/README.md")


@cache
def text(page: Path) -> str:
    """A page without its code blocks; their lines are empty."""
    return _FENCED.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Line and target of every link that leads to a file or an anchor of the repository."""
    prose = _SPAN.sub(lambda span: "x" * len(span[0]), text(page))
    for link in _LINK.finditer(prose):
        if not re.match(r"\w+:", link[1]):
            yield prose.count("\n", 0, link.start()) + 1, link[1]


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as Git hosts and the site make them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text(page), re.MULTILINE):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def slug(heading: str) -> str:
    """The anchor of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")


def broken(page: Path) -> Iterator[str]:
    """``FILE:LINE: target`` of the links that lead nowhere."""
    for line, target in links(page):
        place, _, anchor = target.partition("#")
        file = (page.parent / place).resolve() if place else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield f"{page.relative_to(ROOT).as_posix()}:{line}: {target}"
