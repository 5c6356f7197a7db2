"""What the site does to the pages of docs/ while it is built. mkdocs.yml names this file.

The pages are written for Git hosts. Here they get what only the site has: navigation by folder,
titles of files above their code, pages of the project outside docs/, and the Python reference.
"""

from __future__ import annotations

import html
import importlib
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
python_pages = importlib.import_module("python_pages")

OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    "examples/README.md",
    *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "examples").glob("*.py"))),
)
"""Files outside docs/ that the site has under project/."""

_FENCE = re.compile(r"^```(\w+) +(\S[^\n]*)$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)")
_BESIDE = re.compile(
    r'^(```python title="theirs\.py"\n.*?^```)\n\n(```python title="ours\.py"\n.*?^```)$',
    re.DOTALL | re.MULTILINE,
)
_TERMINAL = re.compile(
    r'<div class="highlight">(<pre>(?:(?!</code>).)*class="gp".*?</code>)', re.DOTALL
)
_TAG = re.compile(r"<[^>]+>")
_SPAN = re.compile(r"(``.*?``|`[^`\n]*`)", re.DOTALL)
_BRACKETS = re.compile(r"\]( ?)\[")
_NESTED = re.compile(r"^ {2,3}(?=- )", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace folders of the navigation by their pages."""
    folder = Path(config.docs_dir)
    config.nav = [_section(entry, folder) for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/ and those of the Python reference."""
    for name in OUTSIDE:
        files.append(File.generated(config, f"project/{name}", abs_src_path=str(ROOT / name)))
    for group in python_pages.GROUPS:
        files.append(
            File.generated(config, f"reference/api/{group}.md", content=python_pages.page(group))
        )
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Give a page the links and the code blocks of the site."""
    place = page.file.src_uri
    source = place.removeprefix("project/") if _is_outside(place) else f"docs/{place}"
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    parts = [
        _FENCE.sub(_titled, part) if part.startswith("```") else _prose(part, source, place)
        for part in parts
    ]
    if place.startswith("porting/"):
        page.meta["hide"] = ["toc"]  # two columns need the width
    text = _BESIDE.sub(_side_by_side, "".join(parts))
    return python_pages.with_links(text) if place == "reference/python.md" else text


def on_page_content(content: str, **_: Any) -> str:
    """Let the copy button of a terminal copy what is typed, without prompts and output."""
    return _TERMINAL.sub(_with_commands, content)


def _with_commands(block: re.Match[str]) -> str:
    typed: list[str] = []
    for line in html.unescape(_TAG.sub("", block[1])).splitlines():
        if line.startswith("$ "):
            typed.append(line.removeprefix("$ "))
        elif typed and typed[-1].endswith("\\") and line.startswith("> "):
            typed.append(line.removeprefix("> "))
    copied = html.escape("\n".join(typed), quote=True)
    return f'<div class="highlight" data-copy="{copied}">{block[1]}'


def _section(entry: Any, folder: Path) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, target),) = entry.items()
    return {title: _pages(target, folder)} if str(target).endswith("/") else entry


def _pages(place: str, folder: Path) -> list[Any]:
    """The pages of a folder: its README first, then those that it names in its order."""
    if place == "project/":
        return [
            "project/CHANGELOG.md",
            "project/CONTRIBUTING.md",
            {"Rules of the benchmarks": "project/benchmarks/README.md"},
            {"Examples": "project/examples/README.md"},
        ]
    index = folder / place / "README.md"
    named = re.findall(r"\]\(([\w-]+\.md)\)", index.read_text(encoding="utf-8"))
    present = sorted(path.name for path in (folder / place).glob("*.md"))
    order = dict.fromkeys(["README.md", *named, *present])
    pages: list[Any] = [place + name for name in order if name in present]
    if place == "reference/":
        pages.append({"Python API": [f"reference/api/{group}.md" for group in python_pages.GROUPS]})
    return pages


def _is_outside(place: str) -> bool:
    return place.startswith("project/")


def _prose(text: str, source: str, place: str) -> str:
    # Git hosts nest a list below two spaces, Python's Markdown below four.
    parts = _SPAN.split(_NESTED.sub("    ", text))
    # `[one] [two]` is a reference only where `two` is defined, and no page defines one.
    parts[::2] = [_BRACKETS.sub(r"]\1\\[", part) for part in parts[::2]]
    return _LINK.sub(lambda link: _moved(link[1], source, place), "".join(parts))


def _moved(target: str, source: str, place: str) -> str:
    """A link from one file of the repository to another, as a link between pages of the site."""
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if reached.startswith("docs/"):
        reached = reached.removeprefix("docs/")
    elif reached in OUTSIDE:
        reached = f"project/{reached}"
    else:
        return target  # reported by the build
    return posixpath.relpath(reached, posixpath.dirname(place) or ".")


def _titled(fence: re.Match[str]) -> str:
    """The second word of a fence is the name of a file, or an instruction to the tests."""
    language, word = fence[1], fence[2]
    return f"```{language}" if language == "console" else f'```{language} title="{word}"'


def _side_by_side(pair: re.Match[str]) -> str:
    """Two programs that do the same, in two columns where the screen is wide enough."""
    columns = "\n\n".join(f"<div markdown>\n{one}\n</div>" for one in pair.groups())
    return f'<div class="side-by-side" markdown>\n{columns}\n</div>'
