"""Determine the version of flodl that a project uses.

An exact pin gives the version. For a range, it is the version in a lock file, else the installed
version in the project's environment, else the running one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from fdl.base.errors import ScaffoldError
from fdl.base.files import text_of, toml_of
from fdl.base.run_record import LOCKS
from fdl.base.venv import project_prefix, site_packages
from fdl.scaffold import add_requirement
from fdl.scaffold.add_requirement import NAME, Requirement, parse_all
from fdl.scaffold.render import is_released
from fdl.version import __version__

_PYPROJECT = "pyproject.toml"
_VERSION = "version"
_FOREIGN = ("git", "path", "url")
_STABLE = re.compile(r"[0-9]+(\.[0-9]+)*\Z")
_EGG = re.compile(r"(\S+)#(?:.*&)?egg=flodl(?![\w.-])")


@dataclass(frozen=True, slots=True)
class HostVersion:
    """The version of flodl that a project uses, and whether the project fixes flodl to it."""

    version: str
    is_pin: bool

    @property
    def can_be_had(self) -> bool:
        """Whether others can be pinned to it: the version of a checkout is in no index."""
        return self.is_pin or is_released(self.version)

    def requirement(self, extra: str) -> str:
        """A requirement on this version with an extra; on any version if no index has this one."""
        return f"{NAME}[{extra}]" + (f"=={self.version}" if self.can_be_had else "")


def host_version(root: Path, variables: Mapping[str, str]) -> HostVersion:
    """Determine the version of flodl that a project uses.

    Raises:
        ScaffoldError: It uses no flodl, one without a version, or a range that nothing resolves.
    """
    document = toml_of(root / _PYPROJECT)
    demands = declared(document) or _of_requirements_txt(root)
    pins = {one.pin for one in demands}
    if len(pins) == 1 and (pin := pins.pop()) is not None:
        return HostVersion(pin, is_pin=True)
    members = _workspace(root)
    source = _source(document, members)
    if source.get("workspace") is True and members:
        return HostVersion(_of_workspace(members), is_pin=False)
    foreign = next((one.url for one in demands if one.url), "") or _foreign(source)
    if foreign:
        raise ScaffoldError(
            f"flodl comes from {foreign} here, so no version is known that others could install",
            hint=f'hold it to a version: "{NAME}=={_example()}"; from a checkout, name the extra '
            f'yourself: "{NAME}[hf] @ …"',
        )
    if not demands:
        raise ScaffoldError(
            f"{_PYPROJECT} does not name flodl, so its version is not known",
            hint=f'add "{NAME}=={_example()}" to its dependencies, then try again',
        )
    folders = [root, *(folder for folder, _ in members)]
    places = site_packages(project_prefix(str(root), variables))
    installed = [one.version for one in distributions(name=NAME, path=places)]
    for version in (*_locked(folders), *installed, __version__):
        if all(one.allows(version) for one in demands):
            return HostVersion(version, is_pin=False)
    texts = ", ".join(f"`{one.text.strip()}`" for one in demands)
    raise ScaffoldError(
        f"the version of flodl that fits {texts} is not locked and not installed",
        hint="make a lock file (uv lock), install the project into .venv, or write one version: "
        f'"{NAME}=={_example()}"',
    )


def declared(document: Mapping[str, Any]) -> list[Requirement]:
    """Requirements on flodl in ``pyproject.toml``: of the project, else of extras and groups."""
    project = _table(document, "project")
    groups = (_table(project, "optional-dependencies"), _table(document, "dependency-groups"))
    others = [one for group in groups for one in group.values()]
    others.append(_table(document, "tool", "uv").get("dev-dependencies"))
    return (
        _in_list(project.get("dependencies"))
        or [found for one in others for found in _in_list(one)]
        or _of_poetry(document)
    )


def _in_list(texts: object) -> list[Requirement]:
    known = texts if isinstance(texts, list) else []
    return parse_all(text for text in known if isinstance(text, str))


def _of_poetry(document: Mapping[str, Any]) -> list[Requirement]:
    poetry = _table(document, "tool", "poetry")
    groups = [poetry, *_table(poetry, "group").values()]
    found: list[Requirement] = []
    for group in groups:
        wanted = _table(group, "dependencies").get(NAME) if isinstance(group, dict) else None
        source = wanted if isinstance(wanted, dict) else {_VERSION: wanted}
        version = source.get(_VERSION)
        if isinstance(version, str):
            # A plain version is exact; carets and wildcards are not interpreted here.
            exact = f"=={version}" if _STABLE.match(version) else ""
            found += parse_all([f"{NAME}{exact}"])
        elif place := _foreign(source):
            # A path here may be relative; in the text of a requirement it may not.
            found.append(Requirement(NAME, (), SpecifierSet(), place))
    return found


def _of_requirements_txt(root: Path) -> list[Requirement]:
    text = text_of(root / "requirements.txt")
    urls = (f"{NAME} @ {url}" for url in _EGG.findall(text))
    return parse_all([*(line for _, line in add_requirement.lines(text)), *urls])


def _workspace(root: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The root of the uv workspace of a folder, then its members; empty if there is none."""
    for folder in (root, *root.parents):
        document = toml_of(folder / _PYPROJECT)
        workspace = _table(document, "tool", "uv").get("workspace")
        if isinstance(workspace, dict):
            patterns = [str(one) for one in workspace.get("members") or ()]
            relative = [one for one in patterns if one and not Path(one).is_absolute()]
            members = [place for one in relative for place in sorted(folder.glob(one))]
            if root in (folder, *members):
                return [(folder, document), *((one, toml_of(one / _PYPROJECT)) for one in members)]
    return []


def _of_workspace(members: list[tuple[Path, dict[str, Any]]]) -> str:
    """The version of the member that is flodl."""
    for _, document in members:
        project = _table(document, "project")
        if canonicalize_name(str(project.get("name", ""))) == NAME:
            version = project.get(_VERSION)
            for found in (version, *_locked([members[0][0]])):
                if isinstance(found, str):
                    return found
    raise ScaffoldError(
        f"flodl is a member of the workspace in {members[0][0]}, which does not say its version",
        hint=f'give that member a version, or write "{NAME}=={_example()}" here',
    )


def _source(
    document: Mapping[str, Any], members: list[tuple[Path, dict[str, Any]]]
) -> dict[str, Any]:
    """The source from which uv takes flodl: set by the project, else by its workspace's root."""
    for one in (document, *(root for _, root in members[:1])):
        found = _table(one, "tool", "uv", "sources").get(NAME)
        several = found if isinstance(found, list) else [found]
        for source in several:
            if isinstance(source, dict):
                return source
    return {}


def _foreign(source: Mapping[str, Any]) -> str:
    return next((f"{key} {source[key]}" for key in _FOREIGN if key in source), "")


def _locked(folders: list[Path]) -> Iterator[str]:
    """The versions in lock files; a lock file with several versions is ignored."""
    for folder in folders:
        for name in LOCKS:
            document = toml_of(folder / name)
            packages = document.get("package") or document.get("packages") or []
            ours = {
                one[_VERSION]
                for one in packages
                if isinstance(one, dict) and one.get("name") == NAME and _VERSION in one
            }
            if len(ours) == 1:
                yield str(ours.pop())


def _table(document: Any, *path: str) -> dict[str, Any]:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def _example() -> str:
    return __version__ if _STABLE.match(__version__) else "X.Y.Z"
