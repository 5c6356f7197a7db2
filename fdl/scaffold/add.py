"""Add flodl's models of the Hub to a project: a playground, or a requirement of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fdl.base.errors import ScaffoldError
from fdl.base.files import put, rewrite
from fdl.base.terminal import Questions
from fdl.manifest.discover import EXAMPLES, NAMES
from fdl.manifest.inspect.layer import spliced
from fdl.manifest.inspect.splice import Layout, NewValue, Span, layout_of
from fdl.manifest.node import Node
from fdl.manifest.read import parse
from fdl.manifest.source import shown
from fdl.scaffold import add_requirement
from fdl.scaffold.add_requirement import EXTRAS, NAME, Requirement, parse_all
from fdl.scaffold.add_version import HostVersion, host_version
from fdl.scaffold.render import Values, list_files, render
from fdl.version import __version__


@dataclass(frozen=True, slots=True)
class Change:
    """A file, its text when it was read, and its new text; line ends and permissions stay."""

    file: Path
    before: str
    after: str

    def write(self) -> None:
        """Write the new text.

        Raises:
            ScaffoldError: It cannot be written, or has changed since it was read.
        """
        self._replace(self.before, self.after)

    def undo(self) -> None:
        """Restore the text that was read.

        Raises:
            ScaffoldError: It cannot be written, or holds another text now.
        """
        self._replace(self.after, self.before)

    def _replace(self, old: str, new: str) -> None:
        rewrite(self.file, old.encode(), new.encode(), name=self.file.name, error=ScaffoldError)


def _read(file: Path) -> str:
    """The text of a file, with unchanged line ends.

    Raises:
        ScaffoldError: It cannot be read.
    """
    try:
        return file.read_bytes().decode()
    except OSError as problem:
        raise ScaffoldError(
            f"{file.name} cannot be read: {problem.strerror}", hint="check its permissions"
        ) from None
    except UnicodeDecodeError:
        raise ScaffoldError(
            f"{file.name} is not UTF-8; nothing was written", hint="save it as UTF-8"
        ) from None


FOLDER = "flodl-hf"
"""The name of the playground's folder and of its command."""

_LAYERS = ("playground",)
_ENTRY = {"description": "Try models of the Hugging Face hub", "path": f"./{FOLDER}/"}
_COMPOSE = "docker-compose.yml"
_MANIFEST = "fdl.yml"


@dataclass(frozen=True, slots=True)
class Playground:
    """A playground that can be written.

    Attributes:
        root: The project.
        host: The version of flodl that it will require.
        manifests: The manifests to change.
        new: The text of a manifest for a folder that has none; empty if there is one.
    """

    root: Path
    host: HostVersion
    manifests: tuple[Change, ...]
    new: str = ""

    @property
    def files(self) -> list[str]:
        """Its files, relative to its folder and sorted."""
        return list_files(_LAYERS, self._values())

    def write(self) -> list[str]:
        """Write it; returns its files.

        Raises:
            ScaffoldError: A file cannot be written; everything is unchanged.
        """
        written = render(_LAYERS, self.root / FOLDER, self._values())
        done: list[Change] = []
        try:
            if self.new:
                put(self.root / _MANIFEST, self.new.encode())
            # An example that is written after its copy would count as newer.
            for change in reversed(self.manifests):
                change.write()
                done.append(change)
        except BaseException:
            shutil.rmtree(self.root / FOLDER, ignore_errors=True)
            for change in done:
                change.undo()
            raise
        return written

    def _values(self) -> Values:
        return {
            "requirement": self.host.requirement(EXTRAS["full"]),
            "containers": (self.root / _COMPOSE).is_file(),
        }


def playground(root: Path, variables: Mapping[str, str]) -> Playground:
    """Determine whether a project can have a playground; nothing is written.

    Raises:
        FdlError: The project lacks a file, has a playground, or does not say which flodl it uses.
            A folder with neither file gets a manifest, and the running version of flodl.
    """
    found = manifests(root)
    if not found and not (root / "pyproject.toml").exists():
        _refuse_to_replace(root / FOLDER)
        text = with_command("", root / _MANIFEST, FOLDER, _ENTRY)
        return Playground(root, HostVersion(__version__, is_pin=False), (), text)
    missing = "" if (root / "pyproject.toml").is_file() else "pyproject.toml"
    missing = missing or ("" if found else "fdl.yml")
    if missing:
        raise ScaffoldError(
            f"there is no {missing} in {root}, so it cannot have a playground",
            hint="go to the project's root, or start one: fdl init NAME --with-hf",
        )
    _refuse_to_replace(root / FOLDER)
    host = host_version(root, variables)
    texts = [(one, _read(one)) for one in found]
    changes = [Change(one, text, with_command(text, one, FOLDER, _ENTRY)) for one, text in texts]
    return Playground(root, host, tuple(one for one in changes if one.before != one.after))


def _refuse_to_replace(target: Path) -> None:
    if os.path.lexists(target):
        raise ScaffoldError(
            f"{shown(str(target))} exists already; nothing was written",
            hint=f"`fdl {FOLDER} --help` lists its commands; remove it first to make it again",
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts to add: the folder with models to try, the extra in the requirements."""

    playground: bool
    install: bool


_CHOICES: dict[str, Parts | None] = {
    f"playground: a folder {FOLDER}/ with models to try": Parts(playground=True, install=False),
    "install: `flodl.hf` in the requirements of this project": Parts(
        playground=False, install=True
    ),
    "both": Parts(playground=True, install=True),
    "nothing": None,
}
"""What a user may answer, and what is added then."""


def choose(*, playground: bool, install: bool, yes: bool) -> Parts | None:
    """Choose the parts to add; None if the user wants none. ``yes`` takes the first choice.

    Raises:
        ScaffoldError: Neither flag was given, and no user can be asked.
    """
    if playground or install:
        return Parts(playground, install)
    if yes:
        return Parts(playground=True, install=False)
    questions = Questions()
    if not questions.on:
        raise ScaffoldError(
            "say what to add: `--playground`, `--install`, or both",
            hint="fdl add flodl-hf --playground",
        )
    texts = list(_CHOICES)
    answer = questions.choose("What is to be added?", texts, default=0, unanswered=-1)
    return _CHOICES[texts[answer]]


@dataclass(frozen=True, slots=True)
class Installation:
    """A requirement that can be written.

    Attributes:
        change: The file, with its new text; the old one if the extra is there already.
        requirement: The new requirement on flodl.
        host: The version that was looked up for it; None if none was needed.
    """

    change: Change
    requirement: str
    host: HostVersion | None


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
    text = _read(path)
    document = add_requirement.parse_toml(text)
    listed = add_requirement.dependencies(document)
    is_in_lines = listed is None and (root / "requirements.txt").is_file()
    if is_in_lines:
        path = root / "requirements.txt"
        text = _read(path)
        listed = [line for _, line in add_requirement.lines(text)]
    demands = parse_all(listed or [])
    if demands:
        # Refuse flodl from a source other than an index if its version is not given.
        if any(one.url or not one.specifier for one in demands if not one.has(extra)):
            host_version(root, variables)
        changed = add_requirement.lines_with_extra if is_in_lines else add_requirement.with_extra
        change = Change(path, text, changed(text, extra))
        return Installation(change, _shown(demands, extra), None)
    if listed is None:
        _refuse_others(document, extra)
    host = host_version(root, variables)
    requirement = host.requirement(extra)
    if is_in_lines:
        new = add_requirement.lines_with_requirement(text, requirement)
    else:
        new = add_requirement.with_requirement(text, requirement, root.name)
    return Installation(Change(path, text, new), requirement, host)


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


_COMMANDS = "commands"


def manifests(root: Path) -> list[Path]:
    """The manifests of a folder and their examples; a link without a target is left out."""
    return [root / name for name in (*NAMES, *EXAMPLES) if (root / name).is_file()]


def with_command(text: str, file: Path, name: str, keys: dict[str, str]) -> str:
    """The text of a manifest with one more command, at the end of its ``commands:``.

    The same text if the command is there already. The name of the file says whether it is JSON.

    Raises:
        ManifestError: The text is broken.
        ScaffoldError: It cannot be changed without changing anything else.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    made = text.removeprefix(mark)
    if parse(made, str(file)).find(_COMMANDS, name) is not None:
        return text
    for key, value in keys.items():
        made = _with_value(made, str(file), (_COMMANDS, name, key), value)
    return mark + made


def _with_value(text: str, file: str, path: tuple[str, ...], value: str) -> str:
    # A block at the end of the file without a line end gets one, because text is added below it.
    old = parse(text if text.endswith("\n") else f"{text}\n", file)
    new = NewValue(Node(value, file, 1, 1), value)
    in_block = _in_empty_block(text, layout_of(text, file), path, value)
    made = spliced(old, text, file, path, new, in_block)
    if made is not None:
        return made
    raise ScaffoldError(
        f"{Path(file).name} cannot take the command `{path[1]}` without a change to what is "
        "around it; nothing was written",
        hint=f"write it by hand, under `{_COMMANDS}:`, and try again",
    )


def _in_empty_block(text: str, layout: Layout, path: tuple[str, ...], value: str) -> Iterator[str]:
    """The command on separate lines below a ``commands:`` that is still empty."""
    span = layout.root.entries.get(_COMMANDS) if layout.root else None
    if span is None or span.kind != "scalar" or span.start != span.end or path[0] != _COMMANDS:
        return
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = " " * _column(text, span)
    end = text.find("\n", span.key_end)
    end = len(text) if end < 0 else end - text[:end].endswith("\r")
    _, name, key = path
    lines = f"{newline}{indent}  {name}:{newline}{indent}    {key}: {value}"
    yield f"{text[:end]}{lines}{text[end:]}"


def _column(text: str, span: Span) -> int:
    return span.key_start - (text.rfind("\n", 0, span.key_start) + 1)
