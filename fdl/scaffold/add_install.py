"""Add the extra that provides ``flodl.hf`` to the requirements of a project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdl.base.errors import ScaffoldError
from fdl.scaffold import add_pyproject
from fdl.scaffold.add_file import TextFile
from fdl.scaffold.add_requirement import NAME, Requirement, parse_all
from fdl.scaffold.add_version import HostVersion, host_version


@dataclass(frozen=True, slots=True)
class Installation:
    """A requirement that can be written.

    Attributes:
        file: The file that changes.
        text: Its new text; the old one if the extra is there already.
        requirement: The new requirement on flodl.
        host: The version that was looked up for it; None if none was needed.
    """

    file: TextFile
    text: str
    requirement: str
    host: HostVersion | None

    @property
    def is_there(self) -> bool:
        """Whether there is nothing to do."""
        return self.text == self.file.text

    def write(self) -> None:
        """Write the file.

        Raises:
            ScaffoldError: The file cannot be written; it is unchanged.
        """
        if not self.is_there:
            self.file.replace(self.text)


def installation(root: Path, extra: str, variables: Mapping[str, str]) -> Installation:
    """Determine how a project can require an extra of flodl (``hf``); nothing is written.

    Raises:
        ScaffoldError: It has no ``pyproject.toml``, or one that cannot be changed, or one that
            does not say which flodl it uses.
    """
    path = root / "pyproject.toml"
    if not path.is_file():
        raise ScaffoldError(
            f"there is no pyproject.toml in {root}",
            hint="go to the project's root, or start one: fdl init NAME",
        )
    file = TextFile(path)
    document = add_pyproject.parse(file.text)
    listed = add_pyproject.dependencies(document)
    is_in_lines = listed is None and (root / "requirements.txt").is_file()
    if is_in_lines:
        file = TextFile(root / "requirements.txt")
        listed = [line for _, line in add_pyproject.lines(file.text)]
    demands = parse_all(listed or [])
    if demands:
        # Refuse flodl from a source other than an index if its version is not given.
        if any(one.url or not one.specifier for one in demands if not one.has(extra)):
            host_version(root, variables)
        change = add_pyproject.lines_with_extra if is_in_lines else add_pyproject.with_extra
        return Installation(file, change(file.text, extra), _shown(demands, extra), None)
    if listed is None:
        _refuse_others(document, extra)
    host = host_version(root, variables)
    requirement = host.requirement(extra)
    if is_in_lines:
        text = add_pyproject.lines_with_requirement(file.text, requirement)
    else:
        text = add_pyproject.with_requirement(file.text, requirement, root.name)
    return Installation(file, text, requirement, host)


def _shown(demands: list[Requirement], extra: str) -> str:
    texts = (one.text if one.has(extra) else one.with_extra(extra) for one in demands)
    return ", ".join(text.strip() for text in texts)


def _refuse_others(document: dict[str, Any], extra: str) -> None:
    """Refuse a project that lists its dependencies in another place.

    Raises:
        ScaffoldError: A list in ``[project]`` would contradict that place.
    """
    project = document.get("project", {})
    if "dependencies" in project.get("dynamic", ()):
        raise ScaffoldError(
            "pyproject.toml says that its dependencies are dynamic, so they stand elsewhere",
            hint=f'add "{NAME}[{extra}]" where the build takes them from',
        )
    poetry = document.get("tool", {}).get("poetry", {})
    if "project" not in document and "dependencies" in poetry:
        raise ScaffoldError(
            "pyproject.toml keeps its dependencies in `[tool.poetry.dependencies]`",
            hint=f'poetry add "{NAME}[{extra}]"',
        )
