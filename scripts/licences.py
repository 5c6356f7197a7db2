#!/usr/bin/env python3
"""Write LICENCES.md: the licence of every package that flodl brings with it.

It reads the metadata of the installed packages.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "LICENCES.md"

HEAD = """\
# Licences of dependencies

Made by `python scripts/licences.py` from the metadata of the installed packages; do not edit.

flodl is under the MIT licence. It includes the packaged digits (CC BY 4.0, see
`flodl/data/uci_digits/ATTRIBUTION.md`) and uPlot, which draws the charts of its pages (MIT, see
`fdl/base/page/uplot.js`). It contains no code of the packages below: pip installs them
beside it. The versions are those of `constraints.txt`.

The tools of the groups `docs` and `bench`, which no test needs, are not listed.

The tables are those of Linux with Python 3.11 and the CPU build of PyTorch. The build for CUDA also
installs libraries of NVIDIA. These have licences of their own.
"""

STATED = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd license": "BSD",
    "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "psf-2.0": "PSF-2.0",
    "public domain": "public domain",
}
"""SPDX names of what older metadata says in words. `BSD` does not say which of its forms."""

SPDX = re.compile(r"[A-Za-z0-9.+-]+(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]+)*")


def licence(about: metadata.PackageMetadata) -> str:
    """The licence of an installed package: its expression, else its field, else its classifiers."""
    entries = [(key, str(value)) for key, value in about.items()]
    fields = dict(entries)
    if "License-Expression" in fields:
        return fields["License-Expression"]
    classes = [
        value.rpartition("::")[2].strip()
        for key, value in entries
        if key == "Classifier" and value.startswith("License :: OSI Approved ::")
    ]
    stated = fields.get("License", "").strip()
    own = metadata.distribution(fields["Name"]).read_text(f"licenses/{fields.get('License-File')}")
    # Some packages put the whole text into the field, or their copyright. Some have only the text.
    for words in [stated, stated.partition("\n")[0], *classes, (own or "").partition("\n")[0]]:
        if words.lower() in STATED:
            return STATED[words.lower()]
        if words and SPDX.fullmatch(words):
            return words
    return "not stated"


def closure(requirements: list[str]) -> set[str]:
    """Names of the installed packages that requirements bring, with all that these require."""
    waiting = [Requirement(one) for one in requirements]
    found: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one = waiting.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        known = (canonicalize_name(one.name), frozenset(one.extras))
        if known in found or known[0] == "flodl":
            continue
        try:
            needs = metadata.requires(one.name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(known)
        for need in map(Requirement, needs):
            marker = need.marker
            if marker is None or any(
                marker.evaluate({"extra": extra}) for extra in ("", *one.extras)
            ):
                need.marker = None
                waiting.append(need)
    return {name for name, _ in found}


def groups() -> Iterator[tuple[str, list[str]]]:
    """The names of the groups of requirements and what each of them requires."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)
    yield "flodl", project["project"]["dependencies"]
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    for name in extras:
        yield f"flodl[{name}]", _with_included(name, extras)
    yield "development", project["dependency-groups"]["dev"]


def _with_included(extra: str, extras: dict[str, list[str]]) -> list[str]:
    """The requirements of an extra and of the extras that it includes."""
    needs = list(extras[extra])
    for one in map(Requirement, extras[extra]):
        if one.name == "flodl":
            for included in one.extras:
                needs += _with_included(included, extras)
    return needs


def _least(needed: list[str]) -> list[str]:
    """Without the groups that include another one of the list."""
    for included, by in (
        ("flodl", "flodl["),
        ("flodl[train]", "flodl[hf"),
        ("flodl[hf]", "flodl[hf-"),
    ):
        if included in needed:
            needed = [one for one in needed if not one.startswith(by)]
    return needed


def tested() -> set[str]:
    """Names of the packages in the constraints: the same set on every machine."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(line.partition("==")[0]) for line in lines if "==" in line}


def table(rows: list[tuple[str, str, str]], last: str) -> str:
    """A table of names, licences and one more column."""
    head = f"| Package | Licence | {last} |\n|---|---|---|\n"
    return head + "".join(f"| {name} | {terms} | {more} |\n" for name, terms, more in rows)


def page() -> str:
    """The whole page."""
    brought: dict[str, list[str]] = {}
    for group, requirements in groups():
        for name in closure(requirements) & tested():
            brought.setdefault(name, []).append(group)
    runtime, development = [], []
    for name, by in sorted(brought.items()):
        terms = licence(metadata.metadata(name))
        if by == ["development"]:
            development.append((name, terms, "yes" if name in _direct() else ""))
        else:
            needed = _least([one for one in by if one != "development"])
            runtime.append((name, terms, ", ".join(f"`{one}`" for one in needed)))
    return "\n".join(
        [
            HEAD,
            "## Installed with flodl\n",
            table(runtime, "Needed by"),
            "## Used for development only\n",
            table(development, "Named in `pyproject.toml`"),
        ]
    )


def _direct() -> set[str]:
    (listed,) = [needs for name, needs in groups() if name == "development"]
    return {canonicalize_name(Requirement(one).name) for one in listed}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
