"""The public names of flodl and fdl, for the reference page and for the pages of the site.

Names and summaries are read from the source, as `fdl api-ref` reads them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import fdl
from fdl.scaffold.api_ref.scan import file_of, scan
from fdl.scaffold.api_ref.select import doc, public

ROOT = Path(__file__).resolve().parent.parent

GROUPS = {
    "train": "Training",
    "data": "Data",
    "graph": "Graphs",
    "ranks": "Several ranks",
    "monitor": "Monitor",
    "nn": "Layers, losses, optimizers",
    "checkpoint": "Checkpoints",
    "hf": "Models of the Hub",
    "other": "Log, memory, random numbers, errors",
    "fdl": "Arguments of programs",
}
"""Group -> heading. A group is a package of flodl, or `fdl`."""

_OF_FOLDER = {"trainer.py": "train"}
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")

HEAD = """\
# Python API

Made by `python scripts/reference.py` from the source; do not edit. The documentation site has a
page for each part, with signatures and full descriptions. `fdl api-ref NAME` prints the same on a
terminal.

All names of flodl are loaded at their first use: `import flodl` does not import torch.
"""


@cache
def names() -> dict[str, dict[str, str]]:
    """Group -> dotted path of each public name -> its first line."""
    found: dict[str, dict[str, str]] = {group: {} for group in GROUPS}
    for one in public(scan(ROOT / "flodl")):
        part = file_of(one).split("/")[1]
        group = _OF_FOLDER.get(part, part)
        found[group if group in GROUPS else "other"][one.path] = doc(one)
    for name in fdl.__all__:
        if not name.startswith("_"):
            text = getattr(fdl, name).__doc__ or ""
            found["fdl"][f"fdl.{name}"] = text.strip().partition("\n")[0]
    return found


def index() -> str:
    """The page docs/reference/python.md: each public name with its first line."""
    parts = [HEAD]
    for group, heading in GROUPS.items():
        rows = [f"| `{path}` | {_plain(doc)} |" for path, doc in sorted(names()[group].items())]
        parts.append("\n".join([f"## {heading}\n", "| name | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def page(group: str) -> str:
    """The page of a group on the site: instructions for mkdocstrings."""
    parts = [f"# {GROUPS[group]}\n"]
    parts += [f"::: {path}\n" for path in sorted(names()[group])]
    return "\n".join(parts)


def with_links(text: str) -> str:
    """The page of all names with a link from each to its description on the site."""
    return re.sub(r"^\| `([\w.]+)` \|", r"| [`\1`][\1] |", text, flags=re.MULTILINE)


def _plain(doc: str) -> str:
    """A first line without the markup of Sphinx, fit for a cell of a table."""
    return _ROLE.sub(r"`\1`", doc).replace("``", "`").replace("|", "\\|")
