"""Decide what ``fdl add`` adds: by its flags, else by the user's answers."""

from __future__ import annotations

from dataclasses import dataclass

from fdl.base.errors import ScaffoldError
from fdl.base.questions import Questions
from fdl.scaffold.add_playground import FOLDER


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts to add: the folder with models to try, the extra in the requirements."""

    playground: bool
    install: bool


_OPTIONS = (
    f"playground: a folder {FOLDER}/ with models to try",
    "install: `flodl.hf` in the requirements of this project",
    "both",
    "nothing",
)
_ANSWERS = (
    Parts(playground=True, install=False),
    Parts(playground=False, install=True),
    Parts(playground=True, install=True),
    None,
)


def choose(*, playground: bool, install: bool, yes: bool) -> Parts | None:
    """Choose the parts to add; None if the user wants none. ``yes`` takes the first choice.

    Raises:
        ScaffoldError: Neither flag was given, and no user can be asked.
    """
    if playground or install:
        return Parts(playground, install)
    if yes:
        return _ANSWERS[0]
    questions = Questions()
    if not questions.on:
        raise ScaffoldError(
            "say what to add: `--playground`, `--install`, or both",
            hint="fdl add flodl-hf --playground",
        )
    return _ANSWERS[questions.choose("What is to be added?", _OPTIONS, default=0, unanswered=-1)]
