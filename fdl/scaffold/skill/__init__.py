"""Skills: texts that teach a coding assistant to work with flodl."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fdl.base.errors import FdlError, UsageError, failing
from fdl.base.files import put
from fdl.base.suggest import nearest

SKILLS = {"port": "Port a PyTorch training project to flodl and fdl, stage by stage"}
"""Name -> one line about it."""

FILES = ("SKILL.md", "guide.md", "instructions.md")
"""What a skill consists of: when to use it, the worked example, the order of work."""

LEVELS = 5
"""How many folders above the working directory are looked into."""

_PACKAGED = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill: the folder of its files, and the text of each of :data:`FILES`, by name."""

    name: str
    folder: Path
    texts: Mapping[str, str]


def find(name: str, start: Path) -> Skill:
    """A skill with its text.

    A folder ``ai/NAME/`` that holds all of its files counts before the packaged one, in the working
    directory and up to :data:`LEVELS` folders above: a team may keep a version of its own.

    Raises:
        UsageError: There is no such skill.
        FdlError: Its files cannot be read.
    """
    if name not in SKILLS:
        close = nearest(name, SKILLS)
        raise UsageError(
            f"there is no skill `{name}`; there is {', '.join(SKILLS)}",
            hint=f"fdl skill install --skill {close or next(iter(SKILLS))}",
        )
    above = [folder / "ai" / name for folder in [start, *start.parents][: LEVELS + 1]]
    whole = (one for one in above if all((one / file).is_file() for file in FILES))
    folder = next(whole, _PACKAGED / name)
    try:
        texts = {file: (folder / file).read_text(encoding="utf-8") for file in FILES}
    except (OSError, ValueError) as error:
        raise FdlError(
            f"{folder}: the skill cannot be read: {error}",
            hint="fix the file, or rename the folder to take the skill that came with fdl",
        ) from None
    return Skill(name, folder, texts)


MARKER = "flodl porting"
"""The words by which an earlier installation is recognised in a shared file."""

_CURSOR_RULES = ".cursorrules"
_SEAL = "<!-- fdl skill install: sha256 of the text above "


@dataclass(frozen=True, slots=True)
class Written:
    """One file of an installation.

    Attributes:
        path: The file.
        content: Its new content; None if it has the skill already.
        edited: The file of this name that the user has edited, and that stays; None for none.
    """

    path: Path
    content: str | None
    edited: Path | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """One assistant.

    Attributes:
        name: As in ``--tool``.
        aliases: Other names for it.
        traces: Files or folders that tell that a project is worked on with it.
        place: Where it reads a skill from, for lists.
        files: The files to write for a skill, from the project's folder.
    """

    name: str
    aliases: tuple[str, ...]
    traces: tuple[str, ...]
    place: str
    files: Callable[[Skill, Path], list[Written]]


def _claude(skill: Skill, root: Path) -> list[Written]:
    folder = root / ".claude" / "skills" / skill.name
    return [_sealed(folder / name, text) for name, text in skill.texts.items()]


def _sealed(file: Path, text: str) -> Written:
    """A whole file, with its digest in the last line; if the user edited it, a file beside it."""
    content = _with_seal(text)
    before = _read(file)
    if before == content:
        return Written(file, None)
    if not before or before == _with_seal(before.partition(_SEAL)[0]):
        return Written(file, content)
    return Written(file.with_name(f"{file.name}.new"), content, edited=file)


def _with_seal(text: str) -> str:
    text = text if text.endswith("\n") else f"{text}\n"
    return f"{text}{_SEAL}{sha256(text.encode()).hexdigest()} -->\n"


def _cursor(skill: Skill, root: Path) -> list[Written]:
    """One file that belongs to the user as well, so the skill goes below what stands there."""
    file = root / _CURSOR_RULES
    before = _read(file)
    if MARKER in before:
        return [Written(file, None)]
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    parts = [f"# {MARKER}", skill.texts["instructions.md"], skill.texts["guide.md"]]
    text = "\n\n".join(part.strip("\n") for part in parts)
    return [Written(file, f"{before}{gap}{text}\n")]


TOOLS = (
    Tool("claude", ("claude-code",), (".claude",), ".claude/skills/SKILL/", _claude),
    Tool("cursor", (), (".cursor", _CURSOR_RULES), _CURSOR_RULES, _cursor),
)
"""All assistants; the first is taken where none is found."""


def detected(root: Path) -> list[Tool]:
    """The assistants that have left traces in a folder."""
    return [tool for tool in TOOLS if any((root / trace).exists() for trace in tool.traces)]


def choose(name: str) -> Tool:
    """An assistant by its name.

    Raises:
        UsageError: Nobody is called that.
    """
    for tool in TOOLS:
        if name in (tool.name, *tool.aliases):
            return tool
    names = [known for tool in TOOLS for known in (tool.name, *tool.aliases)]
    close = nearest(name, names)
    raise UsageError(
        f"there is no tool `{name}`; a skill can go to {', '.join(names)}",
        hint=f"fdl skill install --tool {close or names[0]}",
    )


def install(skill: Skill, tools: list[Tool], root: Path, *, dry_run: bool) -> list[Written]:
    """Write a skill for some assistants; every file is replaced as a whole, or none in a dry run.

    Raises:
        FdlError: A file cannot be read or written.
    """
    files = [file for tool in tools for file in tool.files(skill, root)]
    for file in files:
        hint = "check the permissions of its folder; `fdl skill install -n` shows all files"
        if file.content is not None and not dry_run:
            with failing(f"{file.path} cannot be written", hint):
                put(file.path, file.content.encode())
    return files


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        raise FdlError(
            f"{file} cannot be read: {error}", hint="fix it, then run `fdl skill install` again"
        ) from None
