"""The skills there are, and where their text comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fdl.base.errors import FdlError, UsageError
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
